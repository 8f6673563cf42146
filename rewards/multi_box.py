"""How well all predicted boxes fit all true ones, matched one to one (Hungarian).

    f1        2 TP / (predicted + true), TP = pairs with IoU >= threshold
    mean_iou  sum of matched IoU / max(predicted, true)
    map       COCO's average precision over IoU .5:.95, all boxes scored alike
    r = max(0, that - count_penalty * |predicted - true| / max(predicted, true))

Matching is optimal, not greedy as in VLM-R1. Unlike there, a box with an unknown label counts as a false one, and in `map` false
boxes cost the same wherever they are in the list.

Modality: text
Range: [0, 1]
Source: the detection rewards of VLM-R1, arXiv:2504.07615
Licence: own code Apache-2.0
"""

from dataclasses import dataclass
from typing import Literal

from mmrl import Need, Scored
from mmrl.answers.boxes.attempts import Attempt, OfBoxes, true_boxes
from mmrl.answers.boxes.detection import f1, mean_average_precision, mean_iou
from mmrl.answers.needs import answer
from mmrl.runtime.ranges import NonNegative, Share


@dataclass(frozen=True)
class MultiBox(OfBoxes):
    """F1, mean IoU or mAP over a picture's boxes. If there is no true box, the right answer is [] or None."""

    kind: Literal["f1", "mean_iou", "map"] = "f1"
    """How the fit is measured: one of the three ways above."""
    threshold: Share = 0.5
    """IoU from which a pair counts; for f1."""
    labels: bool = False
    """True: only boxes with equal labels pair up. `map` always looks at labels."""
    count_penalty: NonNegative = 0.0
    """Subtracted when the number of boxes is as wrong as it can be; in proportion otherwise."""
    needs = Need("true boxes as answer", answer(true_boxes))

    def score(self, attempt: Attempt) -> Scored:
        predicted, truth = attempt.predicted, attempt.truth
        if not predicted and not attempt.says_nothing:
            return Scored(0.0, {"f1": 0.0, "mean_iou": 0.0, "count_error": 1.0, **attempt.parts()})
        parts = {
            "f1": f1(predicted, truth, self.threshold, self.labels),
            "mean_iou": mean_iou(predicted, truth, self.labels),
            "count_error": abs(len(predicted) - len(truth)) / max(len(predicted), len(truth), 1),
        }
        value = mean_average_precision(predicted, truth) if self.kind == "map" else parts[self.kind]
        value = max(0.0, value - self.count_penalty * parts["count_error"])
        return Scored(value, {**parts, **attempt.parts()})
