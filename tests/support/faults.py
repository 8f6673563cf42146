"""Faults put between sampling and training, and what the run says of them: shared by the tests of both policies."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from types import MethodType
from typing import Any

import torch
from torch import nn

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Group, Prompt, Rollouts
from mmrl.policies.shared import hypotheses as common
from mmrl.policies.shared.lora import adapter_layers, switch_adapters
from mmrl.policies.shared.weights import Weights
from mmrl.policies.text.write.generate import Generator
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
    moves: bool = False
    """Does `before` change the weights that train?"""

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
    return stop_of(trainer_of(policy, algorithm, prompts, micro_batch=fault.micro_batch, **numbers))


def stop_of(trainer: Trainer) -> str:
    """The message of the gate that stops the first step; "" if none does."""
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


Place = Callable[[Any], tuple[nn.Module, str]]
"""A block of a policy's network, and the name of a layer in it."""


def wrap(place: Place, kind: type[nn.Module]) -> Change:
    """A layer inside another one."""

    def change(policy: Any) -> None:
        block, name = place(policy)
        layer = getattr(block, name)
        if not isinstance(layer, kind):
            setattr(block, name, kind(layer).eval())

    return change


def then(change: Change) -> Callable[[Any, Rollouts], Rollouts]:
    """An `after` by which the model changes and the rollouts do not."""

    def after(policy: Any, rollouts: Rollouts) -> Rollouts:
        change(policy)
        return rollouts

    return after


def half(on: bool) -> Change:
    return lambda policy: setattr(policy.net, "half_precision", on)


@dataclass
class Around(Generator):
    """A generator that does something around another one."""

    inner: Any

    def write_all(self, parts: Any) -> list[Any]:
        return [self.write(*part) for part in parts]

    def follow(self, weights: Weights, version: int) -> None:
        self.inner.follow(weights, version)


def wear(policy: Any, context: Callable[[], AbstractContextManager[object]]) -> None:
    """Let a policy sample inside of a block."""

    class Inside(Around):
        def write(self, *asked: Any, **_: Any) -> Any:
            with context():
                return self.inner.write(*asked)

    policy.generator = Inside(policy.generator)


def disable_adapters(policy: Any) -> None:
    for layer in adapter_layers(policy.net.modules()):
        own: Any = layer
        own._disable_adapters = True


def usual_faults(place: Place, stir: Change, lora: tuple[tuple[str, Any], ...] = ()) -> dict[str, Fault]:
    """Faults that any policy may have; `stir` moves its weights, `lora` are the settings that give it an adapter."""

    def averaged(policy: Any) -> None:
        stir(policy)
        wear(policy, lambda: policy.weights.swapped_in("ema"))

    def bare(policy: Any) -> None:
        stir(policy)
        wear(policy, lambda: switch_adapters(adapter_layers(policy.net.modules()), False))

    return {
        "training in bfloat16": Fault(common.PRECISION, after=then(half(True))),
        "sampling in bfloat16": Fault(common.PRECISION, half(True), then(half(False))),
        "log-probs rolled": Fault(common.SHIFT, after=rolled),
        "log-probs rolled back": Fault(common.SHIFT, after=lambda policy, rollouts: rolled(policy, rollouts, -1)),
        "dropout always on": Fault(common.DROPOUT, wrap(place, Noisy)),
        "train mode stuck": Fault(common.DROPOUT, wrap(place, Dropping), then(lambda policy: stuck_in_training(policy.net))),
        "rows mixed": Fault(common.BATCH, wrap(place, Mixing), micro_batch=1),
        "sampling under the average": Fault(common.WEIGHTS, averaged, moves=True),
        "sampling without adapter": Fault(common.WEIGHTS, bare, settings=lora, moves=True),
        "training without adapter": Fault(common.WEIGHTS, stir, then(disable_adapters), settings=lora, moves=True),
    }
