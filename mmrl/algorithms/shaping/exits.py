"""Rewards for answers that leave a thought early."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmrl.algorithms.beside import exit_of
from mmrl.algorithms.statistics import PlainShaping, instead
from mmrl.core.types import Reading, Rollouts, Scores
from mmrl.runtime.ranges import Number


def exit_rewards(right: Bool[Tensor, " g"]) -> Float[Tensor, " g"]:
    """2^-(k - 1) for the k-th right one, in the order given, 0 for wrong ones."""
    return torch.where(right, 0.5 ** (right.cumsum(0) - 1), 0.0)


@dataclass(frozen=True)
class ExitDecay(PlainShaping):
    """Adds `<reward>_exit` in place of a reward: 2^-(k - 1) for the k-th right sample of a group, from the earliest exit on.

    S-GRPO, arXiv:2505.07686; for groups of SerialExits. The whole answer, which has no given tokens, is the last exit.
    """

    reward: str | None = None
    success_at: Number = 0.5

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        exits = torch.tensor([exit_of(sample) for _, sample in rollouts.samples()], dtype=torch.long)

        def decay(accuracy: Tensor) -> Tensor:
            values = torch.zeros_like(accuracy)
            for group in rollouts.groups:
                rows = (rollouts.group_ids == group.id).nonzero()[:, 0]
                rows = rows[exits[rows].argsort(stable=True)]
                values[rows] = exit_rewards(accuracy[rows] >= self.success_at).to(values)
            return values

        return instead(scores, self, self.reward, "exit", decay)
