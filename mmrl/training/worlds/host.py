"""The worlds of one environment in one process, opened, stepped and closed by number; a function can be an environment."""

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

from mmrl.core.episodes import Environment, World
from mmrl.core.types import Prompt, Turn
from mmrl.runtime.calls import Foreign
from mmrl.runtime.net.loops import wait_for

Verb = Literal["open", "step", "close"]
Function = Callable[[Prompt, tuple[Turn, ...], int], Foreign]
"""Gives an observation or None; may be `async`."""


class LostWorldError(RuntimeError):
    """The process that held the world died."""


@dataclass
class WorldHost:
    """Call it with a verb, the number of a world, and what the verb takes."""

    environment: Environment
    worlds: dict[int, Foreign] = field(default_factory=dict[int, Foreign])

    def __call__(self, verb: Verb, number: int, *arguments: Prompt | Turn | int) -> Foreign:
        """The world's answer, or something to await; LostWorldError for a number that is not open."""
        if verb == "open":
            return self.environment.open(*arguments)  # type: ignore[arg-type] - a verb says what comes with it
        if number not in self.worlds:
            raise LostWorldError("its process died with it, and was started again")
        if verb == "step":
            return self.worlds[number].step(*arguments)
        return self.worlds.pop(number).close()

    def keep(self, number: int, world: object) -> None:
        """Note the world that was opened."""
        if not callable(getattr(world, "step", None)) or not callable(getattr(world, "close", None)):
            raise TypeError(f"the environment opened {type(world).__name__}, which has no step(turn) and close()")
        if any(session_of(held) is session_of(world) for held in self.worlds.values()):
            raise ValueError("the environment opened a world in which another episode is played: let it open one for each")
        self.worlds[number] = world


@dataclass
class RemoteHost(WorldHost):
    """The same in a process of its own, where awaitables are waited for, and worlds stay."""

    def __call__(self, verb: Verb, number: int, *arguments: Prompt | Turn | int) -> Foreign:
        answer = super().__call__(verb, number, *arguments)
        if inspect.isawaitable(answer):
            waiting: Awaitable[Foreign] = answer
            answer = wait_for(waiting)
        if verb == "open":
            return self.keep(number, answer)
        return answer


def session_of(world: object) -> object:
    """The thing that a world plays with, where it names one: of two worlds it must not be the same."""
    return getattr(world, "session", world)


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
