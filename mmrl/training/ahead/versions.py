"""The weights that steps in flight are written by, set aside by the number of steps that they have had."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from mmrl.core.protocols import Policy


@runtime_checkable
class Publishes(Protocol):
    """A policy whose rollouts are written elsewhere, by a copy of its weights."""

    def publish(self, version: int | None = None) -> tuple[int, Callable[[], None], Callable[[], None]]:
        """Set the live weights aside under this number, or that of the updates that they had.

        Returns the number, a call by which rollouts are written with them from then on, and one that gives up what is written;
        both may come from any thread.
        """
        ...


@dataclass(frozen=True)
class Version:
    """The weights after one step."""

    weights: list[Tensor]
    number: int
    """By which the policy names them in rollouts."""
    hold: Callable[[], None]
    leave: Callable[[], None]


class Versions:
    """Those that a policy has published, and those of a checkpoint until they are."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.parameters = policy, list(policy.parameters())
        self.held: dict[int, Version] = {}
        self._kept: dict[int, tuple[int, list[Tensor]]] = {}
        """Of a checkpoint: number and weights."""

    def publish(self, step: int, number: int | None = None) -> Version:
        """Set the live weights aside as those after this many steps, unless they are already."""
        if step not in self.held:
            assert isinstance(self.policy, Publishes)
            weights = [weight.detach().clone() for weight in self.parameters]
            self.held = {**self.held, step: Version(weights, *self.policy.publish(number))}
        return self.held[step]

    def begin(self, steps: Iterable[int]) -> None:
        """Publish what the first steps are written by: the checkpoint's, and the live weights."""
        for step in steps:
            number, weights = self._kept.get(step, (None, self.parameters))
            with under(self.parameters, weights):
                self.publish(step, number)
        self._kept = {}

    def forget_before(self, step: int, looks: bool) -> None:
        """Keep those from this one on, and while rows are compared the one before, away from a card."""
        held = {at: one for at, one in self.held.items() if at >= step}
        if looks and (before := self.held.get(step - 1)) is not None:
            held[step - 1] = replace(before, weights=[weight.cpu() for weight in before.weights])
        self.held = held

    def blocks(self) -> Mapping[int, Callable[[], AbstractContextManager[None]]]:
        """By step, a block in which the policy has these weights."""
        return {step: partial(under, self.parameters, one.weights) for step, one in self.held.items()}

    def rows(self, steps: Iterable[int]) -> list[list[object]]:
        """Step, number and weights of those of these steps that are there, for a checkpoint."""
        found = {step: (one.number, one.weights) for step, one in self.held.items()} | self._kept
        return [[step, *found[step]] for step in steps if step in found]

    def load(self, listed: Iterable[Sequence[Any]], needed: Iterable[int], live: int) -> None:
        """Take those of a checkpoint.

        Raises:
            ValueError: it lacks one that is needed and is not the live one.
        """
        self._kept = {step: (number, weights) for step, number, weights in listed}
        lost = sorted({*needed} - {*self._kept, live})
        if lost:
            raise ValueError(
                f"the checkpoint lacks the weights after step {lost[0]}, by which steps are sampled next: the run that wrote it "
                "had another save_every with ahead_drain, so set both as there"
            )


@contextmanager
def under(parameters: Sequence[Tensor], weights: Sequence[Tensor]) -> Iterator[None]:
    """A block in which these parameters have other weights."""
    # through .data the version counters stay, as for shadows
    live = [weight.data for weight in parameters]
    kept = [weight.clone() for weight in live]
    put(live, weights)
    try:
        yield
    finally:
        put(live, kept)


@torch.no_grad()
def put(to: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Write values into tensors, in place."""
    for weight, value in zip(to, values, strict=True):
        weight.copy_(value)
