"""Minibatches of one step: the same rows whatever the number of ranks, with shares from global counts.

Rows that no term trains on are left out: their forward and backward would give a gradient of 0.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.core.hooks import WeightHooks, with_hooks
from mmrl.core.ranks import Ranks
from mmrl.core.types import Batch, Counts, Credit, Reading, Rollouts


@dataclass(frozen=True)
class Batches:
    """Divides the rollouts of a step into the batches of its optimizer steps."""

    algorithm: Algorithm
    ranks: Ranks
    generator: torch.Generator

    def __call__(self, rollouts: Rollouts, credit: Credit, frozen: Mapping[Reading, Tensor]) -> Iterator[Batch]:
        """Every pass divides all rows (whole groups if a part compares them) into `minibatches` batches.

        A batch in which no rank has an action that trains is left out: its gradient is 0, and momentum would move the weights.
        """
        for _ in range(self.algorithm.epochs):
            whole = self.algorithm.minibatches == 1
            for rows in [torch.arange(len(rollouts))] if whole else self.shuffle_minibatches(rollouts):
                if self.ranks.sum([int(rollouts.action_mask[rows].any())])[0]:
                    yield self.batch(rollouts, credit, frozen, rows)

    def shuffle_minibatches(self, rollouts: Rollouts) -> list[Tensor]:
        """This rank's rows of each minibatch, from one permutation shared by all ranks."""
        everyone, mine = self.ranks.all_rows(rollouts)
        unit = everyone.group_ids if self.algorithm.scope in ("group", "batch") else places_of_rows(everyone)
        units = unit.unique()
        order = units[torch.randperm(len(units), generator=self.generator)]
        chunks = []
        for chosen in order.tensor_split(self.algorithm.minibatches):
            rows = torch.isin(unit, chosen).nonzero()[:, 0]
            rows = rows[(rows >= mine.start) & (rows < mine.stop)] - mine.start
            chunks.append(rows)
        return chunks

    def batch(self, rollouts: Rollouts, credit: Credit, frozen: Mapping[Reading, Tensor], rows: Tensor) -> Batch:
        """The minibatch of these rows, with shares from global counts; a rank without rows gets one whose shares are 0."""
        idle = len(rows) == 0 and len(rollouts) > 0
        rows = torch.zeros(1, dtype=torch.long) if idle else rows
        chosen = rollouts.take(rows)
        if idle:
            chosen = replace(chosen, action_mask=torch.zeros_like(chosen.action_mask))
        ones = torch.ones_like(credit.values[rows])
        batch = Batch(chosen, credit.values[rows], ones, ones, {reading: x[rows] for reading, x in frozen.items()})
        share, importance = self.algorithm.loss_weights(batch, replace(self.counts(chosen), pooled=self.pool(batch)))
        return replace(batch, share=share, importance=importance)

    def counts(self, rollouts: Rollouts) -> Counts:
        live = rollouts.action_mask.any(1)
        groups = set().union(*self.ranks.gather(set(rollouts.group_ids[live].tolist())))
        num_rollouts, num_actions = self.ranks.sum([int(live.sum()), int(rollouts.action_mask.sum())])
        return Counts(max(1, int(num_rollouts)), max(1, int(num_actions)), max(1, len(groups)))

    def pool(self, batch: Batch) -> dict[Reading, Tensor]:
        """Reading -> its values at the trainable actions of all ranks, for the weights that need them."""
        wanted = dict.fromkeys(r for weight in self.algorithm.importance for r in with_hooks(weight, WeightHooks).pools)
        mask = batch.rollouts.action_mask
        return {reading: torch.cat(self.ranks.gather(batch.frozen[reading][mask])) for reading in wanted}


def places_of_rows(rollouts: Rollouts) -> Int[Tensor, " n"]:
    """Every row's place in the order of groups and samples, which no round of sampling and no number of processes changes."""
    order = sorted(range(len(rollouts)), key=lambda i: (int(rollouts.group_ids[i]), int(rollouts.sample_ids[i])))
    return torch.tensor(order, dtype=torch.long).argsort()


def idle_rows(batch: Batch, algorithm: Algorithm) -> Bool[Tensor, " n"]:
    """Rows with actions whose share * importance * advantage is 0 everywhere; none if a term could still train them.

    Such terms are KL, entropy, a regression, or one that compares the rows of a group.
    """
    has_actions = batch.rollouts.action_mask.any(1)
    if not algorithm.leaves_rows_idle:
        return torch.zeros_like(has_actions)
    weight = batch.share * batch.importance * batch.advantages * batch.rollouts.action_mask
    return has_actions & (weight == 0).all(1)


def leave_out(batch: Batch, idle: Bool[Tensor, " n"], ranks: Ranks) -> Batch:
    """The batch without these rows; at least one row stays, so that every process has a gradient, if only of zeros.

    Shares come from global counts and stay as they are, so loss and gradient do not change. Metrics are means over the rows that
    are left, the same on any number of processes: if no process has a row that trains, they are those of one row on the first
    process.
    """
    left = batch.rollouts.action_mask.any(1) & ~idle
    everyone = ranks.gather((bool(left.any()), bool(idle.any())))
    if not bool(idle.any()) or bool(left.any()):
        return batch.take((~idle).nonzero()[:, 0]) if bool(idle.any()) else batch
    stand_in = batch.take(idle.nonzero()[:1, 0])
    if not any(trains for trains, _ in everyone) and [rests for _, rests in everyone].index(True) == ranks.rank:
        return stand_in
    return replace(stand_in, share=torch.zeros_like(stand_in.share))
