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

from mmrl import Box, Group, Need, Scored
from mmrl.answers.block import Template
from mmrl.answers.boxes.attempts import AnySpace, Attempt, score_attempts, true_boxes
from mmrl.answers.boxes.box import giou, iou
from mmrl.answers.needs import answer


@dataclass(frozen=True)
class Giou:
    """(1 + GIoU) / 2 with the one true box. Text without a readable box scores 0 and is counted; no answer gets None."""

    space: AnySpace = "auto"
    """Space in which the model writes; auto = the one of the policy's family."""
    template: Template | None = None
    """If set, text that breaks this template scores 0."""
    needs = Need("a true box as answer", answer(true_boxes))

    def __call__(self, group: Group) -> list[float | Scored | None]:
        return score_attempts(group, self.space, self.template, self._score)

    def _score(self, attempt: Attempt) -> Scored:
        value, overlap = attempt.best(_unit_giou), attempt.best(iou)
        return Scored(value, {"giou": value, "iou": overlap, "acc50": float(overlap >= 0.5), **attempt.parts()})


def _unit_giou(box: Box, truth: Box) -> float:
    return (1 + giou(box, truth)) / 2
