"""Environments that are one function of the prompt, the turns so far and a seed."""

from collections.abc import Callable
from dataclasses import dataclass, field

from mmrl.core.episodes import Environment, World
from mmrl.core.types import Prompt, Turn
from mmrl.runtime.calls import Foreign

Function = Callable[[Prompt, tuple[Turn, ...], int], Foreign]
"""Gives an observation or None; may be `async`."""


@dataclass(frozen=True)
class Answering:
    """The environment of a function."""

    function: Function

    def open(self, prompt: Prompt, seed: int, /) -> World:
        return AnsweringWorld(self.function, prompt, seed)


@dataclass
class AnsweringWorld:
    """Asks the function with all turns so far."""

    function: Function
    prompt: Prompt
    seed: int
    turns: tuple[Turn, ...] = field(default=())

    def step(self, turn: Turn, /) -> Foreign:
        self.turns = (*self.turns, turn)
        return self.function(self.prompt, self.turns, self.seed)

    def close(self) -> None:
        """There is nothing to close."""


def environment_of(plug_in: Environment | Function) -> Environment:
    """An environment as it is, and a function as the environment that asks it."""
    return plug_in if isinstance(plug_in, Environment) else Answering(plug_in)
