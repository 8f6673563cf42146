"""Prompts drawn by how uncertain their success is, or by what the policy itself expects of them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np

from mmrl.algorithms.notes import Held, Tracked, begin
from mmrl.algorithms.samplers.learned import Floats, Learning, largest, numpy_twin
from mmrl.core.protocols import State
from mmrl.core.types import Prompt
from mmrl.runtime.ranges import Number, Positive, PositiveShare, Range, Share


@dataclass
class Prioritized(Learning):
    """P(prompt) ~ sqrt(v (1 - v)) + least, v its tracked success rate (SPO, arXiv:2509.13232); no prompt twice in a draw.

    The sampler keeps v itself: v = right / (right + wrong), right <- keep right + r, wrong <- keep wrong + 1 - r, where the
    paper's `keep` follows how far the policy has moved. Rewards in [0, 1]; others are clamped.
    """

    start: Share = 0.5
    """The rate of a prompt that was never sampled."""
    samples: Positive = 8.0
    """How many samples that counts for."""
    keep: PositiveShare = 0.875
    """How much of the evidence stays at a visit."""
    least: Positive = 0.05
    """The weight of a prompt that is always or never solved."""
    known: dict[int, Tracked] = field(default_factory=dict[int, Tracked], init=False)
    weights: Floats = field(init=False, repr=False, compare=False)
    """How often every prompt is to be drawn."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.weights = self.weigh({})

    def weigh(self, known: Mapping[int, Tracked]) -> Floats:
        weights = np.full(len(self.prompts), begin(self.start, self.samples).weight(self.least))
        for place, one in known.items():
            weights[place] = one.weight(self.least)
        return weights

    def draw(self, num_prompts: int) -> list[Prompt]:
        twin, drawn = numpy_twin(self.generator()), list[Prompt]()
        while len(drawn) < num_prompts:
            # The largest u^(1 / w) are a draw by weight without replacement.
            uniform, left = twin.random_sample(len(self.prompts)), num_prompts - len(drawn)
            near = largest(uniform ** (1 / self.weights), left, margin=1e-9).tolist()
            # powers of arrays are rounded as the CPU has it, so they only say which may be among the largest
            keys = {place: float(uniform[place]) ** (1 / float(self.weights[place])) for place in sorted(near)}
            drawn += [self.prompts[place] for place in sorted(keys, key=lambda place: -keys[place])[:left]]
        return drawn

    def observe(self, prompts: Sequence[Prompt], totals: Sequence[Sequence[float]]) -> None:
        for prompt, rewards in zip(prompts, totals, strict=True):
            place = self._places.get(prompt.id)
            for reward in rewards if place is not None else ():
                if reward == reward and place is not None:
                    before, right = self.known.get(place, begin(self.start, self.samples)), min(max(reward, 0.0), 1.0)
                    self.known[place] = Tracked(self.keep * before.right + right, self.keep * before.wrong + 1 - right)
                    self.weights[place] = self.known[place].weight(self.least)

    def memory(self) -> Held:
        known = dict(self.known)
        return Held(lambda: {"known": {str(place): list(one) for place, one in known.items()}})

    def remember(self, memory: State) -> None:
        self.known = {int(place): Tracked(*one) for place, one in memory["known"].items()}
        self.weights = self.weigh(self.known)


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
