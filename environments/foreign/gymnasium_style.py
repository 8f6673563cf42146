"""Environments of gymnasium: `use = "gymnasium:FrozenLake-v1"`, or a class of your own with its reset and step."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from mmrl import load_environment
from mmrl.answers.calls import CallError, parse_call, without_thoughts
from mmrl.core.samples import Observation, Prompt, Turn
from mmrl.data.tools.foreign import SEEDED, Foreign, Shown, check_start, mistake, show

__all__ = ["Gymnasium"]

_ANSWERS = 5


@dataclass(frozen=True)
class Gymnasium:
    """Opens environments with gymnasium's reset(seed=) and step(action). The prompt shows what the first reset shows."""

    place: str
    """A name that gymnasium knows, or `./mine.py:Class`."""
    make: Mapping[str, object] = field(default_factory=dict[str, object])
    """Arguments it is made with."""
    actions: tuple[str, ...] = ()
    """Words for the actions 0, 1, 2 ...; empty: the model writes the action itself, as a number or as JSON."""
    action: str = ""
    """A function of yours from a turn's text to an action, `./mine.py:read`; it raises ValueError where there is none."""
    show: str = ""
    """A function of yours from an observation to text, a picture, or a list of them."""
    render: bool = False
    """Observations are what `render()` draws."""
    repeats: bool = True
    """False: the same seed may go otherwise."""

    def open(self, prompt: Prompt, seed: int, /) -> "GymnasiumWorld":
        world = GymnasiumWorld(self, self.session())
        try:
            first = world.look(world.session.reset(seed=int(prompt.columns.get("seed", seed)))[0])
            check_start(prompt, first, SEEDED)
        except BaseException:
            world.close()
            raise
        return world

    def session(self) -> Foreign:
        """An environment of its own; ValueError where the package is missing, or has none of this name."""
        if ".py" in self.place:
            return load_environment(self.place)(**self.make)
        try:
            import gymnasium  # type: ignore[import-not-found] - an optional package
        except ImportError:
            raise ValueError(f"gymnasium:{self.place} needs the package gymnasium: pip install gymnasium") from None
        try:
            return gymnasium.make(self.place, **({"render_mode": "rgb_array"} if self.render else {}), **self.make)
        except gymnasium.error.Error as error:
            raise ValueError(f"gymnasium cannot make {self.place!r}: {error}") from None

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raise ValueError for prompts that do not show what their episode begins with."""
        for prompt in prompts:
            self.open(prompt, 0).close()

    @property
    def reader(self) -> Foreign:
        return load_environment(self.action) if self.action else None

    @property
    def shower(self) -> Foreign:
        return load_environment(self.show) if self.show else lambda observation: observation


@dataclass
class GymnasiumWorld:
    """One of them."""

    settings: Gymnasium
    session: Foreign

    def step(self, turn: Turn, /) -> Observation:
        try:
            action = self.action_of(turn.text)
        except ValueError as error:
            return mistake(error)
        answer = self.session.step(action)
        if not isinstance(answer, tuple) or len(answer) != _ANSWERS:
            raise TypeError("step(action) answers observation, reward, terminated, truncated and info")
        text, pictures = self.look(answer[0])
        return Observation(text, pictures, reward=float(answer[1]), done=bool(answer[2] or answer[3]), facts={"tool": 1.0})

    def close(self) -> None:
        if hasattr(self.session, "close"):
            self.session.close()

    def look(self, observation: Foreign) -> Shown:
        return show(self.settings.shower(self.session.render() if self.settings.render else observation))

    def action_of(self, text: str) -> Foreign:
        """Raises ValueError, with the sentence for the model, where the text names no action that there is."""
        if self.settings.reader is not None:
            return self.settings.reader(text)
        call = parse_call(text, "tags", ("act", "action"))
        given = without_thoughts(text).strip() if call is None else call.arguments.get("action")
        space = getattr(self.session, "action_space", None)
        words = self.settings.actions
        if words:
            wanted = str(given).strip().lower()
            if wanted not in [word.lower() for word in words]:
                raise CallError(f"the actions are {', '.join(words)}")
            return [word.lower() for word in words].index(wanted) + int(getattr(space, "start", 0))
        action = fit(given, space)
        if space is not None and not space.contains(action):
            raise CallError(f"the action is none of {space}")
        return action


def fit(given: Foreign, space: Foreign) -> Foreign:
    """A text or a value as an action of a space; CallError for one that is none."""
    import json

    if space is None or type(space).__name__ == "Text":
        return given
    try:
        value: Foreign = json.loads(given) if isinstance(given, str) else given
        if getattr(space, "shape", None) == () and hasattr(space, "n"):
            (one,) = cast(list[Foreign], value) if isinstance(value, list) else [value]
            whole = float(one)
            return int(whole) if math.isfinite(whole) and whole == int(whole) else one
        if getattr(space, "shape", None) is not None:
            import numpy as np

            return np.asarray(value, dtype=space.dtype)
    except (ValueError, TypeError, RecursionError):
        raise CallError(f"the action is none of {space}") from None
    return value
