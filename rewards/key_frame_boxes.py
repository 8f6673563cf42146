"""Does the answer name the frame that shows the objects best, and box them there?

    r = |masks of the frame| / the same of the largest frame  +  sum of matched IoU / max(predicted, true) in that frame

A completion holds {"keyframe_id": 2, "bbox_2d_list": [[x1, y1, x2, y2], ...]} in its last answer tag (fenced or bare); frames
count from 0, as in the column. True boxes lie around the masks, their last pixel included. A frame without an object scores 0
in both terms. Masks are written as for `mask_iou`, and what is no mask is an error.

Modality: text
Range: [0, 2]
Source: Veason-R1, arXiv:2508.11538, without its last term, the IoU of masks that SAM 2 makes of the boxes for all frames
Licence: own code Apache-2.0; pycocotools BSD-2-Clause
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from mmrl import Group, Need, Prompt, Scored
from mmrl.answers.block import InTemplate, answer_object, completion_text
from mmrl.answers.boxes.attempts import AnySpace, named_space
from mmrl.answers.boxes.box import Box, Space, is_inside
from mmrl.answers.boxes.detection import mean_iou
from mmrl.answers.boxes.parsing import parse_boxes
from mmrl.answers.masks import NotAMaskError, read_mask
from mmrl.core.samples import MediaSize
from mmrl.serving.files import import_package


class _Frame(NamedTuple):
    area: float
    """Pixels of the masks together."""
    boxes: tuple[Box, ...]
    size: MediaSize | None


@dataclass(frozen=True)
class KeyFrameBoxes(InTemplate):
    """Share of the largest area, plus mean IoU of the boxes. Text without a frame scores 0 and is counted; no masks get None."""

    space: AnySpace = "auto"
    """Space in which the model writes; auto = the one of the policy's family."""
    column: str = "masks"
    """The column with the masks."""
    needs = Need("the column masks, a list of masks per frame", lambda p, r, _: p.columns.get(r.column), package="pycocotools")

    pointwise = True

    def __call__(self, group: Group) -> list[float | Scored | None]:
        space = named_space(self.space)
        if group.prompt.columns.get(self.column) is None:
            return [None] * len(group.samples)
        sizes = max((sample.media_sizes for sample in group.samples), key=len, default=())
        frames = _frames(group.prompt, self.column, sizes)
        return self.score_each(group, lambda sample: self._score(completion_text(group.prompt, sample), frames, space))

    def _score(self, text: str, frames: Sequence[_Frame], space: Space) -> Scored:
        named = answer_object(text).get("keyframe_id")
        if not isinstance(named, int) or isinstance(named, bool):
            return _score_of(unparsed=1.0)
        if not 0 <= named < len(frames) or not frames[named].area:
            return _score_of()
        frame = frames[named]
        share = frame.area / max(one.area for one in frames)
        boxes = tuple(dict.fromkeys(parse_boxes(text, space)))
        if (frame.size is not None or space not in ("pixel", "resized")) and not all(is_inside(b, frame.size) for b in boxes):
            return _score_of(frame=share, outside=1.0)
        common = space if frame.size is None else "pixel"
        predicted, truth = ([b.to(common, frame.size) for b in some] for some in (boxes, frame.boxes))
        return _score_of(frame=share, boxes=mean_iou(predicted, truth))


def _frames(prompt: Prompt, column: str, sizes: Sequence[MediaSize]) -> list[_Frame]:
    """Each frame's masks, read; the pictures' sizes are one for each frame, or that of the clip."""
    tools, found = import_package("pycocotools.mask"), list[_Frame]()
    for i, masks in enumerate(prompt.columns[column]):
        size = sizes[i if i < len(sizes) else 0] if sizes else None
        seen = None if size is None else (size.height, size.width)
        try:
            read = [read_mask(mask, seen, tools) for mask in masks]
        except (NotAMaskError, TypeError) as error:
            raise ValueError(f"frame {i} in column {column!r} of prompt {prompt.id!r} holds no masks: {error}") from None
        if len({seen or read[0][0], *(one for one, _ in read)} if read else ()) > 1:
            raise ValueError(f"masks of frame {i} in column {column!r} of prompt {prompt.id!r} have other sizes than its picture")
        runs: list[Any] = [one for _, one in read if tools.area(one)]
        corners = [[float(x) for x in tools.toBbox(one)] for one in runs]
        boxes = tuple(Box(x, y, x + width, y + height) for x, y, width, height in corners)
        found.append(_Frame(float(tools.area(tools.merge(runs))) if runs else 0.0, boxes, size))
    return found


def _score_of(frame: float = 0.0, boxes: float = 0.0, **parts: float) -> Scored:
    return Scored(frame + boxes, {"frame": frame, "boxes": boxes, "unparsed": 0.0, "outside": 0.0, **parts})
