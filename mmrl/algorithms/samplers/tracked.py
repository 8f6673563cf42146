"""Prompts drawn by how uncertain their success is: the sampler of single-stream optimization."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mmrl.algorithms.samplers.learned import Learning
from mmrl.algorithms.tracker import Tracked, begin
from mmrl.core.protocols import State
from mmrl.core.types import Prompt
from mmrl.runtime.ranges import Positive, PositiveShare, Share


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

    def weight(self, place: int) -> float:
        """How often the prompt at that place is to be drawn."""
        return self.known.get(place, begin(self.start, self.samples)).weight(self.least)

    def draw(self, num_prompts: int) -> list[Prompt]:
        rng, drawn = self.generator(), list[Prompt]()
        while len(drawn) < num_prompts:
            # The largest u^(1 / w) are a draw by weight without replacement.
            keys = {place: rng.random() ** (1 / self.weight(place)) for place in range(len(self.prompts))}
            best = sorted(keys, key=lambda place: -keys[place])[: num_prompts - len(drawn)]
            drawn += [self.prompts[place] for place in best]
        return drawn

    def observe(self, prompts: Sequence[Prompt], totals: Sequence[Sequence[float]]) -> None:
        for prompt, rewards in zip(prompts, totals, strict=True):
            place = self._places.get(prompt.id)
            for reward in rewards if place is not None else ():
                if reward == reward and place is not None:
                    before, right = self.known.get(place, begin(self.start, self.samples)), min(max(reward, 0.0), 1.0)
                    self.known[place] = Tracked(self.keep * before.right + right, self.keep * before.wrong + 1 - right)

    def memory(self) -> State:
        return {"known": {str(place): list(one) for place, one in self.known.items()}}

    def remember(self, memory: State) -> None:
        self.known = {int(place): Tracked(*one) for place, one in memory["known"].items()}
