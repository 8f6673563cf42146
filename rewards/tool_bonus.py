"""A bonus for a right answer that was found by looking: an episode in which a tool was used and whose answer is right.

    r = 1 if correct > least and some turn used a tool, else 0

Tools are counted in what the environment states about turns, never in text, where a model could write anything. Alone it says
nothing about right answers: weigh it beside their reward, such as 0.8 for accuracy and 1.2 for this one.

Modality: text
Range: {0, 1}
Source: the tool reward of DeepEyes (arXiv:2505.14362), 1.2 [acc > 0.5 and a crop]
Licence: own code Apache-2.0
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mmrl import Group, Need, Sample
from mmrl.runtime.ranges import Number, check_ranges
from mmrl.serving.inside import answers_of


@dataclass(frozen=True)
class ToolBonus:
    """1 for right answers that were found by looking. ValueError without the reward that says what is right."""

    correct: Callable[..., Any] | None = None
    """The reward that says what is right: correct.use = "choice"."""
    least: Number = 0.5
    """An answer is right whose reward is above this."""
    fact: str = "tool"
    """The fact of an observation that says that a tool was used."""
    needs = Need(
        setup="an [environment] whose observations state the fact tool; a reward that says what is right, correct.use", turns=True
    )

    __post_init__ = check_ranges

    def __call__(self, group: Group) -> list[float | None]:
        if self.correct is None:
            raise ValueError(
                'tool_bonus needs the reward that says what is right: set correct.use, such as correct.use = "choice"'
            )
        pairs = zip(answers_of(self.correct, group), group.samples, strict=True)
        return [
            None if one is None or one.value is None else float(one.value > self.least and self._looked(sample))
            for one, sample in pairs
        ]

    def _looked(self, sample: Sample) -> bool:
        seen = [turn.observation for turn in sample.turns if turn.observation is not None]
        return any(one.facts.get(self.fact, 0.0) > 0 for one in seen)
