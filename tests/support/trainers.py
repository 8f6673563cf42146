"""Trainers on the fake policies, small enough to learn in a second."""

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from mmrl.algorithms.advantages.answers import Polychromic
from mmrl.algorithms.advantages.group import VirtualBest
from mmrl.algorithms.advantages.remembered import SingleStream
from mmrl.algorithms.advantages.spread import Asymmetric, BetaNorm
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.core.types import Batch, Group
from mmrl.training.checkpoints.state import copy_state
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.trainer import Trainer
from tests.support import fakes, flow_fakes

BOUNDED = (Asymmetric, BetaNorm, Polychromic, SingleStream, VirtualBest)
"""Advantages of total rewards in [0, 1]."""
NUMBERS = {field.name for field in fields(TrainSettings)}


def weights(owner: Any) -> Tensor:
    """All weights that train, of a trainer or a job, in one vector."""
    return torch.cat([weight.detach().flatten() for weight in owner.policy.parameters()])


def untimed(metrics: Mapping[str, float]) -> dict[str, float]:
    """What was measured, without what a clock said."""
    return {name: x for name, x in metrics.items() if not name.startswith("time/")}


def assert_resumes_ahead(job: Any, disturb: Callable[[], object] = lambda: None) -> None:
    """Fail unless the last of three steps, sampled ahead of training, is the same again after the state before it was loaded."""
    metrics = [job.trainer.step() for _ in range(2)]
    state = copy_state(job.trainer.state_dict())
    metrics.append(job.trainer.step())
    assert [one["rollout/staleness"] for one in metrics] == [0, 1, 1]
    whole = weights(job)
    job.trainer.load_state_dict(state)
    assert not torch.equal(weights(job), whole)
    disturb()
    job.trainer.step()
    assert torch.equal(weights(job), whole)


def batches_of(trainer: Trainer) -> list[Batch]:
    """Gets every batch by which this trainer is updated from now on."""
    seen, update = list[Batch](), trainer.update
    trainer.update = lambda batch: (seen.append(batch), update(batch))[1]  # type: ignore[method-assign]
    return seen


def make_trainer(
    algorithm: Algorithm = PRESETS["grpo"],
    function: Callable[[Group], Any] | None = None,
    *,
    policy: Any = None,
    sampler: Any = None,
    lr: float | None = None,
    **more: Any,
) -> Trainer:
    """A trainer on the fake text policy, or on the fake flow policy if the algorithm has a schedule.

    Args:
        algorithm: a step has 4 prompts, or as many as its minibatches need.
        function: the reward; None: the right letter, or nearness to the prompt's point.
        lr: of AdamW; `optimizer` gives the whole settings instead.
        more: fields of TrainSettings go there, the rest to the Trainer.
    """
    if algorithm.schedule is None:
        policy = policy or fakes.FakeTextPolicy()
        algorithm, prompts = algorithm.with_length(policy.length), fakes.prompts()
        bounded = isinstance(getattr(algorithm.advantage, "advantage", algorithm.advantage), BOUNDED)
        reward = NamedReward("letter", function or (at_most_one if bounded else fakes.right_letter))
        enough = next(number for number in range(4, 64) if algorithm.units(number) >= algorithm.minibatches)
        numbers: dict[str, Any] = {"steps": 5, "prompts_per_step": enough, "micro_batch": 1000}
        numbers["optimizer"] = OptimizerSettings(lr=lr or 1e-2)
    else:
        policy, prompts = policy or flow_fakes.FakeFlowPolicy(), flow_fakes.prompts()
        reward = NamedReward("nearness", function or flow_fakes.nearness)
        numbers = {"steps": 100, "prompts_per_step": 3, "micro_batch": 4096, "optimizer": OptimizerSettings(lr=lr or 5e-3)}
    settings = TrainSettings(**numbers | {name: more.pop(name) for name in list(more) if name in NUMBERS})
    sampler = sampler or Shuffled(prompts, seed=settings.seed)
    return Trainer(policy, algorithm, sampler, RewardRunner([reward]), settings, **more)


def at_most_one(group: Group) -> list[float]:
    """The right letter and a stop, 1 in all."""
    return [reward / 1.2 for reward in fakes.right_letter(group)]


def gain_of(trainer: Trainer, steps: int, first: int = 3, reward: str = "reward/letter") -> float:
    """Mean reward of the last ten steps above that of the first ones."""
    rewards = [trainer.step()[reward] for _ in range(steps)]
    return sum(rewards[-10:]) / 10 - sum(rewards[:first]) / first


def rises(trainer: Trainer, steps: int, bound: float, reward: str = "reward/letter") -> bool:
    """Does the mean reward of five steps in a row rise by more than `bound` above that of the first five?

    Training ends with the first five that do: what is left of the steps would show the same once more.
    """
    rewards: list[float] = []
    for _ in range(steps):
        metrics = trainer.step()
        assert math.isfinite(metrics["loss"])
        rewards.append(metrics[reward])
        if len(rewards) >= 10 and sum(rewards[-5:]) / 5 - sum(rewards[:5]) / 5 > bound:
            return True
    return False
