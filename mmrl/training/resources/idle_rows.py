"""Rows that no term trains on, left out of an update: their forward and backward would give a gradient of 0."""

from dataclasses import replace

import torch
from jaxtyping import Bool
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.core.ranks import Ranks
from mmrl.core.types import Batch


def idle_rows(batch: Batch, algorithm: Algorithm) -> Bool[Tensor, " n"]:
    """Rows with actions whose share * importance * advantage is 0 everywhere; none where a term has more to say of them.

    More has KL, entropy, a regression, or a term that compares the rows of a group.
    """
    has_actions = batch.rollouts.action_mask.any(1)
    if not algorithm.leaves_rows_idle:
        return torch.zeros_like(has_actions)
    weight = batch.share * batch.importance * batch.advantages * batch.rollouts.action_mask
    return has_actions & (weight == 0).all(1)


def leave_out(batch: Batch, idle: Bool[Tensor, " n"], ranks: Ranks) -> Batch:
    """The batch without these rows; one row at least, so that every process has a gradient, be it of zeros.

    Shares come from global counts and stay as they are, so loss and gradient do not change. Metrics are means over the rows that
    are left, the same on any number of processes: where no process has a row that trains, they are of the first row of all.
    """
    left = batch.rollouts.action_mask.any(1) & ~idle
    everyone = ranks.gather((bool(left.any()), bool(idle.any())))
    if not bool(idle.any()) or bool(left.any()):
        return batch.take((~idle).nonzero()[:, 0]) if bool(idle.any()) else batch
    stand_in = batch.take(idle.nonzero()[:1, 0])
    if not any(trains for trains, _ in everyone) and [rests for _, rests in everyone].index(True) == ranks.rank:
        return stand_in
    return replace(stand_in, share=torch.zeros_like(stand_in.share))
