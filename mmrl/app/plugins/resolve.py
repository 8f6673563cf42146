"""Plug-in files: a reward or a data set is one Python file with one public callable, shipped or yours alike.

`iou` is looked up in ./rewards of the working directory, then among the shipped files; `./mine.py` is a file of yours,
`./mine.py:short` one callable in it, `python:short` an object of the program that calls mmrl. This file imports neither torch nor
the plug-ins it lists.
"""

import ast
import hashlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, cast

from mmrl.runtime.blame import PLUGIN, describe, is_from_outside
from mmrl.runtime.near import did_you_mean, link
from mmrl.runtime.process_state import ProcessChangedError, process_state, refuse_change

PREFIX = "python:"
STAGE = "stage:"
"""Begins the name of the rows that a stage of a chain has written: `data.use = "stage:pairs"`."""
_OBJECTS: ContextVar[Mapping[str, Callable[..., Any]]] = ContextVar("_OBJECTS", default=MappingProxyType({}))
"""Name -> object, as long as the call lasts that was given them."""
REWARD_PACKAGES = ("math_verify", "onnxruntime", "pycocotools", "rapidfuzz", "rapidocr", "rapidocr_onnxruntime", "rouge_score")
"""Packages of the extra `rewards`."""
MAYBE = (ast.If, ast.IfExp, ast.Try, ast.TryStar, ast.Match)
"""An import inside of these may never be reached, or is caught."""


def refuse_missing_packages(file: Path, wanted: str) -> None:
    """Look at the imports inside a callable of a file, and inside the functions and classes of the file that it names.

    Raises ValueError where one that is reached on every path is of a package that is not installed.
    """
    tree = ast.parse(file.read_text(encoding="utf-8"))
    known = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)}
    waiting, reached = [wanted], set[str]()
    while waiting:
        name = waiting.pop()
        if name in known and name not in reached:
            reached.add(name)
            waiting += [node.id for node in ast.walk(known[name]) if isinstance(node, ast.Name)]
    for name in sorted(reached):
        for package, line in imports(known[name]):
            if not is_installed(package):
                raise ValueError(f"{file}, line {line} imports {package!r}, which is not installed: {remedy(package)}")


