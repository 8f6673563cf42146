"""Environments of verifiers before 0.2: `use = "verifiers:./mine.py:load_environment"`, or the name of one that is installed.

Its `MultiTurnEnv` answers turns and says when an episode is over; its rubric scores it then. Its own client of models is never
used. From 0.2 on verifiers runs whole agents against a server that it starts, and has no environment that answers turns.
Source: verifiers 0.1.8, envs/multiturn_env.py and rubrics/rubric.py.
"""

import inspect
import json
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from mmrl import load_environment
from mmrl.answers.calls import CallError, Form, parse_call
from mmrl.core.samples import Observation, Prompt, Turn
from mmrl.data.tools.foreign import Foreign, accepted, mistake, show

__all__ = ["VerifiersTurns"]


@dataclass(frozen=True)
class VerifiersTurns:
    """Opens a state per episode. Rewards come at the end that the environment sees: let limits.turns be above its max_turns."""

    place: str
    """A function of a file that makes the environment, or the name of one that is installed."""
    make: Mapping[str, object] = field(default_factory=dict[str, object])
    """Arguments it is made with."""
    form: Form = "tags"
    """How the model writes calls."""
    role: Literal["user", "tool"] = "user"
    """Who answers, as the chat template has it."""
    repeats: bool = True
    """False: the same turns may be answered otherwise."""

    @cached_property
    def environment(self) -> Foreign:
        try:
            import verifiers  # type: ignore[import-not-found] - an optional package
        except ImportError:
            raise ValueError(f"verifiers:{self.place} needs the package: pip install 'verifiers<0.2'") from None
        if not hasattr(verifiers, "MultiTurnEnv"):
            raise ValueError(
                f"verifiers {getattr(verifiers, '__version__', '')} has no MultiTurnEnv, which answers turns: "
                "pip install 'verifiers<0.2'"
            )
        is_file = ".py" in self.place
        make = load_environment(self.place) if is_file else lambda **given: verifiers.load_environment(self.place, **given)
        # it takes signals over, which end a run between two steps
        kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            made = make(**self.make)
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)
        if not isinstance(made, verifiers.MultiTurnEnv):
            raise ValueError(f"verifiers:{self.place} makes {type(made).__name__}, and worlds are of a MultiTurnEnv")
        if len(made.rubric._get_individual_reward_funcs()) != len(made.rubric._get_reward_funcs()):
            raise ValueError(f"verifiers:{self.place} has a reward that compares a group: write it as an mmrl reward")
        return made

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Make the environment, in the main thread as it demands; ValueError where it cannot be."""
        assert self.environment

    def __getstate__(self) -> dict[str, object]:
        """A process of its own makes the environment anew."""
        return {name: value for name, value in vars(self).items() if name != "environment"}

    async def open(self, prompt: Prompt, seed: int, /) -> "VerifiersWorld":
        messages = [{"role": "user", "content": prompt.text}]
        row: dict[str, object] = {"prompt": messages, "answer": prompt.answer, "info": dict(prompt.columns), "example_id": 0}
        environment = self.environment
        task = str(prompt.columns.get("task", "default"))
        state = await environment.init_state({**row, "task": task}, client=None, model="", sampling_args=None)
        return VerifiersWorld(self, environment, await environment.setup_state(state) or state, messages)


@dataclass
class VerifiersWorld:
    """One state."""

    settings: VerifiersTurns
    environment: Foreign
    session: Foreign
    messages: list[Foreign]
    """The dialogue in front of the next turn."""

    async def step(self, turn: Turn, /) -> Observation:
        said: dict[str, object] = {"role": "assistant", "content": turn.text}
        try:
            call = parse_call(turn.text, self.settings.form)
        except CallError as error:
            return mistake(error)
        number = len(self.session["trajectory"])
        if call is not None:
            function = {"name": call.name, "arguments": json.dumps(dict(call.arguments))}
            said["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": function}]
        nothing = dict.fromkeys(("response", "tokens", "reward", "advantage"))
        self.session["trajectory"].append({"prompt": self.messages, "completion": [said], **nothing, "extras": {}})
        if await self.environment.is_completed(self.session):
            return await self.score()
        messages = [*self.messages, said]
        answer = await self.environment.env_response(messages, self.session)
        self.messages = [*messages, *answer]
        text, pictures = show(answer)
        return Observation(text, pictures, self.settings.role, facts={"tool": float(call is not None)})

    async def score(self) -> Observation:
        """The weighted sum of the rubric's rewards; its own call would give 0 for one that fails."""
        rubric, state, parts = self.environment.rubric, self.session, dict[str, float]()
        names = ("prompt", "completion", "answer", "task", "info")
        given = {**{name: state.get(name) for name in names}, "state": state, **rubric.class_objects}
        total = 0.0
        functions = zip(rubric._get_individual_reward_funcs(), rubric._get_individual_reward_weights(), strict=True)
        for function, weight in functions:
            value = function(**accepted(function, given))
            parts[function.__name__] = float(await value if inspect.isawaitable(value) else value)
            total += weight * parts[function.__name__]
        return Observation(reward=total, done=True, facts=parts)

    async def close(self) -> None:
        if not self.session["is_completed"]:
            await self.environment._cleanup(self.session)
