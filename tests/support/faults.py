"""Faults put between sampling and training for one step and taken out again, and what the run says of them."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MethodType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Group, Prompt, Rollouts, Video
from mmrl.policies.shared import hypotheses as common
from mmrl.policies.shared.lora import adapter_layers, switch_adapters
from mmrl.policies.shared.weights import Weights
from mmrl.policies.text.write.generate import Generator
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.stopping import TrainingStoppedError
from mmrl.training.trainer import Trainer
from tests.support.text_policies import picture
from tests.support.videos import even, write_video

Change = Callable[[Any, pytest.MonkeyPatch], object]
"""Changes a policy by patches, which are undone."""
Record = Callable[[Any, Rollouts], Rollouts]


def questions(folder: Path) -> dict[str, list[Prompt]]:
    """Prompts with a picture each, and with a clip each, all of one size; the clips are written."""
    files = [write_video(folder / f"{i}.mp4", even(50 + 25 * i), size=(112, 56)) for i in range(3)]
    clips = [Video(file, frames=4, start=0.2 * i, end=1.8) for i, file in enumerate(files)]
    return {
        "pictures": [Prompt(name, "what is it?", (picture(i),)) for i, name in enumerate("abc")],
        "clips": [Prompt(name, "when is it?", (clip,)) for name, clip in zip("abc", clips, strict=True)],
    }


def nothing(policy: Any, patch: pytest.MonkeyPatch) -> None:
    """No change."""


def unchanged(policy: Any, rollouts: Rollouts) -> Rollouts:
    return rollouts


@dataclass(frozen=True)
class Fault:
    """A change while sampling, of what was recorded, or from then on; it is undone after the step."""

    cause: str | None
    """The cause that the run must name; None: it must say that it knows none."""
    sampling: Change = nothing
    record: Record = unchanged
    training: Change = nothing
    throughout: Change = nothing
    """In sampling and in training."""
    settings: tuple[tuple[str, Any], ...] = ()
    """Settings of the policy."""
    micro_batch: int = 100_000
    moves: bool = False
    """Does it change the weights that train?"""


@contextmanager
def injected(policy: Any, fault: Fault) -> Iterator[None]:
    """A block in which a policy's rollouts have this fault."""
    with pytest.MonkeyPatch.context() as lasting:
        sample = policy.rollout
        fault.throughout(policy, lasting)

        def broken(requests: Any, sampling: Any = None) -> Rollouts:
            with pytest.MonkeyPatch.context() as passing:
                fault.sampling(policy, passing)
                rollouts = sample(requests, sampling)
            rollouts = fault.record(policy, rollouts)
            fault.training(policy, lasting)
            return rollouts

        lasting.setattr(policy, "rollout", broken)
        yield


def variety(group: Group) -> list[float]:
    """Any reward that differs within a group."""
    return [float(i) for i in range(len(group.samples))]


def trainer_of(
    policy: Any, algorithm: Algorithm, prompts: Sequence[Prompt], reward: Callable[[Group], Any] = variety, **numbers: Any
) -> Trainer:
    usual: dict[str, Any] = {"steps": 2, "prompts_per_step": len(prompts), "micro_batch": 100_000}
    settings = TrainSettings(**{**usual, "optimizer": OptimizerSettings(lr=1e-3), **numbers})
    return Trainer(policy, algorithm, Shuffled(prompts), RewardRunner([NamedReward(reward.__name__, reward)]), settings)


def message_of(policy: Any, algorithm: Algorithm, prompts: Sequence[Prompt], fault: Fault, **numbers: Any) -> str:
    """The message of the gate that stops a first step with this fault; "" if none does, and then the policy has learned."""
    with injected(policy, fault):
        trainer = trainer_of(policy, algorithm, prompts, **{"micro_batch": fault.micro_batch, **numbers})
        trainer.audit = lambda rollouts, step: None  # type: ignore[assignment] - the gate alone must name it
        try:
            trainer.step()
        except TrainingStoppedError as error:
            return str(error)
    return ""


def assert_named(policy: Any, algorithm: Algorithm, prompts: Sequence[Prompt], fault: Fault, **numbers: Any) -> None:
    """Fail unless the run names the fault's cause, and learns only where the fault lets it."""
    before = [weight.detach().clone() for weight in policy.parameters()]
    message = message_of(policy, algorithm, prompts, fault, **numbers)
    assert f"Likely cause: {fault.cause} (" in message, message
    moved = not all(torch.equal(a, b) for a, b in zip(before, policy.parameters(), strict=True))
    assert moved == fault.moves, "no update was made"


def cause_in(message: str) -> str | None:
    """The cause that a message names; None where it says that no single one explains it."""
    found = re.search(r"Likely cause: (.+?) \((?:evaluated again |\d+ layers |two readings )", message)
    assert found or "No single cause explains it" in message, message or "the run was not stopped"
    return found and found[1]


