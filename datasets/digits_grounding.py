"""Generated grounding data: handwritten digits on a canvas, and "Where is the 7?". No download.

The handwriting is real (scikit-learn's `load_digits`, needs `pip install "mmrl[demo]"`); the pictures are drawn when a prompt
is read, always the same for the same seed. Held-out scenes show other handwriting and other canvases than training scenes.
Licence: the digits are from the UCI repository, CC BY 4.0; the drawing is own code, Apache-2.0.
"""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np

from mmrl import Box, Prompt
from mmrl.answers.boxes.parsing import format_box
from mmrl.core.samples import MediaSize
from mmrl.data.drawn.scenes import PlacedDigit, Scene, SceneStyle, draw_scene
from mmrl.data.sources import lazily
from mmrl.runtime.ranges import Count, PositiveShare, Range, Seed

__all__ = ["load"]
LOOSEN = 0.4
"""Every side of a hurried box is pushed out by up to this share of the digit's width or height."""
CONFUSED = 0.5
"""Share of hurried boxes that are another digit's."""


def load(
    split: str = "train",
    size: Count = 4096,
    seed: Seed = 0,
    asked: Sequence[Annotated[int, Range(0, 9)]] = (7,),
    num_distractors: Annotated[int, Range(0, 64)] = 1,
    background: Literal["noise", "photo"] = "noise",
    written: Literal["", "right", "hurried"] = "",
    shown: PositiveShare = 1.0,
) -> Sequence[Prompt]:
    """Prompts whose answer is a tuple of one pixel box; column `distractors` holds the boxes of the other digits.

    Args:
        split: train or held_out.
        size: the number of prompts.
        seed: another seed gives other scenes of the same kind.
        asked: the digits that are asked for; a picture may show two of them.
        num_distractors: how many other digits a picture shows.
        background: noise or photo.
        written: right: a column `completion` holds the answer as a model is to write it, in thousandths of the picture. hurried:
            as an annotator in a hurry would: too large, and half of them the box of another digit.
        shown: below 1 the picture is shown at this share of its sides, and a column `full` holds it whole.

    Raises:
        ValueError: no such split, or digits that cannot be asked for.
    """
    style = SceneStyle(asked=tuple(asked), num_distractors=num_distractors, background=background)
    side = round(shown * style.side)
    share = side / style.side

    def prompt(index: int) -> Prompt:
        scene = draw_scene(seed, index, split, style)
        columns: dict[str, Any] = {
            "distractors": tuple(_box(one, share) for one in scene.distractors),
            "digit": scene.asked.digit,
        }
        if written:
            columns["completion"] = _written(scene, np.random.default_rng([seed, index, 1]), style.side, written == "hurried")
        if share != 1:
            columns["full"] = scene.image
        picture = scene.image if share == 1 else scene.image.resize((side, side))
        return Prompt(f"{split}-{seed}-{index}", scene.question, (picture,), (_box(scene.asked, share),), columns)

    return lazily(size, prompt)


def _written(scene: Scene, rng: np.random.Generator, side: int, is_hurried: bool) -> str:
    """An annotator's answer, the same at every reading of the prompt."""
    loosen, confused = (LOOSEN, CONFUSED) if is_hurried else (0.0, 0.0)
    is_wrong = scene.distractors and rng.random() < confused
    digit = scene.distractors[rng.integers(len(scene.distractors))] if is_wrong else scene.asked
    x1, y1, x2, y2 = digit.corners
    left, top, right, bottom = rng.uniform(0, loosen, 4) * ([x2 - x1, y2 - y1] * 2)
    box = Box(max(0.0, x1 - left), max(0.0, y1 - top), min(side, x2 + right), min(side, y2 + bottom))
    return f"[{format_box(box.to('norm1000', MediaSize(*[side] * 4)))}]"


def _box(placed: PlacedDigit, share: float = 1.0) -> Box:
    x1, y1, x2, y2 = (share * x for x in placed.corners)
    return Box(x1, y1, x2, y2, "pixel", str(placed.digit))
