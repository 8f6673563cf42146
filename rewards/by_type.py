"""Scores each row by its type of question: letters, numbers, expressions, text or time spans.

    multiple choice -> right letters      numerical -> equal numbers        regression -> 1 - relative error
    OCR -> 1 - word error rate            free-form -> mean of ROUGE-1/2/L  temporal grounding -> temporal IoU
    math -> equal expressions (math-verify)

In Video-R1 the first row's type decides for the whole batch, and an error or an unknown type counts as 0; here every row's own
type counts, and an unknown one is an error. Each also exists as a separate reward with more options: choice, number,
math_answer, ocr_wer, rouge, temporal_iou.

Modality: text
Range: [0, 1]
Source: Video-R1, arXiv:2503.21776
Licence: own code Apache-2.0
"""

from dataclasses import dataclass
from math import nan
from typing import Any

from mmrl import Group, Need, Prompt, Sample, Scored
from mmrl.answers import numbers
from mmrl.answers.block import InTemplate, answer_block, completion_text
from mmrl.answers.choices import choice_score
from mmrl.answers.questions import problem_type, read_letters, true_letters, true_number, true_text
from mmrl.answers.spans.attempts import read_spans
from mmrl.answers.spans.interval import Unit
from mmrl.answers.words import error_rate, rouge
from mmrl.data.validate import check_answer
from mmrl.runtime.ranges import NonNegative, Positive
from mmrl.serving.judges.math_grader import grade_math


def _type_of(prompt: Prompt, reward: Any, output: str) -> object:
    kind = problem_type(prompt, reward.column)
    check_answer(prompt, kind)
    return None if prompt.answer is None else kind


@dataclass(frozen=True)
class ByType(InTemplate):
    """Scored by the column of the row. ValueError naming the row for an unknown type; a prompt without answer gets None."""

    column: str = "problem_type"
    """The column of the prompts that holds their type."""
    soft: bool = False
    """True: of several right letters some are worth their share (TW-GRPO)."""
    relative: NonNegative = 0.0
    """Share of the true number by which an equal number may be off."""
    absolute: NonNegative = 0.0
    """How far off an equal number may be, in units of the number."""
    unit: Unit = "seconds"
    """The unit of numbers without one in spans of time."""
    limit_s: Positive = 5.0
    """Seconds until the comparison of two expressions is given up and the sample fails."""
    needs = Need("the column problem_type, and an answer of that type", _type_of, setup='pip install "mmrl[rewards]"')

    def __call__(self, group: Group) -> list[float | Scored | None]:
        kind = problem_type(group.prompt, self.column)
        if group.prompt.answer is None:
            return [None] * len(group.samples)
        return self.score_each(group, lambda sample: self._score(kind, group.prompt, sample))

    def _score(self, kind: str, prompt: Prompt, sample: Sample) -> Scored:
        value, unparsed = self._value(kind, prompt, sample)
        parts = {kind: value, "unparsed": float(unparsed)}
        if kind == "span":
            parts |= {f"recall{round(100 * least)}": float(value >= least) for least in (0.3, 0.5, 0.7)}
        if kind == "choice":
            parts["exact"] = float(value == 1)
        return Scored(value, parts)

    def _value(self, kind: str, prompt: Prompt, sample: Sample) -> tuple[float, bool]:
        """The score, and whether nothing in the text could be read as an answer."""
        text = completion_text(prompt, sample)
        if kind == "span":
            attempt = read_spans(prompt, sample, self.unit)
            return attempt.iou, bool(attempt.parts()["unparsed"])
        if kind == "choice":
            letters = read_letters(prompt, text)
            return choice_score(letters, true_letters(prompt), self.soft), not letters
        if kind in ("number", "regression"):
            truth, number = true_number(prompt), numbers.parse_number(text)
            if number is None:
                return 0.0, True
            close = float(numbers.is_close(number, truth, self.relative, self.absolute))
            return (close if kind == "number" else numbers.regression_score(number, truth)), False
        written, wanted = answer_block(text), true_text(prompt)
        if kind == "math":
            grade = grade_math(written, wanted, prompt.id, self.limit_s)
            return (nan if grade.timeout else float(grade.equal)), grade.unparsed
        if kind == "ocr":
            return max(0.0, 1 - error_rate(written.split(), wanted.split())), not written
        scores = rouge(written, wanted)
        return sum(scores.values()) / len(scores), not written
