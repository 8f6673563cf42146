"""Files and folders whose path is like a mistyped one."""

from difflib import get_close_matches
from itertools import islice
from pathlib import Path

SHOWN = 3
LOOKED_AT = 10_000
"""Entries of a folder that are compared, so that a mistake in a folder of a million pictures is said at once."""


def near(path: str | Path) -> str:
    """` (near: runs/model)` for `runs/mdl`, to be put behind a path that is not there; empty where nothing is like it.

    The first part of the path that does not exist is compared with what lies where it should lie.
    """
    wanted, found = Path(path).expanduser(), Path()
    parts = wanted.parts
    for i, part in enumerate(parts):
        if not (found / part).exists():
            return words(found, part, Path(*parts[i + 1 :]))
        found = found / part
    return ""


def words(folder: Path, part: str, rest: Path) -> str:
    """The words about entries of a folder that are like `part`, with the rest of the path where that exists."""
    try:
        names = {entry.name.lower(): entry.name for entry in islice(folder.iterdir(), LOOKED_AT)}
    except OSError:
        return ""
    close = [folder / names[name] for name in get_close_matches(part.lower(), names, SHOWN)]
    shown = [str(one / rest if (one / rest).exists() else one) for one in close]
    return f" (near: {', '.join(shown)})" if shown else ""
