"""Environments behind a server of OpenEnv: `use = "openenv:http://localhost:8000"`, by its generic client.

Every episode has a session of its own.
Source: openenv-core 0.3.0, openenv/core/generic_client.py.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from mmrl.answers.calls import CallError, Form, parse_call, without_thoughts
from mmrl.core.samples import Observation, Prompt, Turn
from mmrl.data.tools.foreign import SEEDED, Foreign, check_start, mistake, show

__all__ = ["OpenEnv"]

_LOGGED = ("reward", "done", "metadata")
"""Fields of an observation that are not shown."""


@dataclass(frozen=True)
class OpenEnv:
    """Opens a session of a server per episode."""

    place: str
    """The server's address."""
    key: str = "message"
    """The field of an action that a turn without a call is."""
    form: Form = "tags"
    """How the model writes calls, whose arguments are an action's fields."""
    shown: tuple[str, ...] = ()
    """Fields of observations to show; empty: all but reward, done and metadata."""
    begins: bool = True
    """Does the prompt show what `reset` answers? False: that answer is left out, and the prompt says the task."""
    repeats: bool = True
    """False: the same seed may go otherwise."""

    async def open(self, prompt: Prompt, seed: int, /) -> "OpenEnvWorld":
        try:
            from openenv.core import GenericEnvClient  # type: ignore[import-not-found] - an optional package
        except ImportError:
            raise ValueError(f"openenv:{self.place} needs the package openenv-core: pip install openenv-core") from None
        session: Foreign = GenericEnvClient(base_url=self.place)
        await session.connect()
        world = OpenEnvWorld(self, session)
        try:
            first = await session.reset(seed=int(prompt.columns.get("seed", seed)) % 2**31)
            if self.begins:
                check_start(prompt, show(world.fields(first.observation)), SEEDED)
        except BaseException:
            await world.close()
            raise
        return world


@dataclass
class OpenEnvWorld:
    """One session."""

    settings: OpenEnv
    session: Foreign

    async def step(self, turn: Turn, /) -> Observation:
        try:
            call = parse_call(turn.text, self.settings.form)
        except CallError as error:
            return mistake(error)
        action = {self.settings.key: without_thoughts(turn.text).strip()} if call is None else dict(call.arguments)
        result = await self.session.step(action)
        text, pictures = show(self.fields(result.observation))
        reward = None if result.reward is None else float(result.reward)
        return Observation(text, pictures, reward=reward, done=bool(result.done), facts={"tool": 1.0})

    async def close(self) -> None:
        await self.session.close()

    def fields(self, observation: Foreign) -> Mapping[str, Any]:
        table = cast(Mapping[str, Any], observation)
        wanted = self.settings.shown or [name for name in table if name not in _LOGGED]
        return {name: table[name] for name in wanted if name in table}