def imports(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Package and line of every import below a node that is reached on every path."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, ast.Import):
            yield from ((alias.name.partition(".")[0], inner.lineno) for alias in inner.names)
        elif isinstance(inner, ast.ImportFrom) and inner.module and not inner.level:
            yield inner.module.partition(".")[0], inner.lineno
        elif isinstance(inner, ast.Call) and named_package(inner):
            yield named_package(inner), inner.lineno
        if not isinstance(inner, MAYBE) and not (isinstance(inner, ast.With) and "suppress" in ast.unparse(inner.items[0])):
            yield from imports(inner)


def named_package(call: ast.Call) -> str:
    """The package of `import_package("cv2", ...)`; empty for any other call."""
    is_import = isinstance(call.func, ast.Name) and call.func.id == "import_package" and call.args
    first = call.args[0] if is_import else None
    return first.value.partition(".")[0] if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def is_installed(package: str) -> bool:
    """True if it can be imported; does not import it."""
    try:
        return package in sys.stdlib_module_names or find_spec(package) is not None
    except ValueError:
        # loaded already, by something that left it no spec
        return True


def remedy(package: str) -> str:
    return 'pip install "mmrl[rewards]"' if package in REWARD_PACKAGES else "pip install it first"


@contextmanager
def guarded(what: str) -> Iterator[None]:
    """Enclose code of a plug-in, which messages call `what`: `reward ./mine.py`.

    Raises ValueError where it raised something that is no sentence for people (SystemExit and the like too), or changed a setting
    of the whole process, which was put back. A ValueError, OSError or KeyboardInterrupt of its own passes.
    """
    before = process_state()
    try:
        yield
        refuse_change(before)
    except (ValueError, OSError):
        before.restore()
        raise
    except ProcessChangedError as error:
        raise ValueError(f"{what}: {error}") from error
    except BaseException as error:
        before.restore()
        if is_from_outside(error):
            raise
        said = isinstance(error, ImportError) and error.name is None  # of a file's own words, which have a remedy
        raise ValueError(f"{what}: {error}" if said else f"{what} raised {describe(error)}: mend it") from error


PlugIn = Callable[..., Any]
"""A function or class of a plug-in file, whatever it is called with and gives."""
SUITES, FOREIGN = "datasets/suites", "environments/foreign"
"""Kinds whose files lie in a folder of another kind."""
SINGULAR = {
    "rewards": "reward",
    "datasets": "data set",
    "environments": "environment",
    FOREIGN: "adapter of environments",
    SUITES: "suite",
    "algorithms": "part of an algorithm",
    "configs": "config",
    "families": "family",
}


@dataclass(frozen=True)
class Listed:
    """One line of `mmrl ls`."""

    name: str
    summary: str
    file: Path


def load(spec: str, kind: str, base: Path | None = None) -> PlugIn:
    """The callable that `spec` names: `name`, `path.py`, or either followed by `:Callable`.

    Bare names are looked up among the plug-ins of a `kind` (rewards, datasets or algorithms), relative paths start at `base`.
    Raises FileNotFoundError without the file, and ValueError for no such name, no public callable or several, or a file that does
    not load, changes a setting of the whole process, or (of a reward) imports a package that is not installed.
    """
    if spec.startswith((PREFIX, STAGE)):
        return find_object(spec)
    file, wanted = locate(spec, kind, base)
    module = execute(file, kind)
    name = wanted or only_callable(module, file, spec, kind)
    found = getattr(module, name, None)
    if not callable(found):
        raise ValueError(f"{file} has no callable {name!r}: {did_you_mean(name, public_callables(module))}")
    if kind == "rewards":
        refuse_missing_packages(file, name)
    return found


@contextmanager
def offer(objects: Mapping[str, Callable[..., Any]]) -> Iterator[None]:
    """Let configs name these objects while inside, beside those of calls around this one."""
    token = _OBJECTS.set({**_OBJECTS.get(), **objects})
    try:
        yield
    finally:
        _OBJECTS.reset(token)


def find_object(use: str) -> Callable[..., Any]:
    """The object that a config calls `python:<name>`; ValueError if it belonged to an ended program, or to another call."""
    name, known = use.removeprefix(PREFIX), _OBJECTS.get()
    if name not in known and use.startswith(STAGE):
        raise ValueError(f"{use!r} is what a stage of a chain writes for later ones, and no stage before has this name")
    if name not in known:
        raise ValueError(
            f"{use!r} was an object of a Python program, which a config cannot bring back: give it to mmrl.fit or mmrl.evaluate "
            "again (output=the run's folder, resume=True), or write its file in the config (use = './mine.py:name')"
        )
    return known[name]


def is_of_python(value: object) -> bool:
    """Does a table name such an object, at any depth?"""
    if isinstance(value, Mapping):
        return any(map(is_of_python, value.values()))
    if isinstance(value, list | tuple):
        return any(map(is_of_python, value))
    return isinstance(value, str) and value.startswith((PREFIX, f"trl:{PREFIX}", f"flow_grpo:{PREFIX}"))


def load_environment(spec: str) -> PlugIn:
    """A class or function of a file of yours that environments are made with: `mmrl.load_environment("./mine.py:Corridor")`.

    Errors are those of `load`.
    """
    return load(spec, "environments")


def foreign_world(use: str) -> tuple[PlugIn | None, str]:
    """Who opens worlds of another library, and what it opens; None and the whole for mmrl's own.

    `gymnasium:FrozenLake-v1` is opened by the file of `environments/foreign/` whose name begins with the word and an underscore.
    """
    word, _, place = use.partition(":")
    file = next((one.file for one in listing(FOREIGN) if place and one.name.partition("_")[0] == word), None)
    return (None, use) if file is None else (load(str(file), FOREIGN), place)


def only_callable(module: ModuleType, file: Path, spec: str, kind: str) -> str:
    """The name of a file's one public callable; ValueError if it has none, or several."""
    names = public_callables(module)
    if not names:
        raise ValueError(
            f"{file} has no public function or class: define the {SINGULAR[kind]} there, without a leading underscore"
        )
    if len(names) > 1:
        raise ValueError(
            f"{file} has {len(names)} public callables ({', '.join(names)}): name one in __all__, start the others with an "
            f"underscore, or write {spec}:{names[0]}"
        )
    return names[0]


def locate(spec: str, kind: str, base: Path | None = None) -> tuple[Path, str]:
    """File and callable (or "") of a spec."""
    place, _, wanted = spec.partition(":") if not _has_drive(spec) else (spec, "", "")
    if place.endswith(".py"):
        file = (base or Path.cwd()) / Path(place).expanduser()
        if not file.is_file():
            raise FileNotFoundError(f"no file {file} for the {SINGULAR[kind]} {spec!r}{link(file)}: check the path")
        return file.resolve(), wanted
    for folder in folders(kind):
        file = folder / f"{place}.py"
        if file.is_file():
            return file.resolve(), wanted
    if kind == "rewards" and os.sep in place:
        raise FileNotFoundError(f"no folder of a trained reward model is at {place}, and no reward is called so: check the path")
    names, own = [listed.name for listed in listing(kind)], f"{os.path.join('.', place)}.py"
    raise ValueError(f"no {SINGULAR[kind]} is called {place!r}: {did_you_mean(place, names)}; for a file of yours write {own}")


def default_name(spec: str) -> str:
    """The name of a reward whose table says none: the callable if one is named, else the stem of file or address."""
    if "://" in spec:
        return spec.rstrip("/").rpartition("/")[2]
    spec = spec.removeprefix("trl:").removeprefix("flow_grpo:")
    place, _, wanted = spec.partition(":") if not _has_drive(spec) else (spec, "", "")
    return wanted or Path(place).stem


def with_runs(value: object) -> object:
    """A table or list of a config in which folders of runs became reward models."""
    if isinstance(value, list):
        return [with_runs(one) for one in cast(list[object], value)]
    if not isinstance(value, Mapping):
        return value
    found = {key: with_runs(one) for key, one in cast(Mapping[str, object], value).items()}
    use = found.get("use")
    if not isinstance(use, str) or not (Path(use).expanduser() / "config.toml").is_file():
        return found
    return found | {"use": "reward_model", "run": use}


def folders(kind: str) -> list[Path]:
    """Where bare names are looked up, first come first served."""
    found = [Path.cwd() / kind, shipped_folder(kind)]
    return [folder for folder in dict.fromkeys(path.resolve() for path in found) if folder.is_dir()]


def shipped_folder(kind: str) -> Path:
    """The folder that came with mmrl: inside the package in a wheel, next to it in a checkout."""
    package = Path(__file__).resolve().parents[2]
    inside = package / "_shipped" / kind
    return inside if inside.is_dir() else package.parent / kind


def execute(file: Path, kind: str) -> ModuleType:
    """Run a plug-in file as a module, once per process.

    The module is registered before it runs and its name has no dots: otherwise dataclasses with postponed annotations
    fail, and its objects cannot be pickled.
    """
    name = f"{PLUGIN}{_identifier(kind)}__{_identifier(file.stem)}"
    if file.parent not in folders(kind):
        name += "_" + hashlib.sha256(str(file).encode()).hexdigest()[:8]
    known = sys.modules.get(name)
    if known is not None and known.__file__ == str(file):
        return known
    reach_neighbours(file)
    spec = spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    loader = spec.loader
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        with guarded(str(file)):
            run_module(file, lambda: loader.exec_module(module))
    except BaseException:
        del sys.modules[name]
        raise
    return module


def run_module(file: Path, run: Callable[[], None]) -> None:
    """Run a plug-in file; what makes it unusable becomes a ValueError with the remedy."""
    try:
        run()
    except SyntaxError as error:
        raise ValueError(f"{error.filename}, line {error.lineno} is not Python: {error.msg}") from None
    except ModuleNotFoundError as error:
        if error.name is None:
            raise ValueError(f"{file}: {error}") from None
        package = error.name.partition(".")[0]
        why = "this mmrl does not have: it was moved or renamed" if package == "mmrl" else f"is not installed: {remedy(package)}"
        raise ValueError(f"{file} imports {error.name!r}, which {why}") from None


def reach_neighbours(file: Path) -> None:
    """Let a plug-in import the Python files next to it, as it could as a script.

    Raises ValueError where a neighbour would take the place of something else that can be imported.
    """
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except SyntaxError:
        return
    nodes = list(ast.walk(tree))
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module and not node.level]
    for name in sorted({name.partition(".")[0] for name in names} - {"mmrl"}):
        beside = next((f for f in (file.parent / f"{name}.py", file.parent / name / "__init__.py") if f.is_file()), None)
        if beside is None:
            continue
        if str(file.parent) not in sys.path:
            sys.path.append(str(file.parent))
        found = find_spec(name)
        if found is None or found.origin is None or Path(found.origin).resolve() != beside.resolve():
            other = found.origin if found else "nothing"
            raise ValueError(f"{file} imports {name!r}, which would be {other} and not {beside} next to it: rename yours")


