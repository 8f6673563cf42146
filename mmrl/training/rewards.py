"""Calling rewards: every sample gets ok, na or failed; neither None nor failure ever becomes 0."""

import asyncio
import inspect
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mmrl.core.protocols import Reward
from mmrl.core.types import Group, Rollouts, Scored, Scores, Status

log = logging.getLogger("mmrl")


class RewardError(ValueError):
    """A reward broke its contract or failed too often; the message names it, the prompt and the remedy."""


@dataclass(frozen=True)
class NamedReward:
    """A reward as a run uses it."""

    name: str
    function: Reward
    weight: float = 1.0
    """0 = logged, never trained on, and harmless when it fails."""
    timeout_s: float | None = None
    """Per group; longer counts as failed."""
    max_failed: float = 0.5
    """Share of a call's samples that may fail before the run stops."""


@dataclass(frozen=True)
class Answer:
    """What one reward said of one group."""

    values: list[float]
    status: list[Status]
    parts: list[Mapping[str, float]]
    error: str | None = None


@dataclass
class GroupScores:
    """What all rewards said of one group: (samples, rewards) tables."""

    values: Tensor
    status: Tensor
    parts: list[dict[str, float]] = field(default_factory=list)
    """Per sample: "<reward>/<part>" -> number."""


class RewardRunner:
    """Scores groups with a list of rewards."""

    def __init__(self, rewards: Sequence[NamedReward]) -> None:
        if not rewards:
            raise ValueError("no reward is configured: add a [[reward]] to the config or --reward NAME")
        names = [reward.name for reward in rewards]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"reward names {twice} are used twice: give each [[reward]] its own `name`")
        if all(reward.weight == 0 for reward in rewards):
            raise ValueError(f"all rewards ({', '.join(names)}) have weight 0: nothing would be trained")
        self.rewards = tuple(rewards)
        self.names = tuple(names)
        self.weights = torch.tensor([reward.weight for reward in rewards], dtype=torch.float32)

    def score(self, groups: Sequence[Group]) -> list[GroupScores]:
        """One table per group.

        Raises:
            RewardError: wrong number of answers, an infinite one, or more failures than a reward's budget.
        """
        with untouched_random_state():
            columns = [self._column(reward, groups) for reward in self.rewards]
        tables = []
        for i, group in enumerate(groups):
            answers = [column[i] for column in columns]
            values = torch.tensor([answer.values for answer in answers], dtype=torch.float32).T
            status = torch.tensor([[int(s) for s in answer.status] for answer in answers], dtype=torch.long).T
            parts: list[dict[str, float]] = [{} for _ in group.samples]
            for name, answer in zip(self.names, answers, strict=True):
                for merged, own in zip(parts, answer.parts, strict=True):
                    merged |= {f"{name}/{part}": float(value) for part, value in own.items()}
            tables.append(GroupScores(values, status, parts))
        return tables

    def scores(self, rollouts: Rollouts, tables: Mapping[int, GroupScores]) -> Scores:
        """The tables' rows in the order of the rollouts' rows."""
        pairs = list(zip(rollouts.group_ids.tolist(), rollouts.sample_ids.tolist(), strict=True))
        values = torch.stack([tables[group].values[sample] for group, sample in pairs])
        status = torch.stack([tables[group].status[sample] for group, sample in pairs])
        return Scores(self.names, values, status, self.weights)

    def _column(self, reward: NamedReward, groups: Sequence[Group]) -> list[Answer]:
        answers = [read_answer(reward, group, outcome) for group, outcome in zip(groups, call(reward, groups), strict=True)]
        failed = sum(answer.status.count(Status.FAILED) for answer in answers)
        total = sum(len(answer.status) for answer in answers)
        if failed:
            first = next(answer.error for answer in answers if answer.error)
            if reward.weight != 0 and failed > reward.max_failed * total:
                raise RewardError(
                    f"reward {reward.name!r} failed on {failed} of {total} samples "
                    f"(allowed: {reward.max_failed:.0%}); first error: {first}"
                )
            log.warning(
                "reward %r failed on %d of %d samples; they are left out. First error: %s", reward.name, failed, total, first
            )
        return answers


