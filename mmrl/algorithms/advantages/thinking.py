"""Advantages of groups whose parts begin otherwise: above a reference that thinks, and within and between budgets."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.beside import (
    HALVES,
    SHARES,
    Beside,
    Parts,
    check_budgets,
    exit_of,
    part_numbers,
    refuse_other_planner,
    worth_of,
)
from mmrl.algorithms.statistics import Compared, by_group, less_mean, standardize, to_credit, totals_and_keep
from mmrl.core.hooks import AdvantageHooks
from mmrl.core.types import Credit, Prompt, Rollouts, Sample, Scores
from mmrl.runtime.ranges import NonNegative, Number, Positive, PositiveShare, Range


@dataclass(frozen=True)
class AboveReference(AdvantageHooks, Beside):
    """A = r - accuracy of the start weights, thinking + delta where nothing was thought (AdaptThink, arXiv:2505.13417).

    Nothing is compared within the group. The accuracy of each prompt is a column of the data, measured before.
    """

    delta: Number = 0.05
    """What it is worth not to think: how much accuracy may be lost for it."""
    column: str = "reference_accuracy"
    """The column with the share of right answers of the start weights, thinking."""

    def check_beside(self, algorithm: Parts) -> None:
        """Raises ValueError without the planner ThinkOrNot."""
        refuse_other_planner(self, algorithm, "ThinkOrNot", HALVES)

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError for a prompt without the column."""
        for prompt in prompts:
            self.of(prompt)

    def of(self, prompt: Prompt) -> float:
        """A prompt's reference accuracy; ValueError where it is no number in [0, 1]."""
        found = prompt.columns.get(self.column)
        if isinstance(found, bool) or not isinstance(found, int | float) or not 0 <= found <= 1:
            raise ValueError(
                f"prompt {prompt.id!r} has {found!r} in the column {self.column!r}, the share of right answers of the start "
                "weights: measure it with `mmrl sample`, and add it to the data, or name another column with "
                "algorithm.advantage.column"
            )
        return float(found)

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        base = totals.new_tensor([self.of(group.prompt) for group, _ in rollouts.samples()])
        short = (part_numbers(rollouts, 2) == 0).to(totals)
        return to_credit(totals - base + self.delta * short, keep, rollouts, scores)


@dataclass(frozen=True)
class WithinBudgets(Compared, Beside):
    """A = (r - mean) / (std + eps) + (mean of the samples with this budget - w(b)), w(b) = 4 cos(pi b / (2 most)) (HBPO).

    arXiv:2507.15844, for groups of the planner Budgets. Its released code adds the second part twice.
    """

    shares: tuple[PositiveShare, ...] = SHARES
    """As the planner's."""
    eps: NonNegative = 1e-6
    pi: Positive = math.pi
    """3.1416 in its code."""

    def check_beside(self, algorithm: Parts) -> None:
        """Raises ValueError where the planner gives no such budgets."""
        check_budgets(self, algorithm)

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        parts = part_numbers(rollouts, len(self.shares))
        return to_credit(by_group(rollouts, keep, totals, self._compare, parts), keep, rollouts, scores)

    def _compare(self, rewards: Tensor, parts: Tensor) -> Tensor:
        values = standardize(rewards, ddof=1, eps=self.eps)
        for k, share in enumerate(self.shares):
            own = parts == k
            values[own] += rewards[own].mean() - worth_of(rewards.new_tensor(share), 1.0, self.pi)
        return values


def budget_weights(kind: Literal["uniform", "linear", "last"], count: int) -> Tensor:
    """How likely each of the budgets is, the smallest first."""
    found = {"uniform": [1.0] * count, "linear": [k + 1.0 for k in range(count)], "last": [0.0] * (count - 1) + [1.0]}[kind]
    return torch.tensor(found, dtype=torch.float64) / sum(found)


def segment_values(rewards: Float[Tensor, "g s"], chances: Float[Tensor, " s"], discount: float) -> Float[Tensor, "g s"]:
    """J_s - (s V1 + (S - s) V2) / S of every segment s from 0, J_s = sum of P_k R_k over the budgets k >= s (BRPO).

    V2 is the mean of J_s over the thoughts; V1 = sum of these P_k times the mean of the R before s, weighed by discount^k.
    """
    count = len(chances)
    later = (chances * rewards).flip(1).cumsum(1).flip(1)
    weights = discount ** torch.arange(count, dtype=rewards.dtype)
    before = (weights * rewards).cumsum(1)[:, :-1] / weights.cumsum(0)[:-1]
    first = torch.cat([rewards[:, :1] * 0, before], dim=1) * chances.flip(0).cumsum(0).flip(0)
    s = torch.arange(count, dtype=rewards.dtype)
    return later - (s * first + (count - s) * later.mean(0)) / count


@dataclass(frozen=True)
class BudgetRelative(Compared, Beside):
    """A thought's tokens between two cuts get what it earns at later budgets, less what it earned before and what others earn.

    BRPO, arXiv:2505.13438, for groups of the planner BudgetCuts. An answer is compared with those from the same cut: r - mean.
    What a thought has beyond the last cut does not train, nor its own answer.
    """

    budgets: Literal["uniform", "linear", "last"] = "uniform"
    """How likely each budget is: all alike, in proportion to its number, the last one alone."""
    discount: Annotated[float, Range(above=0, high=1000)] = 2.0
    """In a thought's own baseline: how much more what it earned at a budget counts than what it earned at the one before."""

    def check_beside(self, algorithm: Parts) -> None:
        """Raises ValueError where the planner cuts no thoughts."""
        refuse_other_planner(self, algorithm, "BudgetCuts", "credits thoughts that were cut at budgets")

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        values = torch.zeros(rollouts.action_mask.shape, dtype=torch.float64)
        trains, samples = torch.zeros_like(rollouts.action_mask), [sample for _, sample in rollouts.samples()]
        siblings, groups = dict[object, list[int]](), dict[int, list[int]]()
        for i, sample in enumerate(samples):
            if sample.values:
                groups.setdefault(int(rollouts.group_ids[i]), []).append(i)
            elif bool(keep[i]) and (stop := exit_of(sample)) < values.shape[1]:
                siblings.setdefault((int(rollouts.group_ids[i]), (sample.token_ids or ())[:stop]), []).append(i)
                trains[i, stop:] = True
        for rows in siblings.values():
            values[rows] = less_mean(totals[rows], "zero")[:, None].expand(-1, values.shape[1])
        for rows in groups.values():
            self.credit_thoughts(rows, samples, values, trains)
        return Credit(torch.where(trains & rollouts.action_mask, values, 0.0).to(scores.values.dtype), trains.any(1), trains)

    def credit_thoughts(self, rows: Sequence[int], samples: Sequence[Sample], values: Tensor, trains: Tensor) -> None:
        """Write down what the tokens between the cuts of one group's thoughts are worth."""
        rewards = torch.tensor([[reward for _, reward in samples[i].values] for i in rows], dtype=torch.float64)
        found = segment_values(rewards, budget_weights(self.budgets, rewards.shape[1]), self.discount)
        for i, own in zip(rows, found, strict=True):
            start = 0
            for (kept, _), value in zip(samples[i].values, own, strict=True):
                values[i, start:kept], trains[i, start:kept], start = value, True, max(start, kept)
