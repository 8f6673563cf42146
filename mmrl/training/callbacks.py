"""Callbacks of a run, called on its main process: for steps and evaluations at once, for checkpoints when whole on disk."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mmrl.core.protocols import Callback
from mmrl.core.types import Examples


class Callbacks:
    """Hands everything to each of several callbacks, in order; a callback itself."""

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
        """A checkpoint has been asked for; callbacks hear of it once it is whole."""
        self._unfinished[step] = folder

    def look_for_checkpoints(self, *, settled: bool = False) -> None:
        """Tell of those that are whole by now; with `settled` nothing is written any more, and what is not whole failed."""
        for step, folder in list(self._unfinished.items()):
            whole = self.is_whole(folder)
            if whole or settled:
                del self._unfinished[step]
            if whole:
                self.after_checkpoint(step, folder)

    def close(self) -> None:
        """Close all of them, though one may fail."""
        failed: Exception | None = None
        for callback in self.callbacks:
            try:
                callback.close()
            except Exception as error:  # noqa: BLE001 - raised below, once the others are closed
                failed = failed or error
        if failed is not None:
            raise failed
