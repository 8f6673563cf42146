"""Environments as TRL's `environment_factory` makes them: `use = "trl:./mine.py:Class"`. TRL itself is not needed.

Public methods are tools, `reset(**columns)` begins an episode, `get_reward()` (or the attribute `reward`) is its reward so far.
Source: trl 1.16, trainer/grpo_trainer.py.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from mmrl import load_environment
from mmrl.answers.calls import Call, CallError, Form, parse_call
from mmrl.core.samples import Observation, Prompt, Turn
from mmrl.data.tools.foreign import Foreign, accepted, check_start, mistake, show, then
from mmrl.runtime.blame import text_of

__all__ = ["TrlStyle"]

OWN = ("reset", "get_reward")
REMEDY = "write it into the prompt's text, in your data set"


@dataclass(frozen=True)
class TrlStyle:
    """Opens an object per episode, whose public methods are tools."""

    place: str
    """`./mine.py:Class`, or a function that makes one."""
    form: Form = "tags"
    """How the model writes calls."""
    role: Literal["user", "tool"] = "user"
    """Who answers, as the chat template has it."""
    repeats: bool = True
    """False: the same turns may be answered otherwise."""

    def open(self, prompt: Prompt, seed: int, /) -> Foreign:
        session = load_environment(self.place)()
        if not callable(getattr(session, "reset", None)):
            raise ValueError(f"trl:{self.place} has no reset(**columns): give it one")
        world = TrlWorld(self, session)
        return then(session.reset(**columns_for(session.reset, prompt, seed)), lambda first: world.begin(prompt, first))

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raise ValueError for prompts that do not say what `reset` answers."""
        for prompt in prompts:
            world = self.open(prompt, 0)
            if inspect.isawaitable(world):
                from mmrl.runtime.net.loops import wait_for

                world = wait_for(world)
            world.close()


def columns_for(reset: Foreign, prompt: Prompt, seed: int) -> Mapping[str, object]:
    """The columns that `reset` takes, as TRL gives them."""
    given = {"prompt": [{"role": "user", "content": prompt.text}], "answer": prompt.answer, "seed": seed, **prompt.columns}
    return accepted(reset, given)


@dataclass
class TrlWorld:
    """One of them."""

    settings: TrlStyle
    session: Foreign
    given: float = 0.0
    """The reward that observations have stated so far."""

    def begin(self, prompt: Prompt, first: Foreign) -> "TrlWorld":
        check_start(prompt, show(first), REMEDY)
        return self

    @property
    def tools(self) -> Mapping[str, Foreign]:
        members = inspect.getmembers(type(self.session), inspect.isfunction)
        return {name: getattr(self.session, name) for name, _ in members if name not in OWN and not name.startswith("_")}

    def step(self, turn: Turn, /) -> Foreign:
        try:
            call = parse_call(turn.text, self.settings.form)
            if call is None:
                return self.with_reward(Observation(done=True))
            tool = self.tool_of(call)
        except CallError as error:
            return self.with_reward(mistake(error))
        try:
            answer = tool(**call.arguments)
        except Exception as error:  # noqa: BLE001 - TRL, too, shows the model whatever a tool raises
            return self.with_reward(mistake(text_of(error)))
        return self.hear(answer)

    def hear(self, answer: Foreign) -> Foreign:
        if inspect.isawaitable(answer):
            return self.wait_for(answer)
        text, pictures = show(answer)
        return self.with_reward(Observation(text, pictures, self.settings.role, facts={"tool": 1.0}))

    async def wait_for(self, answer: Foreign) -> Observation:
        try:
            found = self.hear(await answer)
        except Exception as error:  # noqa: BLE001 - as above
            found = self.with_reward(mistake(text_of(error)))
        return await found if inspect.isawaitable(found) else found

    def tool_of(self, call: Call) -> Foreign:
        tools = self.tools
        if call.name not in tools:
            raise CallError(f"the tools are {', '.join(tools) or 'none'}")
        try:
            inspect.signature(tools[call.name]).bind(**call.arguments)
        except TypeError as error:
            raise CallError(f"{call.name}: {error}") from None
        return tools[call.name]

    def with_reward(self, observation: Observation) -> Foreign:
        """The observation with what the reward has grown by; it may have to be waited for."""
        ask = getattr(self.session, "get_reward", None)
        reward = ask() if callable(ask) else getattr(self.session, "reward", None)
        return then(reward, lambda now: self.note(observation, now))

    def note(self, observation: Observation, now: Foreign) -> Observation:
        if now is None:
            return observation
        gained, self.given = float(now) - self.given, float(now)
        return replace(observation, reward=gained)

    def close(self) -> None:
        """TRL's environments have nothing to close."""
