"""What `mmrl ls` lists beside plug-ins: configs and algorithms, read without importing anything."""

import ast
import shutil
from itertools import pairwise
from pathlib import Path

from mmrl.app.plugins import Listed, folders, listing
from mmrl.app.suggest import did_you_mean

KINDS = ("rewards", "datasets", "algorithms", "configs")


def catalog(kind: str) -> list[Listed]:
    """Names, summaries and files of one kind, sorted by name.

    Raises:
        ValueError: there is no such kind.
    """
    if kind in ("rewards", "datasets"):
        return listing(kind)
    if kind == "configs":
        return configs()
    if kind == "algorithms":
        return presets()
    raise ValueError(f"nothing of the kind {kind!r} can be listed: {did_you_mean(kind, KINDS)}")


def find_config(name: str) -> Path:
    """The file of a config given by path or by its name among the shipped ones: `tiny/image`.

    Raises:
        FileNotFoundError: it is neither.
    """
    file = Path(name).expanduser()
    if file.is_file():
        return file
    known = {listed.name: listed.file for listed in configs()}
    if name in known:
        return known[name]
    raise FileNotFoundError(f"no config {name!r}: it is not a file, and of the shipped ones {did_you_mean(name, known)}")


def configs() -> list[Listed]:
    """The runs in ./configs and the shipped ones, by path without ending: `image/qwen3vl_4b_refcoco_24gb`."""
    found: dict[str, Listed] = {}
    for folder in folders("configs"):
        for file in sorted(folder.rglob("*.toml")):
            name = file.relative_to(folder).with_suffix("").as_posix()
            found.setdefault(name, Listed(name, first_comment(file), file))
    return sorted(found.values(), key=lambda listed: listed.name)


def first_comment(file: Path) -> str:
    """The first line of a TOML file, where it is a comment."""
    first = file.read_text(encoding="utf-8").split("\n", 1)[0]
    return first.lstrip("# ").strip() if first.startswith("#") else ""


def presets() -> list[Listed]:
    """The algorithms: every documented assignment of mmrl/algorithms/presets.py and its documentation's first line."""
    file = Path(__file__).resolve().parents[1] / "algorithms" / "presets.py"
    return [Listed(name, text.strip().split("\n")[0], file) for name, text in preset_documents().items()]


def preset_documents() -> dict[str, str]:
    """Preset -> the string under its assignment."""
    file = Path(__file__).resolve().parents[1] / "algorithms" / "presets.py"
    body = ast.parse(file.read_text(encoding="utf-8")).body
    found: dict[str, str] = {}
    for statement, below in pairwise(body):
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name) and isinstance(below, ast.Expr):
            text = ast.literal_eval(below.value)
            found[statement.targets[0].id] = str(text)
    return found


def copy(thing: str, target: Path) -> Path:
    """Copy a reward, data set or config to a file that does not exist yet.

    Raises:
        ValueError: nothing, or more than one kind of thing, is called so.
        FileExistsError: the file exists.
    """
    kind, _, name = thing.partition("/")
    kinds = ("rewards", "datasets", "configs")
    everything = {f"{kind}/{listed.name}": listed.file for kind in kinds for listed in catalog(kind)}
    wanted = [thing] if kind in kinds and name else [full for full in everything if full.partition("/")[2] == thing]
    if not wanted or wanted[0] not in everything:
        raise ValueError(f"there is no {thing!r} to copy: {did_you_mean(thing, everything)}")
    if len(wanted) > 1:
        raise ValueError(f"{thing!r} may mean {' or '.join(wanted)}: write it in full")
    if target.exists():
        raise FileExistsError(f"{target} exists already: choose another name or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(everything[wanted[0]], target)
    return target
