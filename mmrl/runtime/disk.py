"""Files that are whole or not there, and a full disk in one sentence. Standard library only."""

import errno
import hashlib
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NUMBERS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
WORDS = (*map(os.strerror, NUMBERS), "PytorchStreamWriter failed", "iostream error")
"""Libraries that write files hide the number in errors of their own."""


class FullDiskError(OSError):
    """A file did not fit on its disk."""

    def __init__(self, what: str, then: str) -> None:
        super().__init__(what)
        self.what, self.then = what, then

    def __str__(self) -> str:
        return f"{self.what}: make room there, then {self.then}"


@contextmanager
def room_for(path: Path, then: str = "do the same again") -> Iterator[None]:
    """Say of what is written inside that `path` did not fit, and how to go on; the innermost path and the outermost way."""
    try:
        yield
    except FullDiskError as error:
        error.then = then
        raise
    except Exception as error:
        if not is_full(error):
            raise
        place = next(one for one in (path.absolute(), *path.absolute().parents) if one.exists())
        free = shutil.disk_usage(place).free
        text = f"{path} could not be written ({type(error).__name__}: {error}; {free} bytes are free there)"
        raise FullDiskError(text, then) from error


def is_full(error: BaseException | None) -> bool:
    """Does an exception, or one that came before it, say that a disk, a quota or the longest file is full?"""
    if error is None:
        return False
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in NUMBERS
    return any(word in str(error) for word in WORDS) or is_full(error.__context__)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Where to write what becomes `path` once the block ends well, so that no reader sees half a file; errors as `room_for`."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with room_for(path):
            yield unfinished
            os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


def sha256_of(path: str | Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
