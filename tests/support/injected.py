"""Faults put into a policy for one step and taken out again, and what the run says of them."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmrl.algorithms.algorithm import Algorithm
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Prompt, Rollouts
from mmrl.policies.shared.lora import adapter_layers
from tests.support.faults import stop_of, trainer_of, unchanged

Change = Callable[[Any, pytest.MonkeyPatch], object]


@contextmanager
def kept_weights(policy: Any) -> Iterator[None]:
    """A block after which all weights are what they were."""
    kept = [(weight, weight.detach().clone()) for weight in policy.net.parameters()]
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, value in kept:
                weight.copy_(value)


def nothing(policy: Any, patch: pytest.MonkeyPatch) -> None:
    """No change."""


@dataclass(frozen=True)
class Injected:
    """A change while sampling, of what was recorded, or from then on; it is undone after the step."""

    cause: str | None
    """The cause that the run must name; None: it must say that it knows none."""
    sampling: Change = nothing
    record: Callable[[Any, Rollouts], Rollouts] = unchanged
    training: Change = nothing


def message_of(policy: Any, algorithm: Algorithm, prompts: Sequence[Prompt], fault: Injected, **numbers: Any) -> str:
    """The message of a first step with this fault; "" if it was not stopped, and then the policy has learned."""
    with pytest.MonkeyPatch.context() as lasting, kept_weights(policy):
        sample = policy.rollout

        def broken(requests: Any, sampling: Any = None) -> Rollouts:
            with pytest.MonkeyPatch.context() as passing, kept_weights(policy):
                fault.sampling(policy, passing)
                rollouts = sample(requests, sampling)
            rollouts = fault.record(policy, rollouts)
            fault.training(policy, lasting)
            return rollouts

        lasting.setattr(policy, "rollout", broken)
        return stop_of(trainer_of(policy, algorithm, prompts, **numbers))


def cause_in(message: str) -> str | None:
    """The cause that a message names; None where it says that no single one explains it."""
    found = re.search(r"Likely cause: (.+?) \((?:evaluated again |\d+ layers |two readings )", message)
    assert found or "No single cause explains it" in message, message or "the run was not stopped"
    return found and found[1]


def noted(change: Callable[[Tensor], Tensor]) -> Callable[[Any, Rollouts], Rollouts]:
    """A record in which the log-probabilities are others."""

    def changed(policy: Any, rollouts: Rollouts) -> Rollouts:
        values = change(rollouts.recorded[ROLLOUT_LOGPROBS].clone())
        return replace(rollouts, recorded={**rollouts.recorded, ROLLOUT_LOGPROBS: values})

    return changed


def traced(change: Callable[[Any], Any]) -> Callable[[Any, Rollouts], Rollouts]:
    """A record whose trace is another."""
    return lambda policy, rollouts: replace(rollouts, trace=change(rollouts.trace))


def in_groups(size: int) -> Callable[[Tensor], Tensor]:
    """Every row becomes the next one of its group."""
    return lambda x: x.view(-1, size, *x.shape[1:]).roll(1, 1).view(x.shape)


def two_rows(x: Tensor) -> Tensor:
    """The first row of the first group and the last of the last change places."""
    order = torch.arange(len(x))
    order[0], order[-1] = len(x) - 1, 0
    return x[order]


def scaled(factor: float) -> Change:
    """Adapters add this many times what they should."""

    def change(policy: Any, patch: pytest.MonkeyPatch) -> None:
        for layer in adapter_layers(policy.net.modules()):
            patch.setattr(layer, "scaling", {name: factor * value for name, value in layer.scaling.items()})

    return change


def merged(policy: Any, patch: pytest.MonkeyPatch) -> None:
    """Adapters are in the weights already, and active."""
    for layer in adapter_layers(policy.net.modules()):
        own: Any = layer
        with torch.no_grad():
            added = own.scaling["default"] * own.lora_B["default"].weight @ own.lora_A["default"].weight
            own.base_layer.weight += added


def older(policy: Any, patch: pytest.MonkeyPatch) -> None:
    """Weights that an update has changed since, each a little in a direction of its own."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for weight in policy.parameters():
            weight += 0.05 * torch.randn(weight.shape, generator=generator)


def under_gradients(module: Callable[[Any], nn.Module]) -> Change:
    """A layer gives other numbers when gradients are on."""

    def change(policy: Any, patch: pytest.MonkeyPatch) -> None:
        layer = module(policy)
        right = layer.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            return (1.2 if torch.is_grad_enabled() else 1.0) * right(*args, **kwargs)

        patch.setattr(layer, "forward", forward)

    return change


def half_under_gradients(policy: Any, patch: pytest.MonkeyPatch) -> None:
    """Autocast is on with gradients alone."""
    right = policy.net._precision
    half = torch.autocast("cpu", torch.bfloat16)
    patch.setattr(policy.net, "_precision", lambda: half if torch.is_grad_enabled() else right())
