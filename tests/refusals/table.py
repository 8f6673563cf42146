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
vae/config.json={"scaling_factor": 0} changes entries of that file in a copy of the model. One with a
name behind these is an attack, too: `make attack` gives it to `mmrl show` or, where plug-ins are asked, to `mmrl plan`.
"""

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
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
    errors: tuple[str, ...] = ("ValueError",)
    files: Mapping[str, str] = field(default_factory=dict)

    def fault(self, refuse: Callable[[str, list[str]], object]) -> str | None:
        """What is wrong where `refuse` takes what is given or refuses it otherwise; it works in an empty working directory."""
        for name, text in self.files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(text, encoding="utf-8")
        words = [word.replace("{root}", str(ROOT)) for word in self.words]
        given = f"{self.by} {self.config} {' '.join(self.words)}"
        try:
            refuse(self.config, words)
        except Exception as error:  # noqa: BLE001 - any other error is a fault, too
            if not {one.__name__ for one in type(error).__mro__} & {*self.errors}:
                return f"{given}\n    raised {type(error).__name__}: {error}"
            if not re.search(self.pattern, str(error)):
                return f"{given}\n    said {error}\n    not  {self.pattern}"
            return None
        return f"{given}\n    was taken"


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
        Refusal(who, config, (*words, *several(given)), pattern, name[0] if name else "", tuple(errors), files)
        for given, pattern, *name in rows
        for who in several(by)
    ]


def several(given: str | list[str]) -> list[str]:
    return [given] if isinstance(given, str) else given
