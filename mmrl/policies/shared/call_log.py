"""Counts what a policy asks of its network."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from mmrl.core.types import Rollouts

PHASES = ("rollout", "read", "update")


@dataclass
class Tally:
    """What the policy was asked in one phase of a step."""

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


@dataclass
class Diary:
    """Tallies of a rehearsal, and its largest pieces of work."""

    tallies: dict[str, Tally] = field(default_factory=lambda: {phase: Tally() for phase in PHASES})
    largest: dict[str, tuple[int, Any]] = field(default_factory=dict[str, tuple[int, Any]])
    """Phase -> positions of the largest piece of work, and that piece."""

    def note(self, phase: str, work: Any, passes: int, vision: int, rows: int, positions: int) -> None:
        tally = self.tallies[phase]
        tally.parts, tally.passes, tally.vision = tally.parts + 1, tally.passes + passes, tally.vision + vision
        tally.rows, tally.positions = tally.rows + rows, tally.positions + positions
        if positions > self.largest.get(phase, (0, None))[0]:
            self.largest[phase] = (positions, work)


class Unexamined:
    """There is nothing real to find a mistake in."""

    def audit(self, rollouts: Rollouts) -> None:
        """Finds nothing."""

    def hypotheses(self, rollouts: Rollouts) -> tuple[()]:
        return ()


def with_gradients(network: nn.Module) -> None:
    """Gradients exist when the second part of an update begins; they are counted beside the activations."""
    for weight in network.parameters():
        weight.grad = torch.zeros_like(weight) if weight.requires_grad else None
