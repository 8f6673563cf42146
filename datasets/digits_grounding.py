"""Generated grounding data: handwritten digits on a canvas, and "Where is the 7?". No download.

The handwriting is real (scikit-learn's `load_digits`, needs `pip install "mmrl[demo]"`); the pictures are drawn when a prompt
is read, always the same for the same seed. Held-out scenes show other handwriting and other canvases than training scenes.
Licence: the digits are from the UCI repository, CC BY 4.0; the drawing is own code, Apache-2.0.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import numpy as np

from mmrl import Box, Prompt
from mmrl.answers.boxes.parsing import format_box
from mmrl.core.samples import MediaSize
from mmrl.data.drawn.scenes import PlacedDigit, Scene, SceneStyle, draw_scene
from mmrl.runtime.ranges import Count, PositiveShare, Range, Seed

__all__ = ["load"]
Written = Literal["", "right", "hurried"]
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
    written: Written = "",
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
    prompts = _Scenes(split, size, seed, style, written, shown)
    if size:
        prompts[0]
    return prompts


@dataclass(frozen=True)
class _Scenes(Sequence[Prompt]):
    split: str
    size: int
    seed: int
    style: SceneStyle
    written: Written = ""
    shown: float = 1.0

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.size))]
        if not -self.size <= index < self.size:
            raise IndexError(f"prompt {index} of {self.size}")
        return self._prompt(index % self.size)

    def _prompt(self, index: int) -> Prompt:
        scene = draw_scene(self.seed, index, self.split, self.style)
        side = round(self.shown * self.style.side)
        share = side / self.style.side
        picture = scene.image if share == 1 else scene.image.resize((side, side))
        return Prompt(
            id=f"{self.split}-{self.seed}-{index}",
            text=scene.question,
            media=(picture,),
            answer=(_box(scene.asked, share),),
            columns={"distractors": tuple(_box(one, share) for one in scene.distractors), "digit": scene.asked.digit}
            | ({"completion": self._written(scene, index)} if self.written else {})
            | ({} if share == 1 else {"full": scene.image}),
        )

    def _written(self, scene: Scene, index: int) -> str:
        """An annotator's answer, the same at every reading of the prompt."""
        loosen, confused = (LOOSEN, CONFUSED) if self.written == "hurried" else (0.0, 0.0)
        rng, side = np.random.default_rng([self.seed, index, 1]), self.style.side
        is_wrong = scene.distractors and rng.random() < confused
        digit = scene.distractors[rng.integers(len(scene.distractors))] if is_wrong else scene.asked
        x1, y1, x2, y2 = digit.corners
        left, top, right, bottom = rng.uniform(0, loosen, 4) * ([x2 - x1, y2 - y1] * 2)
        box = Box(max(0.0, x1 - left), max(0.0, y1 - top), min(side, x2 + right), min(side, y2 + bottom))
        return f"[{format_box(box.to('norm1000', MediaSize(*[side] * 4)))}]"


def _box(placed: PlacedDigit, share: float = 1.0) -> Box:
    x1, y1, x2, y2 = (share * x for x in placed.corners)
    return Box(x1, y1, x2, y2, "pixel", str(placed.digit))
