"""IoU of the predicted mask with the true one.

    r = |a n b| / |a u b| in pixels; 1 if both are empty

Masks are COCO's run lengths, {"size": [height, width], "counts": text or list}, column by column as everywhere in COCO, or
polygons, {"polygon": [[x1, y1, x2, y2, ...], ...]} in pixels of the picture, whose size must be known. A completion holds its
mask as JSON in the last answer tag (fenced or bare). Runs that do not add up to the size are no mask: what a model writes never
reaches pycocotools' C code unchecked. Text without a mask, or one of another size, scores 0 and is counted (unparsed,
wrong_size).

Modality: text
Range: [0, 1]
Source: cocodataset/cocoapi
Licence: own code Apache-2.0; pycocotools BSD-2-Clause
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmrl import Group, Need, Prompt, Scored
from mmrl.answers.block import InTemplate, answer_block, completion_text, strip_fence
from mmrl.answers.masks import NotAMaskError, Size, read_mask
from mmrl.answers.needs import answer
from mmrl.serving.files import import_package


def _true_mask(prompt: Prompt) -> object:
    if not isinstance(prompt.answer, Mapping):
        raise ValueError(f"the answer of prompt {prompt.id!r} is {prompt.answer!r:.80}: this reward needs a mask")
    return prompt.answer


@dataclass(frozen=True)
class MaskIou(InTemplate):
    """IoU of masks. A prompt without an answer gets None; an answer that is no mask is an error."""

    needs = Need("a mask as answer", answer(_true_mask), package="pycocotools")

    pointwise = True

    def __call__(self, group: Group) -> list[float | Scored | None]:
        if group.prompt.answer is None:
            return [None] * len(group.samples)
        tools = import_package("pycocotools.mask")
        sizes = {(size.height, size.width) for sample in group.samples for size in sample.media_sizes[:1]}
        try:
            size, runs = read_mask(group.prompt.answer, min(sizes, default=None), tools)
        except NotAMaskError as error:
            raise ValueError(f"the answer of prompt {group.prompt.id!r} is no mask: {error}") from None
        return self.score_each(group, lambda sample: self._score(completion_text(group.prompt, sample), size, runs, tools))

    def _score(self, text: str, size: Size, truth: Any, tools: Any) -> Scored:
        try:
            found, runs = read_mask(json.loads(strip_fence(answer_block(text))), size, tools)
        except (NotAMaskError, ValueError, RecursionError):
            return _score_of(0.0, unparsed=1.0)
        if found != size:
            return _score_of(0.0, wrong_size=1.0)
        if not tools.area(runs) and not tools.area(truth):
            return _score_of(1.0)
        return _score_of(float(tools.iou([runs], [truth], [0])[0][0]))


def _score_of(value: float, **parts: float) -> Scored:
    return Scored(value, {"unparsed": 0.0, "wrong_size": 0.0, **parts})
