"""Parts that look at those beside them: at a planner that begins parts of groups otherwise, at a group that can be divided."""

from collections.abc import Sequence
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmrl.core.protocols import Planner, Term
from mmrl.core.types import Rollouts, Sample

OWN = ("Once", "SampleFrom", "DynamicSampling", "UntilMixed", "WhereHard", "WhereUncertain", "Tempered", "ByDoubt")
"""Planners whose rows are all of the policy's own making."""


class Parts(Protocol):
    """The facts of an algorithm that a part in it may ask for."""

    @property
    def planner(self) -> Planner: ...
    @property
    def group_size(self) -> int: ...
    @property
    def advantage(self) -> object: ...
    @property
    def objective(self) -> Sequence[tuple[float, Term]]: ...


class Beside:
    """A part that does not go with every other one. Asked before a model is loaded."""

    planners: tuple[str, ...] = ()
    """Of the planners of mmrl those whose samples it is made for; empty: all."""
    advantages: tuple[str, ...] = ()
    """Of the advantages of mmrl those that it goes with; empty: all."""

    def check_beside(self, algorithm: Parts) -> None:
        """Look at the algorithm that it is part of.

        Raises:
            ValueError: they do not go together; names the setting and the remedy.
        """
        beside = (("planner", algorithm.planner, self.planners), ("advantage", algorithm.advantage, self.advantages))
        for slot, part, wanted in beside:
            found = type(part).__name__
            if wanted and found not in wanted and type(part).__module__.startswith("mmrl.algorithms."):
                raise ValueError(
                    f"{type(self).__name__} is made for the {slot} {' or '.join(wanted)}, and algorithm.{slot} is {found}: set "
                    f"algorithm.{slot}.kind = {wanted[0]!r}"
                )


SHARES = (0.125, 0.25, 0.5, 0.625)
"""512, 1024, 2048 and 2560 of HBPO's 4096 tokens."""


def part_numbers(rollouts: Rollouts, count: int) -> Int[Tensor, " n"]:
    """Which of `count` equal parts of its group each row is in, by the number of its sample."""
    sizes = torch.tensor([len(group.samples) for group, _ in rollouts.samples()], dtype=torch.long)
    return rollouts.sample_ids.cpu() * count // sizes


def thought_of(sample: Sample) -> int:
    """How many tokens of an earlier thought a sample begins with, in front of the text that ends it."""
    first = sample.segments[0] if sample.segments else None
    return len(first) if first is not None and first.who == "policy" and len(sample.segments) > 1 else 0


def exit_of(sample: Sample) -> int:
    """The token at which a sample leaves its thought: after the forced text; a large number if none was forced."""
    return max((one.stop for one in sample.segments if one.who == "forced"), default=2**62)


def worth_of(length: Float[Tensor, "..."], most: float, pi: float) -> Float[Tensor, "..."]:
    """4 cos(pi n / (2 most)): 4 for an empty answer, 0 for the longest (HBPO)."""
    return 4 * torch.cos(pi * length / (2 * most))


class OfPairs(Beside):
    """A term that compares two samples of a group, a better one and a worse one."""

    advantages = ("Preferred", "BestAgainstWorst", "BestWorst")


class OfBudgets(Beside):
    """A part that looks at budgets of samples."""

    planners = ("Budgets",)

    def check_beside(self, algorithm: Parts) -> None:
        """Raises ValueError unless the planner is Budgets with the same shares, of as long an answer where the part names one."""
        super().check_beside(algorithm)
        own, theirs = vars(self), vars(algorithm.planner)
        for name in [name for name in ("shares", "length") if name in own and own[name] != theirs.get(name, own[name])]:
            raise ValueError(
                f"{type(self).__name__}.{name} is {own[name]}, and algorithm.planner.{name} is {theirs[name]}: take one for both"
            )
