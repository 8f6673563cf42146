"""Files and folders whose path is like a mistyped one."""

import errno
import os
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher, get_close_matches
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
        if leads := link(found / part):
            return leads
        if not (found / part).exists():
            return words(found, part, Path(*parts[i + 1 :]))
        found = found / part
    return ""


def link(path: str | Path) -> str:
    """` (a link to /data/x, which is not there)` for a link that leads nowhere, or back to itself; empty for anything else."""
    place = Path(path)
    if not place.is_symlink() or place.exists():
        return ""
    try:
        place.stat()
    except OSError as error:
        back = error.errno == errno.ELOOP
        return f" ({place} is a link to {os.readlink(place)}, {'and leads back to itself' if back else 'which is not there'})"
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


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`did you mean 'iou'? (known: iou, format)`, or only the list where nothing is close."""
    names = sorted(set(known))
    listed = f"known: {', '.join(names)}" if names else "there is none"
    close = nearest(word, names)
    return f"did you mean {close!r}? ({listed})" if close else f"it is not one of these ({listed})"


def elsewhere(path: Sequence[str], keys: Iterable[tuple[str, ...]]) -> str | None:
    """The key that a path which leads to none may mean, with dots: `optimizer.lr` for `lr`, `evaluate_every` for
    `evaluation.every`; None where no key of another table ends like it."""
    known = list(keys)
    same = [key for key in known if key[-1] == path[-1]]
    shared = {key: sum(one == other for one, other in zip(key, path, strict=False)) for key in same}
    if same:
        return ".".join(min(same, key=lambda key: (-shared[key], len(key))))
    return nearest("_".join(path), (key[0] for key in known if len(key) == 1)) if len(path) > 1 else None


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known name with the fewest edits to `word`; None where all are too far.

    Case does not count as an edit. A third of the letters may differ, and one always may; what begins with `word` (or the
    last part of a path that does) comes after that, and then what its initials spell: `lr` for `learning_rate`.
    """
    lower, names = word.lower(), sorted(set(known))
    if not word:
        return None
    far = max(1, len(word) // 3)
    by_edits = {name: edits(lower, name.lower()) for name in names if abs(len(name) - len(word)) <= far}
    least = min(by_edits.values(), default=far + 1)
    if least <= far:
        return min((name for name in names if by_edits.get(name) == least), key=lambda name: likeness(lower, name.lower()))
    initials = "".join(part[:1] for part in lower.split("_"))
    longer = (name for name in names if name.lower().startswith(lower) or name.lower().endswith(f"/{lower}"))
    return next(longer, initials if "_" in lower and initials in names else None)


def likeness(word: str, name: str) -> tuple[bool, float]:
    """The order of names with as many edits: by the first letter, which is rarely mistyped, then by common stretches."""
    return word[:1] != name[:1], -SequenceMatcher(None, word, name).ratio()


def edits(one: str, other: str) -> int:
    """Letters to insert, delete, replace or swap with their neighbour to make `other` of `one`."""
    before, row = list[int](), list(range(len(other) + 1))
    for i, a in enumerate(one, start=1):
        last, before, row = before, row, [i]
        for j, b in enumerate(other, start=1):
            row.append(min(before[j] + 1, row[j - 1] + 1, before[j - 1] + (a != b)))
            if i > 1 and j > 1 and a == other[j - 2] and b == one[i - 2]:
                row[j] = min(row[j], last[j - 2] + 1)
    return row[-1]
