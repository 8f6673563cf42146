"""Is the IoU of the predicted box with the true one at least a half? A reward that says no more than that."""

from dataclasses import dataclass

from mmrl import Scored
from mmrl.answers.boxes.attempts import Attempt, OfBoxes
from mmrl.answers.boxes.box import iou


@dataclass(frozen=True)
class RightBox(OfBoxes):
    """1 where it is, else 0; the IoU is written down beside it."""

    def score(self, attempt: Attempt) -> Scored:
        value = attempt.best(iou)
        return Scored(float(value >= 0.5), {"iou": value, **attempt.parts()})
