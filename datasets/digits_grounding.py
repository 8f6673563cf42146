"""Generated grounding data: handwritten digits on a canvas, and "Where is the 7?". No download.

The handwriting is real (scikit-learn's `load_digits`, needs `pip install "mmrl[demo]"`); the pictures are drawn when a prompt
is read, always the same for the same seed. Held-out scenes show other handwriting and other canvases than training scenes.
Licence: the digits are from the UCI repository, CC BY 4.0; the drawing is own code, Apache-2.0.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

from mmrl import Box, Prompt
from mmrl.core.ranges import Count, CountOrNone, Range, Seed
from mmrl.data.built import Built
from mmrl.data.drawn.scenes import PlacedDigit, Scene, SceneStyle, draw_scene

__all__ = ["load"]


def load(
    split: str = "train",
    size: Count = 4096,
    seed: Seed = 0,
    asked: Sequence[Annotated[int, Range(0, 9)]] = (7,),
    num_distractors: CountOrNone = 1,
    background: Literal["noise", "photo"] = "noise",
) -> Sequence[Prompt]:
    """Prompts whose answer is a tuple of one pixel box; column `distractors` holds the boxes of the other digits.

    Args:
        split: train or held_out.
        size: the number of prompts.
        seed: another seed gives other scenes of the same kind.
        asked: the digits that are asked for; a picture may show two of them.
        num_distractors: how many other digits a picture shows.
        background: noise or photo.

    Raises:
        ValueError: no such split, or digits that cannot be asked for.
    """
    style = SceneStyle(asked=tuple(asked), num_distractors=num_distractors, background=background)
    prompts = Built(size, lambda i: _prompt(f"{split}-{seed}-{i}", draw_scene(seed, i, split, style)))
    if size:
        prompts[0]
    return prompts


def _prompt(name: str, scene: Scene) -> Prompt:
    columns = {"distractors": tuple(map(_box, scene.distractors)), "digit": scene.asked.digit}
    return Prompt(name, scene.question, (scene.image,), (_box(scene.asked),), columns)


def _box(placed: PlacedDigit) -> Box:
    return Box(*placed.corners, "pixel", str(placed.digit))
