"""Tools for shaping: a column is added to scores, or takes the place of a reward."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmrl.core.hooks import PartHooks
from mmrl.core.types import Reading, Scores, Status


class PlainShaping(PartHooks):
    """The declarations of a shaping that reads nothing."""

    reads: tuple[Reading, ...] = ()


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
