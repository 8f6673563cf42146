"""Lets the model look closer: it names a box, and is shown that part of the picture, cut from the original file.

A call is `<tool_call>{"name": "zoom", "arguments": {"bbox_2d": [x1, y1, x2, y2], "image": 0}}</tool_call>`, or the four numbers
alone; `image` counts the pictures of the prompt, then the parts that were shown, and may be left out. A turn without a call is
the answer. A call that cannot be followed is answered by what is wrong with it.

Facts: tool (1 for a part that was shown), error (1 for a call that could not be followed), area (share of the picture).

Source: the crop of DeepEyes (arXiv:2505.14362): parts are clipped to the picture, and tiny or extreme ones refused
Licence: own code Apache-2.0
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from mmrl import Observation, Prompt, Turn
from mmrl.answers.boxes.box import Space
from mmrl.answers.calls import Call, CallError, parse_call
from mmrl.core.samples import kind_of
from mmrl.data.files.pictures import open_picture
from mmrl.data.tools.foreign import mistake
from mmrl.data.tools.pictures import zoom


@dataclass(frozen=True)
class Zoom:
    """Shows parts of a prompt's pictures."""

    space: Space | Literal["auto"] = "auto"
    """How the model writes boxes; auto: as the run's policy does."""
    words: str = "Your answer?"
    """The text behind the part that is shown."""

    def open(self, prompt: Prompt, seed: int, /) -> "_Pictures":
        return _Pictures(self, [open_picture(media) for media in prompt.media])

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raise ValueError for prompts without a picture, or with clips."""
        for prompt in prompts:
            if not prompt.media or any(kind_of(media).name != "image" for media in prompt.media):
                raise ValueError(f"prompt {prompt.id!r} shows no picture alone, and zoom cuts parts of pictures: leave it out")


@dataclass
class _Pictures:
    zoom: Zoom
    pictures: list[Any] = field(default_factory=list[Any])

    def step(self, turn: Turn, /) -> Observation | None:
        try:
            call = parse_call(turn.text, "tags", ("zoom", "bbox_2d"))
            return None if call is None else self._cut(call, turn)
        except CallError as error:
            return mistake(error)

    def close(self) -> None:
        self.pictures.clear()

    def _cut(self, call: Call, turn: Turn) -> Observation:
        if call.name != "zoom":
            raise CallError("there is one tool, zoom")
        index = int(call.numbers("image", 1)[0]) if "image" in call.arguments else 0
        if not 0 <= index < len(self.pictures):
            raise CallError(f"zoom has the images 0 to {len(self.pictures) - 1}")
        picture, (x1, y1, x2, y2) = self.pictures[index], call.numbers("bbox_2d", 4)
        size = turn.shown[index] if index < len(turn.shown) else None
        space = "norm1000" if self.zoom.space == "auto" else self.zoom.space
        part = zoom(picture, (x1, y1, x2, y2), space, size)
        self.pictures.append(part)
        area = part.width * part.height / (picture.width * picture.height)
        return Observation(f"<image>\n{self.zoom.words}", (part,), facts={"tool": 1.0, "area": area})
