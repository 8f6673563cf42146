"""The things that `mmrl ls` lists besides plug-ins: configs and algorithms, read without importing anything."""

import ast
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

from mmrl.answers.needs import Need
from mmrl.app.plugins.resolve import Listed, folders, listing
from mmrl.runtime.near import did_you_mean, near, nearest

KINDS = ("rewards", "datasets", "environments", "algorithms", "configs")
FIELDS = ("Modality", "Needs", "Range", "Source", "Licence")
"""Fields of a reward's documentation, each on a line that begins with the word and a colon; Needs may be declared instead."""
FACTS = ".recipe"
"""Suffix of the files with a recipe's facts, which are next to its run and are not runs."""


def catalog(kind: str) -> list[Listed]:
    """Names, summaries and files of one of KINDS, sorted by name."""
    if kind in ("rewards", "datasets", "environments"):
        return listing(kind)
    return configs() if kind == "configs" else presets()


def details(file: Path) -> dict[str, str]:
    """The fields of a reward's documentation, in the order of FIELDS; those it does not name are left out.

    A field goes on over the lines below it, up to the next field or a blank line. Nothing is imported.
    """
    try:
        tree = ast.parse(file.read_text(encoding="utf-8"))
    except SyntaxError:
        return {}
    found: dict[str, list[str]] = {}
    current = ""
    for line in (ast.get_docstring(tree) or "").splitlines():
        word, colon, rest = line.partition(":")
        if colon and word in FIELDS:
            current = word
            found[current] = [rest.strip()]
        elif not line.strip():
            current = ""
        elif current:
            found[current].append(line.strip())
    if (need := declared_need(tree)) is not None:
        found["Needs"] = [str(need)]
    return {name: " ".join(found[name]).strip() for name in FIELDS if name in found}


def declared_need(tree: ast.Module) -> Need | None:
    """The need that a reward's file declares, as far as it is written out; None where it declares none."""
    inside = [statement for node in tree.body for statement in (node.body if isinstance(node, ast.ClassDef) else [node])]
    for statement in inside:
        if not isinstance(statement, ast.Assign) or ast.unparse(statement.targets[0]) != "needs":
            continue
        if isinstance(call := statement.value, ast.Call) and ast.unparse(call.func).rpartition(".")[2] == Need.__name__:
            given = dict(zip(Need.__dataclass_fields__, call.args, strict=False))
            given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg in Need.__dataclass_fields__}
            known: dict[str, Any] = {name: one.value for name, one in given.items() if isinstance(one, ast.Constant)}
            return Need(**known)
    return None


def find_config(name: str) -> Path:
    """The file of a config given by path or by its name among the shipped ones: `tiny/image`. FileNotFoundError for neither."""
    file = Path(name).expanduser()
    if file.is_file():
        return file
    known = {listed.name: listed.file for listed in configs()}
    if name in known:
        return known[name]
    what = "it is a folder" if file.is_dir() else f"there is no such file or folder{near(name)}"
    close = nearest(name, known)
    shipped = "none of the shipped ones is called like that" if close is None else f"did you mean the shipped {close!r}?"
    raise FileNotFoundError(f"no config {name!r}: {what}; {shipped}; `mmrl ls configs` lists them")


def configs() -> list[Listed]:
    """The runs in ./configs and the shipped ones, by path without ending, with the comment that each begins with."""
    found: dict[str, Listed] = {}
    for folder in folders("configs"):
        for file in sorted(folder.rglob("*.toml")):
            name = file.relative_to(folder).with_suffix("").as_posix()
            first = file.read_text(encoding="utf-8").split("\n", 1)[0]
            summary = first.lstrip("# ").strip() if first.startswith("#") else ""
            if not name.endswith(FACTS):
                found.setdefault(name, Listed(name, summary, file))
    return sorted(found.values(), key=lambda listed: listed.name)


def presets() -> list[Listed]:
    """The algorithms: name, first line of the documentation with the paper's id, and the file."""
    return [
        Listed(name, f"{text.strip().splitlines()[0]} {paper(text)}".rstrip(), file) for name, (text, file) in documents().items()
    ]


def paper(text: str) -> str:
    """The first arXiv id of a text, in brackets; empty where it names none."""
    found = re.search(r"arXiv:\d{4}\.\d{4,5}", text)
    return f"({found[0]})" if found else ""


def preset_documents() -> dict[str, str]:
    """Preset -> the string under its assignment."""
    return {name: text for name, (text, _) in documents().items()}


def documents() -> dict[str, tuple[str, Path]]:
    """Preset -> the string under its assignment, and the file."""
    found: dict[str, tuple[str, Path]] = {}
    for file in sorted((Path(__file__).resolve().parents[2] / "algorithms" / "presets").glob("*.py")):
        for statement, below in pairwise(ast.parse(file.read_text(encoding="utf-8")).body):
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name) and isinstance(below, ast.Expr):
                found[statement.targets[0].id] = (str(ast.literal_eval(below.value)), file)
    return found


def copy(thing: str, target: Path) -> Path:
    """Copy a plug-in or config to a file; FileExistsError if that exists, ValueError unless one thing is called so."""
    kind, _, name = thing.partition("/")
    kinds = ("rewards", "datasets", "environments", "configs")
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
