"""Inversion of questions: the one right option becomes the one wrong one, so that several answers are right."""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from mmrl.answers.choices import LETTERS
from mmrl.data.negation import negate
from mmrl.data.readers import Row
from mmrl.data.video_rows import VideoRow
from mmrl.runtime.ranges import Seed, Share, check_ranges


@dataclass(frozen=True)
class Inversion:
    """Inversion with a probability: "what is he holding?" becomes "what isn't he holding?" (TW-GRPO, arXiv:2505.24718).

    A random number of the wrong options stay and become right, the right one becomes wrong, and all are shuffled. Which
    questions are inverted depends only on the seed and the question's id. Questions that cannot be negated plainly (see
    `negate`), or that have one option or several right ones, stay as they are; the authors' script inverts the answer even
    where it cannot negate the question, whose words it then keeps.
    """

    probability: Share = 0.5
    seed: Seed = 0

    __post_init__ = check_ranges

    def __call__(self, row: VideoRow) -> VideoRow:
        """The question, perhaps inverted; the column `inverted` says that it was."""
        rng = random.Random(f"{self.seed}/{row.id}")
        letters, negated = LETTERS[: len(row.options)], negate(row.question)
        if rng.random() >= self.probability or len(row.options) < 2 or row.answer not in list(letters) or negated is None:
            return row
        wrong = [option for letter, option in zip(letters, row.options, strict=True) if letter != row.answer]
        kept = rng.sample(wrong, rng.randint(1, len(wrong)))
        shown = [*kept, row.options[letters.index(str(row.answer))]]
        order = rng.sample(range(len(shown)), len(shown))
        answer = ",".join(letter for letter, place in zip(letters, order, strict=False) if place < len(kept))
        options, columns = tuple(shown[place] for place in order), {**row.columns, "inverted": True}
        return replace(row, question=negated, answer=answer, options=options, columns=columns)


def with_inversion(parse: Callable[[Row], Iterable[VideoRow]], share: float) -> Callable[[Row], Iterable[VideoRow]]:
    """A layout that inverts this share of the questions that can be inverted; ValueError for a share outside 0 to 1."""
    invert = Inversion(share)
    return (lambda row: map(invert, parse(row))) if share else parse
