"""One copy of new weights on a machine, for all workers of all its servers: the first that asks makes it, the others find it.

mmrl imports this file as its own; vLLM's workers, which have no mmrl, import it from their PYTHONPATH: it needs Python alone.
"""

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

SUMS = "sha256.json"
"""Written beside weights by who made them: name of a file -> its SHA-256."""
OWN = "mmrl-weights-"
CHUNK = 8 << 20


def write_sums(folder: Path) -> None:
    """Write down what the files of a folder must be after a journey."""
    found: dict[str, str] = {}
    for file in sorted(folder.iterdir()):
        with file.open("rb") as opened:
            found[file.name] = hashlib.file_digest(opened, "sha256").hexdigest()
    (folder / SUMS).write_text(json.dumps(found))


def place_of(folder: str, local: str) -> Path:
    """Where the copy of a folder lies."""
    return Path(local) / (OWN + Path(folder).name)


def copy_near(folder: str, local: str) -> Path:
    """Copy a folder of weights into `local`, in place of the copy of others, unless another worker of this machine did.

    Raises ValueError where there is no room, the folder cannot be seen here, or the copy is not what was written.
    """
    target, part = place_of(folder, local), Path(local) / f"{OWN}part"
    try:
        with one_at_a_time(local):
            if not target.is_dir():
                _drop(local)
                sums = json.loads((Path(folder) / SUMS).read_text())
                refuse_full(folder, local, sums)
                part.mkdir()
                for name, wanted in sums.items():
                    copy_file(Path(folder) / name, part / name, wanted)
                part.rename(target)
    except OSError as error:
        raise ValueError(f"{folder} cannot be copied to {local} of {os.uname().nodename} ({error})") from None
    return target


def copy_file(source: Path, target: Path, wanted: str) -> None:
    """Copy a file; ValueError where what was read is not what was written."""
    found = hashlib.sha256()
    # unbuffered: the file is read once, from its beginning to its end, in large pieces
    with source.open("rb", buffering=0) as read, target.open("wb", buffering=0) as write:
        while piece := read.read(CHUNK):
            found.update(piece)
            write.write(piece)
    if found.hexdigest() != wanted:
        raise ValueError(f"{source}, as {os.uname().nodename} reads it, is not what was written: look into that file system")


def refuse_full(folder: str, local: str, sums: Mapping[str, str]) -> None:
    """Raise ValueError where the copy would not fit."""
    needed, free = sum((Path(folder) / name).stat().st_size for name in sums), shutil.disk_usage(local).free
    if needed > free:
        raise ValueError(
            f"{local} of {os.uname().nodename} has {free / 1e9:.1f} GB free, and the weights are {needed / 1e9:.1f} GB: name a "
            "larger folder, or leave policy.engine.local empty"
        )


def problem(act: Callable[..., object], *given: object) -> str:
    """The sentence of the ValueError that a call raises; empty: it raises none."""
    try:
        act(*given)
    except ValueError as error:
        return str(error)
    return ""


def problem_of_local(folder: str, local: str) -> str:
    """Why weights cannot be copied from `folder` into `local` on this machine, in one sentence; empty: they can."""
    try:
        with one_at_a_time(local):
            same = device_of(Path(folder)) == device_of(Path(local))
    except OSError as error:
        return f"{local} of {os.uname().nodename} cannot be written ({error})"
    return f"{local} and {folder} are one file system on {os.uname().nodename}: a copy would spare nothing" if same else ""


def device_of(path: Path) -> int:
    """The file system of a path, or of what it will lie in."""
    return next(one for one in (path, *path.parents) if one.exists()).stat().st_dev


def drop_copies(local: str) -> None:
    """Remove what lies there of weights: the run is over."""
    with one_at_a_time(local):
        _drop(local)


def _drop(local: str) -> None:
    # who has a file of them open reads on
    for path in Path(local).glob(f"{OWN}*"):
        shutil.rmtree(path)


@contextmanager
def one_at_a_time(local: str) -> Iterator[None]:
    """A block that one process of this machine is in; the others wait."""
    Path(local).mkdir(parents=True, exist_ok=True)
    with (Path(local) / "mmrl-weights.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
