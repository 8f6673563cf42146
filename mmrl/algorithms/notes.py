"""Numbers that a part keeps from one step to the next, success rates that follow the policy, and states as they were."""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from mmrl.core.protocols import State


@dataclass(frozen=True)
class Notes:
    """A part's numbers by name: every run has its own, and checkpoints hold them."""

    notes: dict[str, float] = field(default_factory=dict[str, float], init=False, compare=False, repr=False)

    def state_dict(self) -> State:
        return {"notes": {**self.notes}}

    def load_state_dict(self, state: State) -> None:
        self.notes.clear()
        self.notes.update(state["notes"])


class Held(Mapping[str, Any]):
    """A state as it was, written out only where somebody looks: what `write()` makes of values that nobody changes any more."""

    def __init__(self, write: Callable[[], Mapping[str, Any]]) -> None:
        self._write = write

    @cached_property
    def _written(self) -> Mapping[str, Any]:
        return self._write()

    def __getitem__(self, name: str) -> Any:
        return self._written[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._written)

    def __len__(self) -> int:
        return len(self._written)

    def __reduce__(self) -> tuple[type, tuple[Mapping[str, Any]]]:
        # a class that torch.load knows
        return OrderedDict, (self._written,)


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
