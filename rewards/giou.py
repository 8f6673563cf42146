"""Generalized IoU of the predicted box with the true one, moved into [0, 1].

    r = (1 + IoU - |hull \\ union| / |hull|) / 2, of the best predicted box, divided by the number of predicted boxes

Boxes that do not overlap still get different scores, so that a group of misses still has a best. It is shifted, because text
without a readable box scores 0 and must not beat a bad box.

Modality: text
Range: [0, 1]
Source: arXiv:1902.09630
Licence: own code Apache-2.0
"""

from dataclasses import dataclass

from mmrl import Need, Scored
from mmrl.answers.boxes.attempts import Attempt, OfBoxes, true_boxes
from mmrl.answers.boxes.box import giou, iou
from mmrl.answers.needs import answer


@dataclass(frozen=True)
class Giou(OfBoxes):
    """(1 + GIoU) / 2 with the one true box. Text without a readable box scores 0 and is counted; no answer gets None."""

    needs = Need("a true box as answer", answer(true_boxes))

    def score(self, attempt: Attempt) -> Scored:
        value, overlap = attempt.best(lambda box, truth: (1 + giou(box, truth)) / 2), attempt.best(iou)
        return Scored(value, {"giou": value, "iou": overlap, "acc50": float(overlap >= 0.5), **attempt.parts()})
