"""Tools for advantages: which rows count, statistics within groups, turning values into Credit."""

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmrl.core.types import Credit, Rollouts, Scores

EpsMode = Literal["add", "max", "variance"]
"""Where eps goes: deviation + eps, max(deviation, eps), or sqrt(deviation^2 + eps)."""
Singleton = Literal["zero", "reward"]
"""What a group of one scored row gets: nothing, or its reward as it is (baseline 0, deviation 1: verl)."""


def totals_and_keep(scores: Scores) -> tuple[Float[Tensor, " n"], Bool[Tensor, " n"]]:
    """Every row's total in float64, where no spread overflows, and which rows have one; the others take part in no statistic."""
    totals = scores.total().double()
    return totals, ~totals.isnan()


def refuse_unbounded(kept: Float[Tensor, " n"], name: str) -> None:
    """Raises ValueError where a total reward lies outside [0, 1], for an advantage that takes them as success rates."""
    if bool(((kept < -1e-6) | (kept > 1 + 1e-6)).any()):
        raise ValueError(
            f"total rewards reach from {float(kept.min()):g} to {float(kept.max()):g}, but {name} takes them as success "
            "rates in [0, 1]: scale them with the weights of the rewards"
        )


def by_group(
    rollouts: Rollouts,
    keep: Bool[Tensor, " n"],
    x: Float[Tensor, "n ..."],
    f: Callable[[Tensor], Tensor] | Callable[[Tensor, Tensor], Tensor] | Callable[[Tensor, Tensor, Tensor], Tensor],
    *beside: Tensor,
) -> Float[Tensor, "n ..."]:
    """f of the kept rows of every group, of x and of what stands beside it, in the shape of x; rows that are not kept get 0."""
    out = torch.zeros_like(x)
    for group_id in set(map(int, rollouts.group_ids[keep])):
        rows = (rollouts.group_ids == group_id) & keep
        out[rows] = f(*(column[rows] for column in (x, *beside)))
    return out


def one_per_group(x: Float[Tensor, " n"], group_ids: Int[Tensor, " n"]) -> Float[Tensor, " q"]:
    """x of the first row of every group, in the order of the ids; x is the same for all rows of a group."""
    ids = sorted(set(map(int, group_ids)))
    return torch.stack([x[group_ids == one][0] for one in ids]) if ids else x


def to_credit(values: Float[Tensor, " n"], keep: Bool[Tensor, " n"], rollouts: Rollouts, scores: Scores | None = None) -> Credit:
    """The same value for every action of a rollout, as exact as the scores; 0 where there is no action and in rows not kept."""
    mask = rollouts.action_mask & keep[:, None]
    credit = torch.where(mask, values[:, None], 0.0)
    return Credit(credit if scores is None else credit.to(scores.values.dtype), keep)


def moments(x: Float[Tensor, " n"], ddof: int, weights: Float[Tensor, " n"] | None = None) -> tuple[Tensor, Tensor]:
    """Weighted mean and deviation, sqrt(sum w (x - mean)^2 / (sum w - ddof)); the deviation is 0 where that is undefined."""
    w = torch.ones_like(x) if weights is None else weights
    total = w.sum()
    if total == 0:
        return x.new_zeros(()), x.new_zeros(())
    mean = (w * x).sum() / total
    if total <= ddof:
        return mean, x.new_zeros(())
    return mean, ((w * (x - mean) ** 2).sum() / (total - ddof)).sqrt()


def largest_deviation(rollouts: Rollouts, keep: Bool[Tensor, " n"], x: Float[Tensor, " n"], ddof: int) -> Tensor:
    """The deviation of the group with the largest one, among the kept rows."""
    own = by_group(rollouts, keep, x, lambda r: moments(r, ddof)[1].expand_as(r))
    return own.max() if len(own) else own.sum()


def is_rounding(x: Float[Tensor, " n"], deviation: Tensor, below: float) -> bool:
    """True if the deviation of x is below `below` times max(1, the largest |x|): the values differ only by rounding."""
    return bool(deviation < below * max(1.0, float(x.abs().max())))


def divisor(deviation: Tensor, eps: float, mode: EpsMode) -> Tensor:
    """The deviation, kept away from 0 by eps."""
    if mode == "add":
        return deviation + eps
    if mode == "max":
        return deviation.clamp(min=eps)
    return (deviation**2 + eps).sqrt()


def standardize(
    x: Float[Tensor, " n"],
    ddof: int,
    eps: float,
    mode: EpsMode = "add",
    weights: Float[Tensor, " n"] | None = None,
) -> Float[Tensor, " n"]:
    """(x - mean) / divisor; exactly 0 where all x are equal, whatever eps and rounding do."""
    if x.numel() == 0 or bool((x == x[0]).all()):
        return torch.zeros_like(x)
    mean, deviation = moments(x, ddof, weights)
    return (x - mean) / divisor(deviation, eps, mode)


def less_mean(
    rewards: Float[Tensor, " g"], singleton: Singleton, weights: Float[Tensor, " g"] | None = None
) -> Float[Tensor, " g"]:
    """The rewards of one group less their weighted mean."""
    if len(rewards) == 1 and singleton == "reward":
        return rewards
    return rewards - moments(rewards, ddof=0, weights=weights)[0]


def lengths(rollouts: Rollouts, like: Tensor) -> Float[Tensor, " n"]:
    """Actions of every row, in the dtype of `like`."""
    return rollouts.action_mask.sum(1).to(like)
