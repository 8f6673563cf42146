"""One checkpoint as a folder: files written and synced under another name, checksums in a manifest, renamed when whole."""

import hashlib
import json
import os
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from mmrl.core.protocols import State
from mmrl.runtime.disk import sha256_of

FORMAT = 3
"""Incremented whenever earlier states can no longer be read."""
LARGE = ("policy", "optimizer")
"""Parts of a state with a file of their own; all others share `rest.pt`."""
REST = "rest.pt"
PARTIAL = ".partial"
"""Ends the name of a folder that is being written."""
REPLACED = ".replaced"
"""Ends the name of a folder that is being deleted."""


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged or cannot be written; the message names the folder and the remedy."""


class OtherFormatError(CheckpointError):
    """A complete checkpoint that another version of mmrl wrote; earlier ones will not help either."""


@dataclass(frozen=True)
class Manifest:
    """manifest.json: what belongs to a checkpoint, and how to tell that it is complete."""

    step: int
    sha256: Mapping[str, str]
    """By file name."""
    bytes: Mapping[str, int]
    scores: Mapping[str, float] = field(default_factory=dict[str, float])
    """The metrics of this step by which checkpoints are chosen."""
    format: int = FORMAT

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Raises CheckpointError when there is none, or it is not readable."""
        file = folder / "manifest.json"
        if not file.is_file():
            raise CheckpointError(f"{folder} has no manifest.json: it is not a whole checkpoint")
        try:
            listed: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            sha256 = {Path(name).name: str(digest) for name, digest in listed["sha256"].items()}
            sizes = {Path(name).name: int(size) for name, size in listed.get("bytes", {}).items()}
            return cls(int(listed["step"]), sha256, sizes, listed.get("scores", {}), int(listed["format"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{file} is damaged ({type(error).__name__}: {error})") from None


class Hashed:
    """A file opened for writing that knows its checksum and the first error of writing it."""

    def __init__(self, path: Path) -> None:
        self.stream = path.open("wb")
        self.hash, self.size = hashlib.sha256(), 0
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        view = memoryview(data)
        try:
            self.stream.write(view)
        except OSError as error:
            # torch ends its archive all the same and hides this error behind one of its own
            self.error = self.error or error
            raise
        self.hash.update(view)
        self.size += view.nbytes
        return view.nbytes

    def flush(self) -> None:
        self.stream.flush()

    def finish(self) -> None:
        """Flush and sync: the file is on disk when this returns."""
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.stream.close()


def write(folder: Path, step: int, state: State, scores: Mapping[str, float]) -> None:
    """Write the state as `folder`, which appears complete or not at all; what was there before is gone when this returns.

    Raises OSError where the disk is full or broken; nothing of the attempt is left.
    """
    partial = folder.with_name(folder.name + PARTIAL)
    try:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        files = {f"{name}.pt": state[name] for name in LARGE if name in state}
        files[REST] = {name: part for name, part in state.items() if name not in LARGE}
        written = {name: write_part(partial / name, part) for name, part in files.items()}
        digests, sizes = {name: pair[0] for name, pair in written.items()}, {name: pair[1] for name, pair in written.items()}
        manifest = Hashed(partial / "manifest.json")
        manifest.write(json.dumps(asdict(Manifest(step, digests, sizes, scores)), indent=1).encode())
        manifest.finish()
        sync(partial)
        put_in_place(partial, folder)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def write_part(path: Path, part: Any) -> tuple[str, int]:
    """Checksum and size of the file."""
    file = Hashed(path)
    try:
        torch.save(part, file)  # pyright: ignore[reportArgumentType] - it asks for write and flush only
        file.finish()
    except RuntimeError as error:
        raise file.error or error from None
    finally:
        file.stream.close()
    return file.hash.hexdigest(), file.size


def put_in_place(partial: Path, folder: Path) -> None:
    """Give a written folder its name; a folder that had the name stays until then, and `tidy` finds it if this is interrupted."""
    old = folder.with_name(folder.name + REPLACED)
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    partial.rename(folder)
    sync(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def delete(folder: Path) -> None:
    """Delete a folder, renamed first so that none with a checkpoint's name is ever half deleted."""
    old = folder.with_name(folder.name + REPLACED)
    shutil.rmtree(old, ignore_errors=True)
    folder.rename(old)
    shutil.rmtree(old)


def tidy(folder: Path) -> None:
    """Clear away what a killed process left: half-written folders, and half-deleted ones unless they are the only copy."""
    for path in folder.glob(f"*{PARTIAL}"):
        shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(f"*{REPLACED}"):
        original = path.with_name(path.name.removesuffix(REPLACED))
        if not original.exists() and looks_whole(path):
            path.rename(original)
        else:
            shutil.rmtree(path, ignore_errors=True)


def looks_whole(folder: Path) -> bool:
    """True if all files are there and have their sizes. Checksums are not compared."""
    try:
        listed = Manifest.read(folder)
        return all((folder / name).is_file() for name in listed.sha256) and all(
            (folder / name).stat().st_size == size for name, size in listed.bytes.items()
        )
    except (CheckpointError, OSError):
        return False


def verify(folder: Path) -> Manifest:
    """Raises CheckpointError, naming what is missing or damaged, or that another version wrote it."""
    listed = Manifest.read(folder)
    if listed.format != FORMAT:
        raise OtherFormatError(
            f"{folder} was written by another version of mmrl (checkpoint format {listed.format}, this one reads {FORMAT}): "
            "continue or export that run with the version that began it, or start a new one"
        )
    for name, expected in listed.sha256.items():
        path = folder / name
        try:
            found = sha256_of(path) if path.is_file() else None
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error}") from None
        if found != expected:
            raise CheckpointError(f"{path} is missing or damaged (its checksum differs from manifest.json)")
    return listed


def read(folder: Path, listed: Manifest) -> State:
    """The state a whole folder holds; of tensors, numbers and texts only, never of pickled objects."""
    state: State = {}
    for name in listed.sha256:
        try:
            part = torch.load(folder / name, weights_only=True)
        except pickle.UnpicklingError:
            raise CheckpointError(
                f"{folder / name} holds more than tensors, numbers and texts, which mmrl never writes and never loads: it may "
                "run code, so take a checkpoint that you know"
            ) from None
        state |= part if name == REST else {name.removesuffix(".pt"): part}
    return state


def sync(folder: Path) -> None:
    """Bring the folder's names to disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
