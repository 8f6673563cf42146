"""Callbacks of a run, called on its main process: for steps and evaluations at once, for checkpoints when whole on disk."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from mmrl.core.samples import Group
from mmrl.core.types import Scores


@dataclass(frozen=True)
class Examples:
    """Groups and their scores, as callbacks get them."""

    groups: Sequence[Group]
    scores: Scores
    """A row per sample, in the order of groups and their samples; `scores.total()` adds rewards up."""
    parts: Sequence[Mapping[str, float]] = ()
    """Per row, "<reward>/<part>" -> number; empty where they were not kept."""
    also: Mapping[str, "Examples"] = field(default_factory=dict[str, "Examples"])
    """Held-out prompts answered in the further ways of `[[evaluation.also]]`, by their names."""


@runtime_checkable
class Callback(Protocol):
    """Watches a run on its main process: inherit from it and override the methods you need.

    A callback that raises ends the run. Nothing it does may change weights or prompts.
    """

    def after_step(self, step: int, metrics: Mapping[str, float], examples: Examples | None) -> None:
        """A step of training is done: its number from 1 on, its measures, and every `samples_every` steps what was sampled."""

    def after_evaluation(self, step: int, metrics: Mapping[str, float], examples: Examples) -> None:
        """Held-out prompts were scored after step `step`: `eval/...`."""

    def after_checkpoint(self, step: int, folder: Path) -> None:
        """The state after this step is whole on disk; older folders may be gone."""

    def close(self) -> None:
        """The run is over, whether it was finished, stopped or failed."""


class Callbacks:
    """Several callbacks as one: passes everything to each, in order."""

    def __init__(self, callbacks: Sequence[Callback], is_whole: Callable[[Path], bool]) -> None:
        """`is_whole` says whether a checkpoint's folder is complete."""
        self.callbacks, self.is_whole = tuple(callbacks), is_whole
        self._unfinished: dict[int, Path] = {}
        """Checkpoints by step that may still be on their way to disk."""

    def after_step(self, step: int, metrics: Mapping[str, float], examples: Examples | None) -> None:
        self.look_for_checkpoints()
        for callback in self.callbacks:
            callback.after_step(step, metrics, examples)

    def after_evaluation(self, step: int, metrics: Mapping[str, float], examples: Examples) -> None:
        for callback in self.callbacks:
            callback.after_evaluation(step, metrics, examples)

    def after_checkpoint(self, step: int, folder: Path) -> None:
        for callback in self.callbacks:
            callback.after_checkpoint(step, folder)

    def expect_checkpoint(self, step: int, folder: Path) -> None:
        """Note that a checkpoint is being written; callbacks are called once it is whole."""
        self._unfinished[step] = folder

    def look_for_checkpoints(self, *, settled: bool = False) -> None:
        """Call back for the checkpoints that are whole; with `settled` nothing is being written, so missing ones have failed."""
        for step, folder in list(self._unfinished.items()):
            whole = self.is_whole(folder)
            if whole or settled:
                del self._unfinished[step]
            if whole:
                self.after_checkpoint(step, folder)

    def close(self) -> None:
        """Close every callback, even if one fails."""
        failed: Exception | None = None
        for callback in self.callbacks:
            try:
                callback.close()
            except Exception as error:  # noqa: BLE001 - raised below, once the others are closed
                failed = failed or error
        if failed is not None:
            raise failed
