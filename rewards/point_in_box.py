"""Is the predicted centre inside the true box (GUI-G1), and does the predicted box have the right size?

    r = hit + iou_coef * IoU + size_coef * 4 / sum over corners c of 1 / (1 - |c - c*| / side)

hit: the centre of the predicted box lies in the true one, edges included. side: the picture's width for x1 and x2, its height
for y1 and y2. Of several boxes the best counts, divided by their number. The coefficients are those of GUI-G1's
public code; with iou_coef = size_coef = 0 only the hit counts. A bare `{"bbox_2d": ..}`, which scores 0 there, is read here.

Modality: text
Range: [0, 1 + iou_coef + size_coef]
Source: GUI-G1, arXiv:2505.15810
Licence: own code Apache-2.0
"""

from dataclasses import dataclass

from mmrl import Box, Need, Scored
from mmrl.answers.boxes.attempts import Attempt, OfBoxes, true_boxes
from mmrl.answers.boxes.box import iou
from mmrl.answers.boxes.detection import point_in_box
from mmrl.answers.needs import answer
from mmrl.runtime.ranges import Number


@dataclass(frozen=True)
class PointInBox(OfBoxes):
    """Hit, plus shares of IoU and of closeness of the corners. Text without a readable box scores 0 and is counted."""

    iou_coef: Number = 0.25
    """Added to the hit for an IoU of 1, in proportion for less."""
    size_coef: Number = 0.125
    """Above 0 needs the picture's size, unless the space is norm1000 or norm1."""
    points: bool = False
    """True: a text that names no box but one point is scored by the hit of that point."""
    needs = Need("a true box as answer", answer(true_boxes))

    @property
    def asks_points(self) -> bool:
        """Does a point earn as much as a box?"""
        return self.points and not (self.iou_coef or self.size_coef)

    def score(self, attempt: Attempt) -> Scored:
        parts = attempt.parts()
        hit = attempt.best(lambda box, truth: float(point_in_box(box.center, truth)))
        if self.points and len(attempt.points) == 1:
            hit, parts["unparsed"] = float(point_in_box(attempt.points[0], attempt.only_truth)), 0.0
        overlap = attempt.best(iou)
        corners = attempt.best(lambda box, truth: _corner_closeness(box, truth, attempt)) if self.size_coef else 0.0
        value = hit + self.iou_coef * overlap + self.size_coef * corners
        return Scored(value, {"hit": hit, "iou": overlap, "acc50": float(overlap >= 0.5), "corners": corners, **parts})


def _corner_closeness(box: Box, truth: Box, attempt: Attempt) -> float:
    """Harmonic mean over the four corners of 1 - |distance| / side; 0 where a corner is a whole side off."""
    if attempt.extent is None:
        raise ValueError(f"prompt {attempt.prompt_id!r}: size_coef needs the picture's size: give the sample its media_sizes")
    shares = [1 - abs(a - b) / side for a, b, side in zip(box.corners, truth.corners, attempt.extent * 2, strict=True)]
    return 4 / sum(1 / share for share in shares) if min(shares) > 0 else 0.0