def modalities(function: object) -> tuple[str, ...]:
    """The modalities of a reward, from the line `Modality: image, text` of its file's docstring; () where there is none."""
    owner = function if hasattr(function, "__module__") else type(function)
    document = getattr(sys.modules.get(owner.__module__), "__doc__", None) or ""
    found = re.search(r"^Modality: *([^.\n]+)", document, re.MULTILINE)
    return tuple(word.strip() for word in found[1].split(",")) if found else ()


def public_callables(module: ModuleType) -> list[str]:
    """Functions and classes a file offers: those in `__all__`, else the public ones it defines itself."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if callable(getattr(module, name, None))]
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == module.__name__
    ]


def listing(kind: str) -> list[Listed]:
    """Names and first docstring lines of what bare names can mean, read without importing anything."""
    found: dict[str, Listed] = {}
    for folder in folders(kind):
        for file in sorted(folder.glob("*.py")):
            if not file.stem.startswith("_"):
                found.setdefault(file.stem, Listed(file.stem, summary(file), file))
    return sorted(found.values(), key=lambda listed: listed.name)


def summary(file: Path) -> str:
    """First line of a Python file's docstring; of a file that is not Python, where it stops being so."""
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except SyntaxError as error:
        return f"(not Python: {error.msg}, line {error.lineno})"
    return (ast.get_docstring(tree) or "").strip().split("\n")[0]


def _identifier(text: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in text)


def _has_drive(spec: str) -> bool:
    """`C:\\mine.py`: the colon belongs to the path."""
    return len(spec) > 2 and spec[1] == ":" and spec[2] in "\\/"
