"""Callbacks of a run, called on its main process: for steps and evaluations at once, for checkpoints when whole on disk."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mmrl.core.protocols import Callback
from mmrl.core.types import Examples


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
