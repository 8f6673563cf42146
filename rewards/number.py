"""Is the number right, or how close is it?

    exact       1 if |x - y| <= max(absolute, relative * |y|), else 0
    regression  1 - min(1, |x - y| / |y|)
    relative    mean over t = .5, .55, .. .95 of [|x - y| / |y| < 1 - t]

Unlike Video-R1, 3.0 is 3 and 1,000 is 1000; several different numbers are no answer.

Modality: text
Range: [0, 1]
Source: regression: Video-R1 (arXiv:2503.21776); relative: mean relative accuracy, arXiv:2412.14171
Licence: own code Apache-2.0
"""

from dataclasses import dataclass
from typing import Literal

from mmrl import Need, Prompt, Scored
from mmrl.answers import numbers
from mmrl.answers.needs import answer
from mmrl.answers.questions import OfAnswers, true_number
from mmrl.runtime.ranges import NonNegative


@dataclass(frozen=True)
class Number(OfAnswers[numbers.Number]):
    """Right or close numbers. Text without one clear number scores 0 and is counted; no answer gets None."""

    kind: Literal["exact", "regression", "relative"] = "exact"
    """How closeness counts: one of the three formulas above."""
    relative: NonNegative = 0.0
    """Share of the true number by which `exact` may be off."""
    absolute: NonNegative = 0.0
    """How far off `exact` may be, in units of the number."""
    needs = Need("a number as answer", answer(true_number))

    def score(self, text: str, truth: numbers.Number, prompt: Prompt) -> Scored:
        number = numbers.parse_number(text)
        if number is None:
            return Scored(0.0, {"exact": 0.0, "unparsed": 1.0})
        exact = float(numbers.is_close(number, truth, self.relative, self.absolute))
        nearness = {"regression": numbers.regression_score, "relative": numbers.relative_accuracy}
        value = exact if self.kind == "exact" else nearness[self.kind](number, truth)
        return Scored(value, {"exact": exact, "unparsed": 0.0})
