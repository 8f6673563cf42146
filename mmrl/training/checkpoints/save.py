"""Checkpoints of a run: written in the background, with older ones to go back to if the last is damaged.

Each is a folder: files written and synced under another name, checksums in a manifest, renamed when whole.
"""

import hashlib
import json
import logging
import math
import os
import pickle
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from mmrl.core.protocols import State
from mmrl.core.ranks import Ranks
from mmrl.core.types import Batch
from mmrl.runtime.disk import sha256_of
from mmrl.runtime.net.secrets import hide_in_json
from mmrl.runtime.spans import in_span
from mmrl.training.checkpoints.state import copy_state

log = logging.getLogger("mmrl")
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
            whole = sorted(sorted(one.parent.name for one in folder.parent.glob("step-*[0-9]/manifest.json")), key=len)
            there = f"take one of {', '.join(whole)}" if whole else "there is none beside it"
            raise CheckpointError(f"{folder} has no manifest.json: it is not a whole checkpoint; {there}")
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


class Writer:
    """Runs one job at a time in a thread that the program waits for before it ends."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self.error = ""
        """What went wrong since this was last emptied."""

    def start(self, job: Callable[[], None]) -> None:
        self.wait()
        self._thread = threading.Thread(target=self.run, args=(job,), name="checkpoint")
        self._thread.start()

    def run(self, job: Callable[[], None]) -> None:
        """Run the job in this thread."""
        try:
            job()
        except CheckpointError as error:
            self.error = str(error)

    def wait(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None


class Pace:
    """Lets a killed run lose no more than some seconds of work."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.clock = seconds, clock
        self._saved = self._looked = clock()

    def note(self) -> None:
        """The run is saved as it is."""
        self._saved = self.clock()

    def is_late(self) -> bool:
        """To be asked after every step: would more be lost at the end of the next one, if it takes as long as this one?"""
        now, before = self.clock(), self._looked
        self._looked = now
        return now - self._saved + now - before > self.seconds


