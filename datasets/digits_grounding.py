"""Generated grounding data: handwritten digits on a canvas, and "Where is the 7?". No download.

The handwriting is real (scikit-learn's `load_digits`, needs `pip install "mmrl[demo]"`); the pictures are drawn when a prompt
is read, always the same for the same seed. Held-out scenes show other handwriting and other canvases than training scenes.
Licence: the digits are from the UCI repository, CC BY 4.0; the drawing is own code, Apache-2.0.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from mmrl import Box, Prompt
from mmrl.answers.boxes.parsing import format_box
from mmrl.core.ranges import Count, Range, Seed
from mmrl.core.samples import MediaSize
from mmrl.data.drawn.scenes import PlacedDigit, SceneStyle, draw_scene

__all__ = ["load"]


def load(
    split: str = "train",
    size: Count = 4096,
    seed: Seed = 0,
    asked: Sequence[Annotated[int, Range(0, 9)]] = (7,),
    num_distractors: Annotated[int, Range(0, 64)] = 1,
    background: Literal["noise", "photo"] = "noise",
    written: bool = False,
) -> Sequence[Prompt]:
    """Prompts whose answer is a tuple of one pixel box; column `distractors` holds the boxes of the other digits.

    Args:
        split: train or held_out.
        size: the number of prompts.
        seed: another seed gives other scenes of the same kind.
        asked: the digits that are asked for; a picture may show two of them.
        num_distractors: how many other digits a picture shows.
        background: noise or photo.
        written: True: a column `completion` holds the answer as a model is to write it, in thousandths of the picture.

    Raises:
        ValueError: no such split, or digits that cannot be asked for.
    """
    prompts = _Scenes(
        split, size, seed, SceneStyle(asked=tuple(asked), num_distractors=num_distractors, background=background), written
    )
    if size:
        prompts[0]
    return prompts


@dataclass(frozen=True)
class _Scenes(Sequence[Prompt]):
    split: str
    size: int
    seed: int
    style: SceneStyle
    written: bool = False

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
        return Prompt(
            id=f"{self.split}-{self.seed}-{index}",
            text=scene.question,
            media=(scene.image,),
            answer=(_box(scene.asked),),
            columns={"distractors": tuple(map(_box, scene.distractors)), "digit": scene.asked.digit}
            | ({"completion": self._written(_box(scene.asked))} if self.written else {}),
        )

    def _written(self, box: Box) -> str:
        size = MediaSize(*[self.style.side] * 4)
        return f"[{format_box(replace(box.to('norm1000', size), label=None))}]"


def _box(placed: PlacedDigit) -> Box:
    return Box(*placed.corners, "pixel", str(placed.digit))
