"""A sampler that asks what the policy itself expects of prompts before it chooses among them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated

from mmrl.algorithms.samplers.learned import Learning
from mmrl.core.types import Prompt
from mmrl.runtime.ranges import Number, Range

Judge = Callable[[Sequence[Prompt]], Sequence[float]]


class Judged:
    """A sampler that wants to know what a policy's value head expects of prompts, the same on all ranks."""

    def ask(self, judge: Judge) -> None:
        """Called once, before the first draw."""


@dataclass
class NearestValue(Learning, Judged):
    """Draws `pool` times as many prompts at random, and keeps those of a value nearest to `target` (PCL, arXiv:2510.01135).

    The value is what the policy's head expects to come of a prompt. Of equally near ones the earlier drawn come first. Set
    policy.scores = ["value"], and take the term ValueFit with `group` with it.
    """

    target: Number = 0.5
    """The value that teaches most, in units of the total reward: half of the samples are right."""
    pool: Annotated[int, Range(2, 2**10)] = 4
    """How many times the prompts of a step are looked at."""
    judge: Judge | None = field(default=None, init=False)

    def ask(self, judge: Judge) -> None:
        self.judge = judge

    def draw(self, num_prompts: int) -> list[Prompt]:
        """Raises ValueError where no policy says what it expects."""
        wanted, places = self.pool * num_prompts, range(len(self.prompts))
        drawn = self.generator().sample([*places] * -(-wanted // len(places)), wanted)
        if self.judge is None:
            raise ValueError('sampler.kind = "NearestValue" asks a value head: set policy.scores = ["value"]')
        return [self.prompts[drawn[i]] for i in nearest(self.judge([self.prompts[i] for i in drawn]), self.target, num_prompts)]


def nearest(values: Sequence[float], target: float, count: int) -> list[int]:
    """The places of the values nearest to the target, in order; of equally near ones the earlier.

    Prompts without a value (NaN) are the nearest: drawn, they are refused, or counted among those that are skipped.
    """
    near = [-1.0 if math.isnan(value) else round(abs(value - target), 9) for value in values]
    return sorted(sorted(range(len(values)), key=lambda i: (near[i], i))[:count])
