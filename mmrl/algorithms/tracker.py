"""Success rates of single prompts that follow the policy, forgetting faster the further it has moved (SPO)."""

import math
from typing import NamedTuple

FORGETS = (0.875, 0.96)
"""Least and largest share of old evidence that stays at a visit."""


class Tracked(NamedTuple):
    """A prompt's evidence: `Tracked(4.5, 3.5)`, after half of 8 imagined samples were right and one real one was."""

    right: float
    wrong: float

    @property
    def rate(self) -> float:
        """The estimated mean reward."""
        return self.right / (self.right + self.wrong)

    def after(self, reward: float, moved: float, half: float) -> "Tracked":
        """The evidence after a sample of reward in [0, 1], `moved` nats after the last visit; after `half` nats half is left."""
        stays = memory_share(moved, half)
        return Tracked(stays * self.right + reward, stays * self.wrong + 1 - reward)

    def weight(self, least: float) -> float:
        """How often the prompt is to be drawn: most where its rate is 1/2."""
        return math.sqrt(max(self.rate * (1 - self.rate), 0.0)) + least


def memory_share(moved: float, half: float) -> float:
    """2^(-moved / half) within FORGETS."""
    return min(max(2 ** (-moved / half), FORGETS[0]), FORGETS[1])


def begin(rate: float, samples: float) -> Tracked:
    """Evidence as if this many samples had that mean reward."""
    return Tracked(samples * rate, samples * (1 - rate))