@dataclass(frozen=True)
class Checkpoints:
    """The folder `checkpoints/` of a run, with one folder `step-N` per checkpoint."""

    folder: Path
    keep: int = 2
    """Newest checkpoints to keep; 0 = all."""
    keep_every: int = 0
    """Checkpoints of steps that this divides stay for good; 0 = none."""
    keep_best: str = ""
    """A metric, higher being better, such as eval/total: the checkpoint with the best value is kept while it is the best."""
    asynchronous: bool = False
    """Written by a thread: the run waits for the copy of its state only, and for the write before, if that still goes on."""
    pace: Pace | None = None
    """None: time asks for no checkpoint."""
    _writer: Writer = field(default_factory=Writer, init=False, compare=False, repr=False)

    @in_span("checkpoint")
    def save(
        self, step: int, state: State, ranks: Ranks, metrics: Mapping[str, float] | None = None, final: bool = False
    ) -> Path:
        """Write `state` as step-N; older ones go only when this one is safe on disk. Every rank must call it.

        A failed write in the background is a warning, and the next checkpoint is then written while the run waits.

        Args:
            metrics: what the run measured at this step, for `keep_best`.
            final: on disk when this returns; nothing is done if a whole checkpoint of this step is there already.

        Raises:
            CheckpointError: it cannot be written; says how much room there is and which checkpoints are left.
        """
        if self.pace is not None:
            self.pace.note()
        failed = self._save(step, state, self._scores(metrics or {}), final) if ranks.is_main else ""
        for message in ranks.gather(failed):
            if message:
                raise CheckpointError(message)
        return self._path(step)

    def is_late(self) -> bool:
        """Is it time for a checkpoint, by the clock? To be asked after every step."""
        return self.pace is not None and self.pace.is_late()

    def wait(self) -> None:
        """Wait for the write in progress, if there is one."""
        self._writer.wait()

    def close(self) -> None:
        """Wait for the write in progress; say so if `keep_best` has kept nothing."""
        self._writer.wait()
        whole = [step for step in self.steps() if looks_whole(self._path(step))] if self.keep_best else []
        if whole and self._best(whole) is None:
            log.warning(
                "no checkpoint is kept for its %s: it was never measured at a step that was saved; let save_every divide "
                "evaluate_every",
                self.keep_best,
            )

    def steps(self) -> list[int]:
        """Steps that have a checkpoint folder, oldest first, damaged ones included."""
        if not self.folder.is_dir():
            return []
        names = [path.name.removeprefix("step-") for path in self.folder.iterdir() if path.name.startswith("step-")]
        return sorted(int(name) for name in names if name.isdigit())

    def newest_whole(self) -> int | None:
        """The newest step whose checkpoint has all its files, by their names and sizes alone; None if there is none."""
        return max((step for step in self.steps() if looks_whole(self._path(step))), default=None)

    def load(self, step: int | None = None) -> State:
        """The state of `step`, or of the newest whole checkpoint. Changes nothing on disk.

        Raises CheckpointError where none is there, or the one asked for is damaged.
        """
        if step is not None and step not in self.steps():
            there = ", ".join(map(str, self.steps())) or "none"
            raise CheckpointError(f"{self.folder} has no checkpoint of step {step} (there: {there})")
        step, listed = (step, verify(self._path(step))) if step is not None else self._newest()
        return read(self._path(step), listed)

    def recover(self) -> int | None:
        """The step of the newest whole checkpoint, from which a run can go on; None if none was ever finished.

        What a killed process left is cleared away, and newer ones that are damaged are set aside as `step-N.damaged`, so that
        they count for nothing. To be called by one process.

        Raises:
            CheckpointError: there are checkpoints, and all of them are damaged.
        """
        tidy(self.folder)
        if not self.steps():
            return None
        newest, _ = self._newest()
        for step in self.steps():
            if step > newest:
                aside = self.folder / f"step-{step}.damaged"
                shutil.rmtree(aside, ignore_errors=True)
                self._path(step).rename(aside)
        return newest

    def load_whole(self, step: int) -> State:
        """The state of a step that `recover` has named; its checksums are not looked at again."""
        return read(self._path(step), Manifest.read(self._path(step)))

    def save_wreck(self, step: int, batch: Batch) -> Path:
        """Save what is needed to investigate a step that gave NaN."""
        folder = self.folder / f"wreck-step-{step}"
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {"advantages": batch.advantages, "share": batch.share, "importance": batch.importance}
        tensors["action_mask"] = batch.rollouts.action_mask
        tensors |= {
            f"frozen/{'-'.join(str(part) for part in reading if part is not None)}": x for reading, x in batch.frozen.items()
        }
        torch.save(tensors, folder / "batch.pt")
        texts = [{"prompt": group.prompt.id, "completion": sample.text} for group, sample in batch.rollouts.samples()]
        (folder / "rows.json").write_text(json.dumps(hide_in_json(texts), indent=1))
        return folder

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step}"

    def _newest(self) -> tuple[int, Manifest]:
        for step in reversed(self.steps()):
            try:
                return step, verify(self._path(step))
            except OtherFormatError:
                raise
            except CheckpointError as error:
                log.warning("%s; trying the one before", error)
        raise CheckpointError(f"no whole checkpoint in {self.folder}: start again without --resume, in another output folder")

    def _scores(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """The number this step is kept by; CheckpointError where the run evaluated, and has no such number."""
        if not self.keep_best or not metrics:
            return {}
        measured = [name for name in metrics if name.split("/")[0] == self.keep_best.split("/")[0]]
        if measured and self.keep_best not in metrics:
            raise CheckpointError(f"checkpoint.keep_best is {self.keep_best!r}; this run measures {', '.join(sorted(measured))}")
        value = float(metrics.get(self.keep_best, math.nan))
        return {self.keep_best: value} if math.isfinite(value) else {}

    def _save(self, step: int, state: State, scores: Mapping[str, float], final: bool) -> str:
        """Save, and return the error, if there was one."""
        self._writer.wait()
        failed_before, self._writer.error = bool(self._writer.error), ""
        if final and looks_whole(self._path(step)):
            return ""
        own = copy_state(state)
        if self.asynchronous and not final and not failed_before:
            self._writer.start(lambda: self._write(step, own, scores, in_background=True))
            return ""
        self._writer.run(lambda: self._write(step, own, scores))
        failed, self._writer.error = self._writer.error, ""
        return failed

    def _write(self, step: int, state: State, scores: Mapping[str, float], in_background: bool = False) -> None:
        try:
            write(self._path(step), step, state, scores)
        except Exception as error:
            message = self._failure(step, error)
            if in_background:
                log.warning("%s. The run goes on and tries again at the next checkpoint", message)
            raise CheckpointError(message) from error
        try:
            self._retire()
        except OSError as error:
            log.warning("an old checkpoint in %s could not be deleted: %s", self.folder, error)

    def _failure(self, step: int, error: Exception) -> str:
        place = next(path for path in (self.folder, *self.folder.parents) if path.exists())
        free = shutil.disk_usage(place).free
        left = [str(one) for one in self.steps() if looks_whole(self._path(one))]
        older = f"the checkpoints of steps {', '.join(left)} are untouched" if left else "there is no older one"
        return (
            f"checkpoint {self._path(step)} could not be written ({type(error).__name__}: {error}; {free} bytes are free there); "
            f"{older}: make room, or set checkpoint.keep or save_every so that less is kept"
        )

    def _retire(self) -> None:
        """Delete checkpoints that no setting keeps; damaged ones count for none of the settings and are deleted too."""
        whole = [step for step in self.steps() if looks_whole(self._path(step))]
        if not self.keep or not whole:
            return
        kept = set(whole[-self.keep :]) | {self._best(whole)}
        for step in self.steps():
            for_good = self.keep_every > 0 and step % self.keep_every == 0 and step in whole
            if step not in kept and not for_good and step < whole[-1]:
                delete(self._path(step))

    def _best(self, steps: list[int]) -> int | None:
        """The earliest of those with the highest score."""
        scored = [(Manifest.read(self._path(step)).scores.get(self.keep_best), -step) for step in steps] if self.keep_best else []
        known = [(score, back) for score, back in scored if score is not None]
        return -max(known)[1] if known else None
