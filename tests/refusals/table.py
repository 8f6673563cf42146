"""Refusals as rows: what is given, and the words with which it is refused.

A file has [files], which lie in the working directory of all its rows, and [[group]] tables:

    by = "load"               # who refuses: a key of test_refusals.REFUSE, or several that must each refuse
    config = "tiny/image"     # a shipped config, or one of [files]
    words = ["steps=3"]       # overrides of all rows, before their own
    errors = ["ValueError"]   # whose name or a parent's the error must bear; this is the default
    rows = [
        ["sampler.kind=Shufled", "did you mean 'Shuffled'"],
    ]

A row is an override or a list of them, in which {root} is the repository, and a pattern that the message holds. A word such as
vae/config.json={"scaling_factor": 0} changes entries of that file in a copy of the model; what is no table takes its place. One
with a name behind these is an attack, too, of the area "config" or of that which follows the name: `make attack` gives it to
`mmrl show`, `mmrl train` or, where more is asked, to `mmrl plan`.
"""

import json
import re
import shutil
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from mmrl.app.config import run as configs
from mmrl.app.run.build import with_local_model

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
ONE_BY_ONE = Lock()
"""Attacks run beside each other, and tiny models are built once."""
TABLES = sorted(FOLDER.glob("*.toml"))


@dataclass(frozen=True)
class Refusal:
    """What is given, and how it is refused."""

    by: str
    config: str
    words: tuple[str, ...]
    pattern: str
    name: str = ""
    """Of the attack, where it is one."""
    area: str = "config"
    errors: tuple[str, ...] = ("ValueError",)
    files: Mapping[str, str] = field(default_factory=dict)

    def laid(self, folder: Path) -> list[str]:
        """The words, after files and a changed model were laid into the working directory."""
        for name, text in self.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text, encoding="utf-8")
        words = [word.replace("{root}", str(ROOT)) for word in self.words]
        changes = {file: text for file, _, text in (word.partition("=") for word in words) if file.endswith((".json", ".jinja"))}
        if not changes:
            return words
        words = [word for word in words if word.partition("=")[0] not in changes]
        with ONE_BY_ONE:
            model = Path(with_local_model(configs.load(self.config, words).config).policy.model)
        for file, text in changes.items():
            changes[file] = changed((model / file).read_text(), text)
        copy = shutil.copytree(model, folder / "model")
        for file, text in changes.items():
            (copy / file).write_text(text, encoding="utf-8")
        return [*words, f"policy.model={copy}"]

    def fault(self, refuse: Callable[[str, list[str]], object]) -> str | None:
        """What is wrong where `refuse` takes what is given or refuses it otherwise; it works in an empty working directory."""
        given = f"{self.by} {self.config} {' '.join(self.words)}"
        words = self.laid(Path.cwd())
        try:
            refuse(self.config, words)
        except Exception as error:  # noqa: BLE001 - any other error is a fault, too
            if not {one.__name__ for one in type(error).__mro__} & {*self.errors}:
                return f"{given}\n    raised {type(error).__name__}: {error}"
            if not re.search(self.pattern, str(error)):
                return f"{given}\n    said {error}\n    not  {self.pattern}"
            return None
        return f"{given}\n    was taken"


def changed(text: str, change: str) -> str:
    """A JSON file with other entries, those of tables inside tables too; or another text in its place."""
    try:
        found = json.loads(change)
    except ValueError:
        return change
    return json.dumps(merged(json.loads(text), found)) if isinstance(found, dict) else change


def merged(entries: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    inner = {key: merged(entries.get(key, {}), value) if isinstance(value, dict) else value for key, value in change.items()}
    return {**entries, **inner}


def refusals(file: Path) -> list[Refusal]:
    """The rows of a file; a slip in the file is a TypeError."""
    table = tomllib.loads(file.read_text(encoding="utf-8"))
    return [row for group in table["group"] for row in rows_of(table.get("files", {}), **group)]


def rows_of(
    files: Mapping[str, str],
    by: str | list[str],
    config: str,
    rows: Iterable[list[Any]],
    words: Iterable[str] = (),
    errors: Iterable[str] = ("ValueError",),
) -> list[Refusal]:
    """The rows of one group."""
    return [
        Refusal(who, config, (*words, *several(given)), pattern, *name, errors=tuple(errors), files=files)
        for given, pattern, *name in rows
        for who in several(by)
    ]


def several(given: str | list[str]) -> list[str]:
    return [given] if isinstance(given, str) else given
