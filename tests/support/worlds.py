"""Worlds that answer at once, in the order asked, and a policy that plays with them."""

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from PIL import Image

from mmrl.core.episodes import Limits
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Branch, Given, Observation, Prompt, Rollouts, Turn
from mmrl.policies.text.parts import TextParts
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.write.generate import Completions, LocalGenerator
from tests.support.text_policies import ids_of, picture, samples_of

LIMITS = Limits()
Answer = Callable[[Prompt, tuple[Turn, ...], int], Observation | None]


@dataclass
class Inline:
    """Worlds that are one function of (prompt, turns, seed)."""

    answer: Answer
    limits: Limits = LIMITS
    wave: float = 1.0
    repeats: bool = True
    opened: list[tuple[Prompt, int]] = field(default_factory=list[tuple[Prompt, int]])
    turns: list[tuple[Turn, ...]] = field(default_factory=list[tuple[Turn, ...]])
    closed: list[int] = field(default_factory=list[int])

    def open(self, prompt: Prompt, seed: int) -> int:
        self.opened.append((prompt, seed))
        self.turns.append(())
        return len(self.opened) - 1

    def step(self, number: int, turn: Turn) -> Future[Observation | None]:
        self.turns[number] = (*self.turns[number], turn)
        future = Future[Observation | None]()
        try:
            prompt, seed = self.opened[number]
            future.set_result(self.answer(prompt, self.turns[number], seed))
        except BaseException as error:  # noqa: BLE001 - a test's world may raise anything
            future.set_exception(error)
        return future

    def close(self, number: int) -> None:
        self.closed.append(number)

    def drain_metrics(self) -> Mapping[str, float]:
        return {}


def branch_of(rollouts: Rollouts, row: int, turn: int, world: tuple[int, int]) -> Given:
    """What goes on from a turn of a row, as a planner asks for it, which sees no pictures of observations."""
    sample = samples_of(rollouts)[row]
    start = sample.turns[turn].span[0]
    turns = [replace(one, observation=replace(one.observation, media=())) for one in sample.turns[:turn] if one.observation]
    noted = rollouts.recorded[ROLLOUT_LOGPROBS][row, :start].tolist()
    return Branch(tuple(turns), ids_of(sample)[:start], tuple(noted), world)


@dataclass(frozen=True)
class Ending(LocalGenerator):
    """Writes as the policy does, and calls every turn finished: what is played must not depend on where a random model stops."""

    def write(self, prompts: Any, prompt_index: Any, seeds: Any, sampling: Sampling) -> Completions:
        written = super().write(prompts, prompt_index, seeds, sampling)
        return replace(written, stopped=torch.ones_like(written.stopped))


def player(folder: str, worlds: Any, ending: bool = True, **settings: Any) -> TextPolicy:
    """A policy whose samples have several turns."""
    settings.setdefault("sampling", Sampling(max_new_tokens=8))
    parts = TextParts(generator=Ending if ending else LocalGenerator, worlds=worlds)
    return TextPolicy(TextPolicyConfig(folder, **settings), parts=parts)


def looking(prompt: Prompt, turns: tuple[Turn, ...], seed: int) -> Observation | None:
    """One or two pictures, text alone or nothing, by turn and seed: rows get answers of other length and number of pictures."""
    drawn = seed % 97 + 7 * len(turns)
    if len(turns) > 1 and drawn % 5 == 0:
        return None
    if drawn % 6 == 1:
        return Observation("No such tool.", facts={"error": 1.0})
    side = 40 + 20 * (drawn % 3)
    crops: tuple[Image.Image, ...] = (picture(drawn % 11, 2 * side, side),)
    if drawn % 4 == 0:
        crops = (*crops, picture(drawn % 13, 60, 60))
    return Observation("Here." * (1 + drawn % 3), crops, facts={"tool": 1.0})
