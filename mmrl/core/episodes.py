"""Episodes of several turns: environments, the worlds they open, and how far an episode may go."""

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Annotated, Protocol, runtime_checkable

from mmrl.core.samples import Observation, Prompt, Turn
from mmrl.runtime.ranges import Count, CountOrNone, Large, Positive, Range, check_ranges


@dataclass(frozen=True)
class Limits:
    """How far an episode may go. An observation that exceeds one ends it, and is not shown."""

    turns: Annotated[int, Range(1, 256)] = 4
    """Turns that the policy writes."""
    tokens: Count = 4096
    """Tokens of an episode behind its prompt: turns, observations, and the placeholders of their pictures."""
    pictures: CountOrNone = 8
    """Pictures of all observations of an episode."""
    pixels: Large = 2**22
    """Area of one picture."""
    text: Count = 8192
    """Characters of one observation."""
    timeout_s: Positive = 30.0
    """Seconds for one answer of a world; one that takes longer is broken."""

    __post_init__ = check_ranges


@runtime_checkable
class World(Protocol):
    """Answers the turns of one episode. Both calls may be `async def`."""

    def step(self, turn: Turn, /) -> Observation | None:
        """The answer to a turn; None: it asked for nothing, and the episode is over. Raise where the world is broken."""
        ...

    def close(self) -> None:
        """The episode is over, whatever ended it."""
        ...


@runtime_checkable
class Environment(Protocol):
    """Opens a world for every episode. May be `async def`."""

    def open(self, prompt: Prompt, seed: int, /) -> World:
        """The same seed opens a world that answers the same turns in the same way, unless the environment says otherwise."""
        ...


@runtime_checkable
class Worlds(Protocol):
    """The worlds of many episodes at once, as a policy uses them: called by number, and answering later."""

    @property
    def limits(self) -> Limits: ...

    @property
    def wave(self) -> float:
        """The share of the episodes under way whose answers must be there before their next turns are written together."""
        ...

    @property
    def repeats(self) -> bool:
        """Does the same seed open a world that answers the same turns in the same way?"""
        ...

    def open(self, prompt: Prompt, seed: int) -> int:
        """The number of a new world."""
        ...

    def step(self, number: int, turn: Turn) -> Future[Observation | None]:
        """The answer of a world, one turn at a time."""
        ...

    def close(self, number: int) -> None: ...

    def drain_metrics(self) -> Mapping[str, float]:
        """The cost of the worlds since the last call, for the log."""
        ...
