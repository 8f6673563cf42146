"""Tools for parts: which rows count, statistics of groups, Credit from values, columns of scores and of prompts."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmrl.core.hooks import AdvantageHooks, PartHooks
from mmrl.core.types import Credit, Prompt, Reading, Rollouts, Scores, Status

EpsMode = Literal["add", "max", "variance"]
"""Where eps goes: deviation + eps, max(deviation, eps), or sqrt(deviation^2 + eps)."""
Singleton = Literal["zero", "reward"]
"""What a group of one scored row gets: nothing, or its reward as it is (baseline 0, deviation 1: verl)."""


class Compared(AdvantageHooks):
    """The declarations of an advantage that compares the samples of a prompt with each other."""

    min_group_size = 2


class PlainShaping(PartHooks):
    """The declarations of a shaping that reads nothing."""

    reads: tuple[Reading, ...] = ()


def number_at(prompt: Prompt, column: str, otherwise: float | None = None) -> float:
    """The number in a prompt's column; raises ValueError where there is none, or it is not finite."""
    found = prompt.columns.get(column, otherwise)
    if isinstance(found, int | float) and not isinstance(found, bool) and math.isfinite(found):
        return float(found)
    what = "nothing" if found is None else repr(found)[:80]
    raise ValueError(
        f"prompt {prompt.id!r} has {what} in the column {column!r}, where a finite number is needed: write one there, leave "
        "the row out, or name another column"
    )


def totals_and_keep(scores: Scores) -> tuple[Float[Tensor, " n"], Bool[Tensor, " n"]]:
    """Every row's total in float64, where no spread overflows, and which rows have one; the others take part in no statistic."""
    totals = scores.total().double()
    return totals, ~totals.isnan()


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


def refuse_unbounded(kept: Float[Tensor, " n"], name: str) -> None:
    """Raises ValueError where a total reward lies outside [0, 1], for an advantage that takes them as success rates."""
    if bool(((kept < -1e-6) | (kept > 1 + 1e-6)).any()):
        raise ValueError(
            f"total rewards reach from {float(kept.min()):g} to {float(kept.max()):g}, but {name} takes them as success "
            "rates in [0, 1]: scale them with the weights of the rewards"
        )


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


def place_of(scores: Scores, name: str, setting: str) -> int:
    """The number of a reward; ValueError if none is called so."""
    if name not in scores.names:
        raise ValueError(f"{setting} is {name!r}; the run has the rewards {list(scores.names)}: name one of them")
    return scores.names.index(name)


def values_at(scores: Scores, place: int) -> Float[Tensor, " n"]:
    """A reward's values, NaN where there is none."""
    return scores.values[:, place].masked_fill(scores.status[:, place] != Status.OK, torch.nan)


def reward_column(scores: Scores, part: object, reward: str | None) -> tuple[Float[Tensor, " n"], Tensor]:
    """Values (NaN where there is none) and weight of a reward, None being the first; ValueError if none is called so."""
    place = 0 if reward is None else place_of(scores, reward, f"{type(part).__name__}.reward")
    return values_at(scores, place), scores.weights[place]


def with_column(
    scores: Scores,
    part: object,
    name: str,
    values: Float[Tensor, " n"],
    weight: float | Tensor,
    status: Int[Tensor, " n"] | None = None,
    places: Sequence[int] = (),
) -> Scores:
    """The scores with one more reward, in place of those at `places`, which keep no weight.

    Raises ValueError if a reward is called so already. Without a status it does not apply where it is NaN.
    """
    if name in scores.names:
        raise ValueError(f"a reward is named {name!r} already, the name of {type(part).__name__}'s column: rename the reward")
    values, weights = values.to(scores.values), scores.weights.clone()
    weights[list(places)] = 0
    if status is None:
        status = torch.where(values.isnan(), int(Status.NA), int(Status.OK))
    return replace(
        scores,
        names=(*scores.names, name),
        values=torch.cat([scores.values, torch.where(status == Status.OK, values, torch.nan)[:, None]], dim=1),
        status=torch.cat([scores.status, status[:, None].to(scores.status)], dim=1),
        weights=torch.cat([weights, torch.as_tensor(weight).to(weights)[None]]),
    )


def instead(scores: Scores, part: object, reward: str | None, suffix: str, f: Callable[[Tensor], Tensor]) -> Scores:
    """The scores with `<reward>_<suffix>` = f(reward) in the reward's place; the reward itself stays, with weight 0."""
    values, weight = reward_column(scores, part, reward)
    k = 0 if reward is None else scores.names.index(reward)
    return with_column(scores, part, f"{scores.names[k]}_{suffix}", f(values), weight, scores.status[:, k], [k])


Actions = Float[Tensor, "n t"]


class Uncertainty(NamedTuple):
    """How uncertain each action is, and the numbers that it was measured with."""

    size: Actions
    """In [-1, 1]; 0 where no action is."""
    pivot: float
    """Of the log entropy."""
    deviation: float
    """Of the log entropies about the pivot."""
    upper: float
    """1 / the largest distance above the pivot, in deviations."""
    lower: float
    """1 / the largest distance below it, which is negative."""


def uncertainty(entropy: Actions, mask: Bool[Tensor, "n t"], pivot: float, sign: Literal["paper", "code"]) -> Uncertainty:
    """The distance of log entropies from their quantile `pivot`, scaled to [-1, 1]; nothing has a gradient."""
    values = entropy.detach().clamp(min=1e-12).log()
    known = values[mask]
    if not len(known):
        return Uncertainty(torch.zeros_like(values), 0.0, 0.0, 0.0, 0.0)
    middle = known.quantile(pivot, interpolation="nearest")
    deviation = ((known - middle) ** 2).mean().sqrt().clamp(min=1e-12)
    distance = (values - middle) / deviation
    above, below = distance[mask].max(), distance[mask].min()
    upper = 1 / above if above > 0 else torch.zeros_like(above)
    lower = 1 / below if below < 0 else torch.zeros_like(below)
    down = distance * lower if sign == "code" else -distance * lower
    size = torch.where(distance > 0, distance * upper, down)
    return Uncertainty(torch.where(mask, size, 0.0), *map(float, (middle, deviation, upper, lower)))
