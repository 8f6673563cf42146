"""Are the letters of a multiple choice the right ones, one or several?

    exact  1 if the predicted letters are the right ones, else 0
    soft   |predicted| / |right| as long as no predicted letter is wrong, else 0

A stated letter ("the answer is B", a LaTeX box, a line of its own) wins over those that are mentioned; two different statements,
or "A or B", are no answer. TW-GRPO's math check of the whole text is left out. Unlike Video-R1, "B." is B and the last answer
block counts; unlike VLM-R1, a lone capital among words ("I", "A") is no answer.

Modality: text
Range: [0, 1]
Source: soft: the multi-level reward of TW-GRPO, arXiv:2505.24718
Licence: own code Apache-2.0
"""

from dataclasses import dataclass
from typing import Literal

from mmrl import Need, Prompt, Scored
from mmrl.answers.choices import choice_score
from mmrl.answers.needs import answer
from mmrl.answers.questions import OfAnswers, read_letters, true_letters


@dataclass(frozen=True)
class Choice(OfAnswers[frozenset[str]]):
    """Right letters. Text that names none scores 0 and is counted; no answer gets None.

    The prompt's answer is "B", "A,C" or a list; its column `options`, if there is one, holds the wordings.
    """

    kind: Literal["exact", "soft"] = "exact"
    """All or nothing (exact), or shares of the right letters (soft)."""
    needs = Need("letters as answer; the column options, the wordings, if answers may be written out", answer(true_letters))

    def score(self, text: str, truth: frozenset[str], prompt: Prompt) -> Scored:
        letters = read_letters(prompt, text)
        exact, soft = (choice_score(letters, truth, soft) for soft in (False, True))
        return Scored(soft if self.kind == "soft" else exact, {"exact": exact, "soft": soft, "unparsed": float(not letters)})
