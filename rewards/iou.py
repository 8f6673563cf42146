"""IoU of the predicted box with the true one.

    r = max over predicted boxes b of |b n t| / |b u t|, divided by the number of predicted boxes

Plain float overlap: VLM-R1 and GUI-G1 subtract a pixel, so that boxes one pixel wide, or written as shares of the picture, score
0 even against themselves.

Modality: text
Range: [0, 1]
Source: the usual grounding reward, as in VLM-R1 (arXiv:2504.07615) and GUI-G1 (arXiv:2505.15810)
Licence: own code Apache-2.0
"""

from dataclasses import dataclass

from mmrl import Need, Scored
from mmrl.answers.boxes.attempts import Attempt, OfBoxes, true_boxes
from mmrl.answers.boxes.box import iou
from mmrl.answers.boxes.detection import point_in_box
from mmrl.answers.needs import answer


@dataclass(frozen=True)
class Iou(OfBoxes):
    """IoU with the one true box. Text without a readable box scores 0 and is counted; a prompt without answer gets None."""

    needs = Need("a true box as answer", answer(true_boxes))

    def score(self, attempt: Attempt) -> Scored:
        value = attempt.best(iou)
        hit = attempt.best(lambda box, truth: float(point_in_box(box.center, truth)))
        return Scored(value, {"iou": value, "hit": hit, "acc50": float(value >= 0.5), **attempt.parts()})
