"""Does the answer of an episode follow from what was thought, called and seen before it? A model on a server says so.

    r = 1 or 0, as the judge says; with correct.use 0 for answers that are not right, of which the judge is not asked

An answer of the judge that cannot be read fails, and never scores 0.

Modality: text
Range: {0, 1}
Source: the consistency reward of Thyme (arXiv:2508.11630); the question is in our own words
Licence: own code Apache-2.0; the judge's weights see their card
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mmrl import Group, Need, Sample, Scored
from mmrl.runtime.ranges import Number
from mmrl.serving.inside import answers_of
from mmrl.serving.judges.judge import AsksServer, Question, Reply, ask_for_scores
from mmrl.serving.judges.verdicts import fill_template, number, template_text

ASKED = """Question: {prompt}
What a model wrote, with what its tools showed it in between:
{completion}

Does its final answer follow from what it wrote and was shown before? Leave aside whether the answer is right.
Reply with 1 (it follows) or 0 (it does not) and nothing else."""


@dataclass(frozen=True)
class Consistency(AsksServer):
    """1 for answers that follow from what is written before them."""

    correct: Callable[..., Any] | None = None
    """The reward that says what is right, correct.use = "choice"; left out, every answer is judged."""
    least: Number = 0.5
    """An answer is right whose reward is above this."""
    template: str = ""
    """A text with {prompt} and {completion}, or a file with one; empty: mmrl's wording."""
    needs = Need(setup="server (OpenAI-compatible)")

    def __call__(self, group: Group) -> list[float | Scored | None]:
        right = self._right(group)
        questions = [self._question(group, sample) for sample, judged in zip(group.samples, right, strict=True) if judged]
        answers = iter(ask_for_scores(self.server, questions, self._read) if questions else ())
        return [next(answers) if judged else None if judged is None else 0.0 for judged in right]

    def _right(self, group: Group) -> list[bool | None]:
        """Which samples are judged; None where the reward says nothing."""
        if self.correct is None:
            return [True] * len(group.samples)
        answers = answers_of(self.correct, group)
        return [None if one is None or one.value is None else one.value > self.least for one in answers]

    def _question(self, group: Group, sample: Sample) -> Question:
        if sample.transcript is None:
            raise ValueError(f"a sample of prompt {group.prompt.id!r} has no text to judge")
        return Question(
            fill_template(template_text(self.template, ASKED), prompt=group.prompt.text, completion=sample.transcript)
        )

    def _read(self, reply: Reply) -> Scored:
        return Scored(float(number(reply, 0.0, 1.0) > 0.5))
