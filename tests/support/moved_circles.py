"""The demo of edits made small: circles of four colours on 16 x 16 pixels, and "move it to the ..." alone.

A data set for configs, `load`, and `Moves`, from which a tiny editor learns the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mmrl import Prompt
from mmrl.app.plugins.resolve import load as load_plug_in
from mmrl.data.drawn.shape_edits import TRAIN, Edits, Task

__all__ = ["load"]
SIDE = 16
SHAPE_EDITS = Path(__file__).parents[2] / "datasets" / "shape_edits.py"


@dataclass(frozen=True)
class Moves(Edits):
    """Circles that are to be moved; half of the targets are moved elsewhere, half are stained."""

    side: int = SIDE

    @property
    def tasks(self) -> Sequence[Task]:
        return tuple(task for task in TRAIN if task.state.shape == "circle" and task.instruction.part == "side")


def load(split: str = "train", times: int = 4, seed: int = 0) -> list[Prompt]:
    """Those prompts of the data set `shape_edits`: 36 to train on, 12 held out, each so often."""
    every = load_plug_in(str(SHAPE_EDITS), "datasets")(split, times=times, side=SIDE, seed=seed)
    return [prompt for prompt in every if prompt.columns["shape"] == "circle" and prompt.columns["part"] == "side"]
