"""The cache of things made once, tiny models and drawn clips: listed, cleared and bounded. Standard library only."""

import fcntl
import hashlib
import inspect
import json
import logging
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from mmrl.runtime.disk import room_for

log = logging.getLogger("mmrl")
FOLDER, BOUND = "MMRL_CACHE", "MMRL_CACHE_GB"
"""Environment variables: where it is (~/.cache/mmrl), and how large it may grow in GB (5); 0 = no bound."""
USUAL_GB = 5.0
IN_USE_S = 24 * 3600.0
"""Seconds since its last use for which an entry is never removed to make room: a run may be reading it."""
ENDS = 2**16
"""Bytes of a file, at its beginning and its end, that say which file it is, beside its size and its time."""
_held: dict[Path, int] = {}
"""Entries that this process uses -> a descriptor whose lock says so to others until the process ends."""
_OURS = re.compile(r"random-[\w.+-]+|[a-z0-9_-]+-[0-9a-f]{12}(-\w+)?")
"""Names that mmrl gives; whatever else lies in the folder is not touched."""


@dataclass(frozen=True)
class Entry:
    """One folder of the cache: `Entry(Path("~/.cache/mmrl/tiny-grounding-3d053f45493c"), 1_200_000, 1.7e9)`."""

    path: Path
    num_bytes: int
    used: float
    """Seconds since 1970."""


def cache_folder() -> Path:
    """The folder of what is kept: $MMRL_CACHE, or ~/.cache/mmrl."""
    return Path(os.environ.get(FOLDER) or Path.home() / ".cache" / "mmrl")


def bound() -> int:
    """How many bytes may be kept, 0 = any number; ValueError where MMRL_CACHE_GB is no number from 0 on."""
    text = os.environ.get(BOUND) or str(USUAL_GB)
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise ValueError(f"{BOUND} is {text!r}: it is a number of gigabytes, 0 for no bound")
    return int(value * 1e9)


def fingerprint(file: Path) -> str:
    """Size, time and ends of a file that things were made of: another file, another word."""
    status = file.stat()
    with file.open("rb") as opened:
        ends = opened.read(ENDS)
        opened.seek(max(0, status.st_size - ENDS))
        ends += opened.read(ENDS)
    return f"{status.st_size} {status.st_mtime_ns} {hashlib.blake2b(ends, digest_size=8).hexdigest()}"


def entries() -> list[Entry]:
    """All entries, the one used longest ago first."""
    folder = cache_folder()
    inside = [path for path in folder.iterdir() if _OURS.fullmatch(path.name)] if folder.is_dir() else []
    found = [path for path in inside if path.is_dir() and not path.is_symlink()]
    return sorted(
        (entry for path in found if (entry := _look(path)) is not None), key=lambda entry: (entry.used, entry.path.name)
    )


def note_use(path: Path) -> Path:
    """Remember that an entry of the cache was used now; for anything outside the cache nothing happens. Gives the path."""
    entry = _entry_of(path)
    if entry is not None:
        try:
            os.utime(entry)
            _hold(entry)
        except OSError:
            log.debug("%s cannot be marked as used", entry)
    return path


def note_new(path: Path) -> Path:
    """Remember a new entry, and remove those used longest ago until the cache is within its bound. Gives the path."""
    note_use(path)
    most = bound()
    if most and _entry_of(path) is not None:
        kept = entries()
        size, now = sum(entry.num_bytes for entry in kept), time.time()
        for entry in kept:
            if size > most and now - entry.used > IN_USE_S:
                for gone in remove([entry]):
                    size -= gone.num_bytes
                    log.info("removed %s from the cache, which may hold %.3g GB", gone.path, most / 1e9)
    return path


def remove(chosen: Iterable[Entry]) -> list[Entry]:
    """Remove entries that no process uses, each gone for others before its files go; those that were removed."""
    removed: list[Entry] = []
    for entry in chosen:
        descriptor = os.open(entry.path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue
        finally:
            os.close(descriptor)
        gone = entry.path.with_name(f".{entry.path.name}.{os.getpid()}.gone")
        entry.path.rename(gone)
        shutil.rmtree(gone)
        removed.append(entry)
    return removed


def _hold(entry: Path) -> None:
    """Hold a shared lock on an entry until this process ends, so that no other removes it."""
    known = _held.get(entry)
    if known is not None and os.path.samestat(os.fstat(known), entry.stat()):
        return
    descriptor = os.open(entry, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    _held[entry] = descriptor


def _entry_of(path: Path) -> Path | None:
    """The folder of the cache that a path lies in, or is."""
    folder = cache_folder().absolute()
    inside = path.absolute()
    return folder / inside.relative_to(folder).parts[0] if folder in inside.parents else None


def _look(path: Path) -> Entry | None:
    """Size and last use; None where it vanished meanwhile."""
    try:
        used = path.stat().st_mtime
        sizes = [file.lstat().st_size for file in path.rglob("*") if file.is_file() and not file.is_symlink()]
    except FileNotFoundError:
        return None
    return Entry(path, sum(sizes), used)


Progress = Callable[[int, int, float], None]
"""Called with the step (from 1), the number of steps, and the loss."""


def keep(folder: Path | None, name: str, index_file: str, make: Callable[[Path], object]) -> Path:
    """The folder; if it holds its index file already, nothing is made. None: `name` below MMRL_CACHE (or ~/.cache/mmrl).

    What `make` fills an empty folder with depends on settings alone, bit for bit on one machine; rounding may differ between
    machines.
    """
    folder = cache_folder() / name if folder is None else folder
    if (folder / index_file).exists():
        return note_use(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    try:
        with room_for(folder):
            make(unfinished)
        unfinished.chmod(0o755)
        unfinished.rename(folder)
    except OSError:
        # another process finished the same folder first
        if not (folder / index_file).exists():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return note_new(folder)


def hash_of(settings: Any, code: Sequence[ModuleType | Callable[..., object]], packages: Sequence[str]) -> str:
    """12 characters that tell apart settings (a dataclass or a table), the files of `code`, and packages' versions."""
    table: object = settings if isinstance(settings, Mapping) else asdict(settings)
    digest = hashlib.sha256(json.dumps(table, sort_keys=True).encode())
    for part in code:
        digest.update(part.__name__.encode() + Path(inspect.getfile(part)).read_bytes())
    digest.update(" ".join(map(version, packages)).encode())
    return digest.hexdigest()[:12]
