"""Aggregations: the share of every action in the loss, from the counts of all ranks. `aggregation` slot of an Algorithm."""

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.beside import Beside, Parts
from mmrl.algorithms.turns import turn_numbers
from mmrl.core.hooks import PlannerHooks, WeightHooks, with_hooks
from mmrl.core.types import Batch, Counts, Reading, Scope
from mmrl.runtime.ranges import Count, NonNegative


class PlainWeight(WeightHooks):
    """The declarations of a weight that looks at one rollout at a time, as aggregations do; most read nothing."""

    reads: tuple[Reading, ...] = ()
    scope: Scope = "rollout"


def actions(batch: Batch) -> Float[Tensor, "n t"]:
    """1 where an action trains, 0 elsewhere."""
    return batch.rollouts.action_mask.to(batch.advantages.dtype)


@dataclass(frozen=True)
class SequenceMean(PlainWeight):
    """share = 1 / (N len_n): every rollout counts the same, every action in it the same (GRPO, arXiv:2402.03300).

    N is the number of rollouts that train: a fully masked one leaves it (as in verl; TRL and EasyR1 count it).
    """

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        mask = actions(batch)
        return mask / mask.sum(1, keepdim=True).clamp(min=1) / max(counts.rollouts, 1)


@dataclass(frozen=True)
class TokenMean(PlainWeight):
    """share = 1 / sum_n len_n: every action of the minibatch counts the same (DAPO, arXiv:2503.14476)."""

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        return actions(batch) / max(counts.actions, 1)


@dataclass(frozen=True)
class FixedLength(PlainWeight):
    """share = 1 / (N length): no rollout gains by being long or short (Dr. GRPO, arXiv:2503.20783).

    Shares add up to the mean length over `length`, not to 1.
    """

    length: Count | None = None
    """In actions. None: the run fills in its max_new_tokens."""

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        """Raises ValueError when `length` was never filled in."""
        if self.length is None:
            raise ValueError(
                "FixedLength.length is not set, and nothing filled in the run's max_new_tokens: "
                "give the aggregation a length, FixedLength(length=1024)"
            )
        return actions(batch) / (max(counts.rollouts, 1) * self.length)


@dataclass(frozen=True)
class SequenceSum(PlainWeight):
    """share = 1 / N: a rollout counts in proportion to its length (LUSPO, arXiv:2602.05261). Shares add up to the mean length."""

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        return actions(batch) / max(counts.rollouts, 1)


@dataclass(frozen=True)
class GroupSum(PlainWeight):
    """share = 1 / (Q len_n): mean over a rollout's actions, sum over its group, mean over groups.

    Q is the number of groups that train. For terms that compare the rollouts of a group (Discriminative). Shares add up to the
    mean group size.
    """

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        mask = actions(batch)
        return mask / mask.sum(1, keepdim=True).clamp(min=1) / max(counts.groups, 1)


@dataclass(frozen=True)
class TurnMean(PlainWeight):
    """share = 1 / (N k_n len_nk): every rollout counts the same, every turn in it the same, every action of a turn the same.

    k_n is the number of turns of a rollout that have actions that train. Ours; with one turn it is SequenceMean.
    """

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        mask, numbers = actions(batch), turn_numbers(batch.rollouts)
        share, present = mask * 0, mask.sum(1, keepdim=True) * 0
        for k in range(int(numbers.max()) + 1 if numbers.numel() else 0):
            turn = mask * (numbers == k)
            length = turn.sum(1, keepdim=True)
            share, present = share + turn / length.clamp(min=1), present + (length > 0)
        return share / present.clamp(min=1) / max(counts.rollouts, 1)


@dataclass(frozen=True)
class FirstApart(PlainWeight, Beside):
    """share = alpha / N at a rollout's first action, 1 / (all others) elsewhere (DeGRPO of Thinkless, arXiv:2505.13379).

    The first token decides whether to think: however long the thought, it keeps its say. As in its code later actions count
    alike; the paper averages them by rollout. Shares add up to alpha + 1.
    """

    alpha: NonNegative = 1e-3
    """What the first action weighs, all later ones together being 1."""

    length = None

    def with_length(self, length: int) -> "FirstApart":
        """The same; raises ValueError for rollouts of one action."""
        if length < 2:
            raise ValueError(
                f"FirstApart sets the first token apart from later ones, and policy.sampling.max_new_tokens is {length}: raise it"
            )
        return self

    def check_beside(self, algorithm: Parts) -> None:
        """Raises ValueError where the planner writes first tokens itself."""
        if not with_hooks(algorithm.planner, PlannerHooks).samples_plainly:
            raise ValueError(
                "FirstApart weighs the first token that the policy chose, and algorithm.planner "
                f"{type(algorithm.planner).__name__} begins or shows samples itself: set algorithm.planner.kind = 'Once'"
            )

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        mask = actions(batch)
        first = mask * (mask.cumsum(1) == 1)
        return self.alpha * first / max(counts.rollouts, 1) + (mask - first) / max(counts.actions - counts.rollouts, 1)


@dataclass(frozen=True)
class TokenSum(PlainWeight):
    """share = 1: the sum over all actions; the learning rate must suit the batch size."""

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        return actions(batch)
