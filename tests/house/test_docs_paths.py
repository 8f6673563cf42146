"""Every file, folder and module that the docs name exists; a real step enters those of docs/one_step.md, and few files."""

import importlib
import importlib.util
import json
import re
from pathlib import Path

import pytest

from tests.house.test_figures import LIMITS
from tests.support.each import for_each
from tests.support.forked import run

ROOT = Path(__file__).parents[2]
DOCS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").glob("**/*.md"))]
TOP = ("mmrl", "tests", "rewards", "datasets", "environments", "examples", "benchmarks", "configs", "docs")
ROOMS = tuple(sorted(folder.name for folder in (ROOT / "mmrl").iterdir() if folder.is_dir() and folder.name[0] not in "._"))
PATH = re.compile(rf"(?<![\w/.:-])(?:{'|'.join(TOP + ROOMS)})/(?:[\w-]+/)*(?:[\w-]+\.(?:py|md|toml|json|svg)\b(?:::\w+)?)?")
"""From the root or from mmrl/ on: `tests/house/test_wheel.py`, `policies/video/`, `data/files/paths.py::path_below`."""
BARE = re.compile(r"`([\w-]+\.py)`")
MODULE = re.compile(r"\bmmrl(?:\.[a-zA-Z]\w*)+")


def wrong_paths(text: str, folder: Path = ROOT) -> list[str]:
    """Paths that lead nowhere, and names that the file before `::` does not define."""
    found: list[str] = []
    for path in sorted(set(PATH.findall(text))):
        name, _, inside = path.partition("::")
        places = [place for place in (ROOT / name, ROOT / "mmrl" / name, folder / name) if place.exists()]
        defines = re.compile(rf"^\s*(?:(?:async )?def|class) {inside}\b|^{inside}\b", re.MULTILINE)
        if not places or (inside and not defines.search(places[0].read_text())):
            found.append(path)
    return found


def wrong_files(text: str) -> list[str]:
    """Python files that are named without a folder and lie nowhere."""
    return [name for name in sorted(set(BARE.findall(text))) if not any(any((ROOT / top).rglob(name)) for top in TOP)]


def wrong_modules(text: str) -> list[str]:
    """Dotted names below mmrl that are neither modules nor attributes of one."""
    return [name for name in sorted(set(MODULE.findall(text))) if not is_there(name)]


def is_there(name: str) -> bool:
    """True for a module, or a module's attribute: `mmrl.core.types`, `mmrl.core.types.Prompt`."""
    parent, _, last = name.rpartition(".")
    try:
        module = importlib.import_module(parent)
        return hasattr(module, last) or (hasattr(module, "__path__") and importlib.util.find_spec(name) is not None)
    except ModuleNotFoundError:
        return False


@for_each("doc", DOCS, ids=lambda doc: doc.relative_to(ROOT).as_posix())
def test_what_is_named_is_there(doc: Path):
    text = doc.read_text()
    assert wrong_paths(text, doc.parent) == []
    assert wrong_files(re.sub(r"```.*?```", "", text, flags=re.DOTALL)) == []
    assert wrong_modules(text) == []


def test_wrong_names_would_be_found():
    text = "mmrl/core/gone.py, `core/types.py`, core/gone/ and data/files/paths.py::gone, data/files/paths.py::path_below"
    assert wrong_paths(text) == ["core/gone/", "data/files/paths.py::gone", "mmrl/core/gone.py"]
    assert wrong_files("`types.py` and `gone.py`") == ["gone.py"]
    there = "mmrl.core.types, mmrl.Prompt, mmrl.core.types.Prompt"
    assert wrong_modules(f"{there}, mmrl.core.gone, mmrl.core.types.Gone, mmrl.gone") == [
        "mmrl.core.gone",
        "mmrl.core.types.Gone",
        "mmrl.gone",
    ]


PAGE = (ROOT / "docs" / "one_step.md").read_text()
CONFIGS = ("tiny/image", "tiny/flow")
FILE = re.compile(rf"`((?:{'|'.join(ROOMS)})/[\w/]+\.py)`")


@pytest.fixture(scope="module")
def entered(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """Config -> the files of mmrl/ that the warm second step of its run enters."""
    program, cache = Path(__file__).parent / "programs" / "step_files.py", str(tmp_path_factory.mktemp("cache"))
    done = run(str(program), *CONFIGS, cwd=ROOT, variables=[{"MMRL_CACHE": cache}])
    assert done.returncode == 0, done.stderr[-2000:]
    return {name: set(files) for name, files in json.loads(done.stdout.splitlines()[-1]).items()}


def test_the_page_names_both_configs():
    assert all(f"`configs/{name}.toml`" in PAGE for name in CONFIGS)


def test_every_file_on_the_page_is_entered_by_a_step(entered: dict[str, set[str]]):
    named = {f"mmrl/{path}" for path in FILE.findall(PAGE)}
    assert len(named) > 30
    assert sorted(named - set().union(*entered.values())) == []


def test_a_step_enters_few_files(entered: dict[str, set[str]]):
    files = entered["tiny/image"]
    assert len(files) <= LIMITS["files that a step of tiny/image enters"], "\n".join(sorted(files))
