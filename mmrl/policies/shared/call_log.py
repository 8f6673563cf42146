"""A record of the work that a dry run is asked to do: how often each phase of a step calls the network, and on how much."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from mmrl.core.types import Prompt, Rollouts
from mmrl.policies.shared.interventions import holding
from mmrl.policies.shared.meta_models import LiveBytes
from mmrl.policies.shared.weights import Decay, Rest, Weights

PHASES = ("rollout", "read", "update")
OF_TEACHERS = "teachers"
"""In the names of parts beside the network that a process which only samples does not hold."""


@dataclass
class CallCount:
    """The work of one phase of a step."""

    parts: int = 0
    """Pieces of work: decoding side by side, or one forward over part of a batch."""
    passes: int = 0
    """Forwards of the network; in a text model those that decode a token included."""
    vision: int = 0
    """Passes of the vision tower."""
    rows: int = 0
    """Completions, or (flow) latents that the network saw."""
    positions: int = 0
    """Tokens, padding included, that went through the network."""

    def add(self, passes: int, vision: int, rows: int, positions: int) -> None:
        """Count one more piece of work."""
        self.parts, self.passes, self.vision = self.parts + 1, self.passes + passes, self.vision + vision
        self.rows, self.positions = self.rows + rows, self.positions + positions


@dataclass
class CallLog:
    """Counts of a dry run by phase, and how many positions the largest piece of work of each had."""

    counts: dict[str, CallCount] = field(default_factory=lambda: {phase: CallCount() for phase in PHASES})
    largest: dict[str, int] = field(default_factory=dict[str, int])
    """Phase -> positions of the largest piece of work."""
    generating: bool = False
    episode: str = ""
    """Of samples of several turns: the longest, in words."""
    latents: int = 0
    """For image generators: bytes of the latents that rollouts keep in the memory of the host."""
    decoded: int = 0
    """For image generators: bytes of the samples' pixels."""
    drawn: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """For image generators: (width, height) -> number of samples."""

    def clear(self) -> None:
        """Begin again; counts that were handed out stay as they are."""
        self.counts, self.largest = {phase: CallCount() for phase in PHASES}, {}
        self.latents, self.decoded, self.drawn = 0, 0, {}

    @property
    def phase(self) -> str:
        """The phase that work is counted under at present."""
        return "rollout" if self.generating else "update" if torch.is_grad_enabled() else "read"

    def rollout(self) -> AbstractContextManager[None]:
        """Count the work of a block as that of sampling."""
        return holding(self, "generating", True)

    def note(self, passes: int, vision: int, rows: int, positions: int, compared: bool = True, fed: int | None = None) -> bool:
        """Count a piece of work; True if it is the largest of its phase so far, of those that are compared.

        `fed`: how many of the positions go through the network; None: all.
        """
        self.counts[self.phase].add(passes, vision, rows, positions if fed is None else fed)
        if not compared or positions <= self.largest.get(self.phase, 0):
            return False
        self.largest[self.phase] = positions
        return True


class DryRun(ABC):
    """A policy built of parts that count and compute nothing, and what it would take to compute it."""

    policy: Any
    """The policy that the trainer is given; it goes through the motions of a run."""
    log: CallLog

    @property
    @abstractmethod
    def network(self) -> nn.Module:
        """The network that trains, and what it is built on, without weights."""

    @abstractmethod
    def largest_work(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """The largest pieces of work that were asked for: the phase of each, and how to do it in full size.

        Gradients are on in an update, whose work goes back as well.
        """

    def largest_of(self, prompts: Sequence[Prompt], count: int) -> Sequence[Prompt]:
        """The n prompts whose samples take the most memory; none where that is unknown, or they are alike."""
        return ()

    def beside(self) -> Mapping[str, int]:
        """Part -> bytes of further networks."""
        return {}

    def activations(self) -> Mapping[str, int]:
        """Phase -> most bytes that its largest piece of work keeps at a time, weights and their gradients apart."""
        make_gradients(self.network)
        found: dict[str, int] = {}
        for phase, work in self.largest_work():
            with LiveBytes() as live, torch.set_grad_enabled(phase == "update"):
                work()
            found[phase] = max(live.peak, found.get(phase, 0))
        return found

    def parts_of_activations(self) -> Mapping[str, int]:
        """The tensors that take much of them -> bytes; to be asked for after `activations`."""
        return {}

    @abstractmethod
    def host_bytes(self) -> Mapping[str, int]:
        """Part -> bytes of a step's rollouts that stay in the memory of the host until they are trained on."""


def no_audit(policy: object, rollouts: Rollouts) -> None:
    """The audit of a dry run, which has nothing real to find a mistake in."""


class StillWeights(nn.Module):
    """A network of one weight, 0, which no gradient moves: it stands for the weights that a dry run does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))

    def zero(self) -> torch.Tensor:
        """0, with a gradient where gradients are on."""
        return 0.0 * self.weight if torch.is_grad_enabled() else torch.zeros(())

    def keeper(self) -> Callable[[nn.Module, Iterable[str], Decay, bool, Rest], Weights]:
        """The part of a policy that keeps its weights: it keeps these instead of its network's."""
        return lambda module, shadows, ema_decay, sharded, rest: Weights(self, shadows, ema_decay)


def make_gradients(network: nn.Module) -> None:
    """Give every trainable weight a gradient: they exist when the second part of an update begins."""
    for weight in network.parameters():
        weight.grad = torch.zeros_like(weight) if weight.requires_grad else None