def noted(change: Callable[[Tensor], Tensor]) -> Record:
    """A record in which the log-probabilities are others."""

    def changed(policy: Any, rollouts: Rollouts) -> Rollouts:
        values = change(rollouts.recorded[ROLLOUT_LOGPROBS].clone())
        return replace(rollouts, recorded={**rollouts.recorded, ROLLOUT_LOGPROBS: values})

    return changed


def traced(change: Callable[[Any], Any]) -> Record:
    """A record whose trace is another."""
    return lambda policy, rollouts: replace(rollouts, trace=change(rollouts.trace))


class Noisy(nn.Module):
    """A layer that drops some of its output, whatever the mode."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.drop = inner, nn.Dropout(0.1)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return nn.functional.dropout(self.inner(*args, **kwargs), 0.1, training=True)


class Mixing(Noisy):
    """A layer whose output depends on the other rows."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        out = self.inner(*args, **kwargs)
        return out + out.mean(0, keepdim=True)


class Dropping(Noisy):
    """A layer with an ordinary dropout that loading overlooked."""

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return self.drop(self.inner(*args, **kwargs))


def stuck_in_training(policy: Any, patch: pytest.MonkeyPatch) -> None:
    """`eval` no longer ends training mode."""
    net = policy.net
    nn.Module.train(net, True)
    patch.setattr(net, "train", MethodType(lambda self, mode=True: nn.Module.train(self, True), net))
    patch.setattr(net, "eval", lambda: net)


Place = Callable[[Any], tuple[nn.Module, str]]
"""A block of a policy's network, and the name of a layer in it."""


def wrap(place: Place, kind: type[nn.Module]) -> Change:
    """A layer inside another one."""

    def change(policy: Any, patch: pytest.MonkeyPatch) -> None:
        block, name = place(policy)
        patch.setattr(block, name, kind(getattr(block, name)).eval())

    return change


def guided(value: float) -> Change:
    """The guidance of an image generator."""
    return lambda policy, patch: patch.setattr(policy.net, "guidance", value)


def half(policy: Any, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(policy.net, "half_precision", True)


@dataclass
class Around(Generator):
    """A generator that does something around another one."""

    inner: Any

    def write_all(self, parts: Any) -> list[Any]:
        return [self.write(*part) for part in parts]

    def follow(self, weights: Weights, version: int) -> None:
        self.inner.follow(weights, version)


def inside(context: Callable[[Any], AbstractContextManager[object]]) -> Change:
    """The policy writes inside of a block."""

    def change(policy: Any, patch: pytest.MonkeyPatch) -> None:
        class Inside(Around):
            def write(self, *asked: Any, **_: Any) -> Any:
                with context(policy):
                    return self.inner.write(*asked)

        patch.setattr(policy, "generator", Inside(policy.generator))

    return change


def disable_adapters(policy: Any, patch: pytest.MonkeyPatch) -> None:
    for layer in adapter_layers(policy.net.modules()):
        patch.setattr(layer, "_disable_adapters", True)


def usual_faults(place: Place, stir: Callable[[Any], object], lora: tuple[tuple[str, Any], ...] = ()) -> dict[str, Fault]:
    """Faults that any policy may have; `stir` moves its weights, `lora` are the settings that give it an adapter."""

    def stirred(policy: Any, patch: pytest.MonkeyPatch) -> None:
        stir(policy)

    average = inside(lambda policy: policy.weights.swapped_in("ema"))
    bare = inside(lambda policy: switch_adapters(adapter_layers(policy.net.modules()), False))
    return {
        "training in bfloat16": Fault(common.PRECISION, training=half),
        "sampling in bfloat16": Fault(common.PRECISION, sampling=half),
        "log-probs rolled": Fault(common.SHIFT, record=noted(lambda x: x.roll(1, 1))),
        "log-probs rolled back": Fault(common.SHIFT, record=noted(lambda x: x.roll(-1, 1))),
        "dropout always on": Fault(common.DROPOUT, throughout=wrap(place, Noisy)),
        "train mode stuck": Fault(common.DROPOUT, throughout=wrap(place, Dropping), training=stuck_in_training),
        "rows mixed": Fault(common.BATCH, throughout=wrap(place, Mixing), micro_batch=1),
        "sampling under the average": Fault(common.WEIGHTS, average, throughout=stirred, moves=True),
        "sampling without adapter": Fault(common.WEIGHTS, bare, throughout=stirred, settings=lora, moves=True),
        "training without adapter": Fault(
            common.WEIGHTS, training=disable_adapters, throughout=stirred, settings=lora, moves=True
        ),
    }
