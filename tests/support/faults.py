"""Faults put between sampling and training, and what the run says of them: shared by the tests of both policies."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any

import torch
from torch import nn

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Group, Prompt, Rollouts
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.stopping import TrainingStoppedError
from mmrl.training.trainer import Trainer

Change = Callable[[Any], None]


def nothing(policy: Any) -> None:
    """No change."""


def unchanged(policy: Any, rollouts: Rollouts) -> Rollouts:
    return rollouts


@dataclass(frozen=True)
class Fault:
    """A change of a policy before it samples, and of it and its rollouts afterwards."""

    cause: str
    """The cause that the message must name."""
    before: Change = nothing
    after: Callable[[Any, Rollouts], Rollouts] = unchanged
    settings: tuple[tuple[str, Any], ...] = ()
    """Settings of the policy."""
    micro_batch: int = 100_000

    def inject(self, policy: Any) -> None:
        sample = policy.rollout

        def broken(self_: Any, requests: Any, sampling: Any = None) -> Rollouts:
            self.before(policy)
            return self.after(policy, sample(requests, sampling))

        policy.rollout = MethodType(broken, policy)


def variety(group: Group) -> list[float]:
    """Any reward that differs within a group."""
    return [float(i) for i in range(len(group.samples))]


def trainer_of(policy: Any, algorithm: Algorithm, prompts: Sequence[Prompt], **numbers: Any) -> Trainer:
    numbers = {"steps": 2, "prompts_per_step": len(prompts), "micro_batch": 100_000, **numbers}
    settings = TrainSettings(optimizer=OptimizerSettings(lr=1e-3), **numbers)
    return Trainer(policy, algorithm, Shuffled(prompts), RewardRunner([NamedReward("variety", variety)]), settings)


def message_of(policy: Any, algorithm: Algorithm, prompts: Sequence[Prompt], fault: Fault, **numbers: Any) -> str:
    """The message of the first step with this fault; "" if it was not stopped."""
    fault.inject(policy)
    trainer = trainer_of(policy, algorithm, prompts, micro_batch=fault.micro_batch, **numbers)
    trainer.audit = lambda rollouts, step: None  # type: ignore[assignment] - the gate alone must name it
    try:
        trainer.step()
    except TrainingStoppedError as error:
        return str(error)
    return ""


def rolled(policy: Any, rollouts: Rollouts, by: int = 1) -> Rollouts:
    """Noted log-probabilities stand one column off."""
    noted = rollouts.recorded[ROLLOUT_LOGPROBS].roll(by, 1)
    return replace(rollouts, recorded={**rollouts.recorded, ROLLOUT_LOGPROBS: noted})


class Noisy(nn.Module):
    """A layer that drops some of its output, whatever the mode."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return nn.functional.dropout(self.inner(*args, **kwargs), 0.1, training=True)


class Mixing(nn.Module):
    """A layer whose output depends on the other rows."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        out = self.inner(*args, **kwargs)
        return out + out.mean(0, keepdim=True)


class Dropping(nn.Module):
    """A layer with an ordinary dropout that loading overlooked."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.drop = inner, nn.Dropout(0.1)

    def forward(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        return self.drop(self.inner(*args, **kwargs))


def stuck_in_training(net: nn.Module) -> None:
    """`eval` no longer ends training mode."""
    nn.Module.train(net, True)
    net.train = MethodType(lambda self, mode=True: nn.Module.train(self, True), net)
    net.eval = MethodType(lambda self: self, net)