def call(reward: NamedReward, groups: Sequence[Group]) -> list[Any]:
    """The reward's raw answer for every group, or the exception it raised."""
    function = reward.function
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):  # noqa: B004 - a callable object's method is asked, not whether it is callable
        return asyncio.run(_call_async(reward, groups))
    if reward.timeout_s is None:
        return [_guarded(lambda group=group: function(group)) for group in groups]
    return [_within(reward.timeout_s, lambda group=group: function(group)) for group in groups]


def _guarded(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except Exception as error:  # noqa: BLE001 - a user's function may raise anything; it is reported as failed
        return error


def _within(timeout_s: float, run: Callable[[], Any]) -> Any:
    """The answer, or TimeoutError; a function that hangs stays behind in a daemon thread."""
    answers: list[Any] = []
    worker = threading.Thread(target=lambda: answers.append(_guarded(run)), daemon=True)
    worker.start()
    worker.join(timeout_s)
    return answers[0] if answers else TimeoutError(f"no answer within {timeout_s} s")


async def _call_async(reward: NamedReward, groups: Sequence[Group]) -> list[Any]:
    async def one(group: Group) -> Any:
        answer: Any = reward.function(group)
        return await asyncio.wait_for(answer, reward.timeout_s)

    return await asyncio.gather(*map(one, groups), return_exceptions=True)


def read_answer(reward: NamedReward, group: Group, outcome: Any) -> Answer:
    """Turn a raw answer into values and status, or refuse it."""
    count = len(group.samples)
    if isinstance(outcome, BaseException):
        text = f"{type(outcome).__name__}: {outcome} (prompt {group.prompt.id!r})"
        return Answer([math.nan] * count, [Status.FAILED] * count, [{}] * count, text)
    try:
        answers = list(outcome)
    except TypeError:
        raise RewardError(
            f"reward {reward.name!r} answered {type(outcome).__name__} for prompt {group.prompt.id!r}: "
            "return a list with one float or None per sample"
        ) from None
    if len(answers) != count:
        raise RewardError(
            f"reward {reward.name!r} answered {len(answers)} values for the {count} samples of prompt {group.prompt.id!r}: "
            "return one float or None per sample, in order"
        )
    values, status, parts = zip(*(_one(reward, group, answer) for answer in answers), strict=True)
    error = None
    if Status.FAILED in status:
        error = f"answered NaN (prompt {group.prompt.id!r})"
    if reward.weight != 0 and Status.NA in status and Status.OK in status:
        status = tuple(Status.FAILED if s == Status.NA else s for s in status)
        error = f"answered None for some samples of prompt {group.prompt.id!r} only; None must hold for the whole group"
    return Answer(list(values), list(status), list(parts), error)


def _one(reward: NamedReward, group: Group, answer: Any) -> tuple[float, Status, Mapping[str, float]]:
    parts: Mapping[str, float] = {}
    if isinstance(answer, Scored):
        answer, parts = answer.value, answer.parts
    if answer is None:
        return math.nan, Status.NA, parts
    try:
        value = float(answer)
    except (TypeError, ValueError):
        raise RewardError(
            f"reward {reward.name!r} answered {answer!r} for a sample of prompt {group.prompt.id!r}: "
            "return a float, None or Scored"
        ) from None
    if math.isinf(value):
        raise RewardError(
            f"reward {reward.name!r} answered {value} for a sample of prompt {group.prompt.id!r}: rewards must be finite"
        )
    return (math.nan, Status.FAILED, parts) if math.isnan(value) else (value, Status.OK, parts)


@contextmanager
def untouched_random_state() -> Iterator[None]:
    """Whatever random numbers are drawn inside, sampling outside goes on as if none were."""
    python, cpu = random.getstate(), torch.get_rng_state()
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    numpy = np.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(cpu)
        if devices:
            torch.cuda.set_rng_state_all(devices)
        np.random.set_state(numpy)


@contextmanager
def stopwatch(times: dict[str, float], name: str) -> Iterator[None]:
    """Adds the seconds spent inside to times["time/<name>_s"]."""
    start = time.perf_counter()
    try:
        yield
    finally:
        key = f"time/{name}_s"
        times[key] = times.get(key, 0.0) + time.perf_counter() - start
