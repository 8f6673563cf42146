"""Checkpoints that are whole or absent: written to a temporary name, synced, renamed, with a manifest of checksums."""

import hashlib
import json
import logging
import os
import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mmrl.core.protocols import State
from mmrl.core.types import Batch
from mmrl.training.distributed import Ranks

log = logging.getLogger("mmrl")
FORMAT = 1


class CheckpointError(ValueError):
    """A checkpoint is missing, damaged or of another kind; the message names the folder and the remedy."""


@dataclass(frozen=True)
class Checkpoints:
    """The folder `checkpoints/` of a run, with one folder `step-N` per checkpoint."""

    folder: Path
    keep: int = 2
    """Newest checkpoints to keep; 0 = all."""

    def save(self, step: int, state: State, ranks: Ranks) -> Path:
        """Write `state` as step-N; older ones go only when this one is safe on disk."""
        target = self.folder / f"step-{step}"
        if ranks.is_main:
            partial = self.folder / f"step-{step}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            for name, part in state.items():
                with (partial / f"{name}.pt").open("wb") as file:
                    torch.save(part, file)
                    file.flush()
                    os.fsync(file.fileno())
            _write_manifest(partial, step)
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
            _sync(self.folder)
            self._retire()
        ranks.wait()
        return target

    def steps(self) -> list[int]:
        """Steps that have a checkpoint folder, oldest first, damaged ones included."""
        if not self.folder.is_dir():
            return []
        names = [path.name.removeprefix("step-") for path in self.folder.iterdir() if path.name.startswith("step-")]
        return sorted(int(name) for name in names if name.isdigit())

    def load(self, step: int | None = None) -> State:
        """The state of `step`, or of the newest whole checkpoint.

        Raises:
            CheckpointError: none is there, or the one asked for is damaged.
        """
        if step is not None:
            return self._read(step)
        for candidate in reversed(self.steps()):
            try:
                return self._read(candidate)
            except CheckpointError as error:
                log.warning("%s; trying the one before", error)
        raise CheckpointError(f"no whole checkpoint in {self.folder}: start again without --resume")

    def save_wreck(self, step: int, batch: Batch) -> Path:
        """Keep what is needed to look at a step that gave NaN."""
        folder = self.folder / f"wreck-step-{step}"
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {"advantages": batch.advantages, "share": batch.share, "importance": batch.importance}
        tensors["action_mask"] = batch.rollouts.action_mask
        tensors |= {f"frozen/{'-'.join(reading)}": x for reading, x in batch.frozen.items()}
        torch.save(tensors, folder / "batch.pt")
        texts = [{"prompt": group.prompt.id, "completion": sample.text} for group, sample in batch.rollouts.samples()]
        (folder / "rows.json").write_text(json.dumps(texts, indent=1))
        return folder

    def _read(self, step: int) -> State:
        folder = self.folder / f"step-{step}"
        manifest = folder / "manifest.json"
        if not manifest.is_file():
            raise CheckpointError(f"{folder} has no manifest.json: it is not a whole checkpoint")
        listed: dict[str, Any] = json.loads(manifest.read_text())
        for name, digest in listed["sha256"].items():
            path = folder / name
            if not path.is_file() or _digest(path) != digest:
                raise CheckpointError(f"{path} is missing or damaged (its checksum differs from manifest.json)")
        return {name.removesuffix(".pt"): torch.load(folder / name, weights_only=True) for name in listed["sha256"]}

    def _retire(self) -> None:
        if self.keep:
            for step in self.steps()[: -self.keep]:
                shutil.rmtree(self.folder / f"step-{step}")


def _write_manifest(folder: Path, step: int) -> None:
    digests = {path.name: _digest(path) for path in sorted(folder.iterdir())}
    text = json.dumps({"format": FORMAT, "step": step, "sha256": digests}, indent=1)
    with (folder / "manifest.json").open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    _sync(folder)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def random_state() -> State:
    """Every global random generator, as plain numbers and tensors."""
    version, internal, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    return {
        "python": [version, list(internal), gauss],
        "numpy": [str(kind), [int(key) for key in keys], int(position), int(has_gauss), float(cached)],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
    }


def set_random_state(state: State) -> None:
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    kind, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((kind, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(state["torch"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
