"""Tools for terms: ratios between readings, masked means, and the declarations of most surrogates."""

from collections.abc import Mapping
from typing import Literal, TypedDict, Unpack

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmrl.algorithms.beside import OWN, Beside, Parts
from mmrl.core.hooks import TermHooks
from mmrl.core.readings import LOGPROBS, OLD_LOGPROBS
from mmrl.core.types import ClipRange, Reading, Scope
from mmrl.runtime.tensors import masked_mean

Level = Literal["action", "rollout"]
LOG_RATIO_BOUND = 20.0
"""Log-ratios are clamped to this before exp, as in verl and EasyR1 (TRL does not), so no ratio is infinite."""

PLAIN = "plain REINFORCE"
"""What a surrogate of policy / old is where both are the same: its gradient is that of -A log policy."""
NOTHING = "nothing"
"""What a penalty on leaving the old policy is where both are the same: it has no gradient."""


class Declarations(TypedDict, total=False):
    """Declarations in the head of a class of terms, `class Gmpo(Surrogate, scope="rollout")`, where no field decides."""

    reads: tuple[Reading, ...]
    scope: Scope
    level: Level
    clips: Literal["ratio", "scaled_ratio", "probability"]
    at_first_update: None


class Declared(TermHooks):
    """The declarations of most terms: they compare log-probabilities with old ones, action by action.

    Raises TypeError for a class that declares what none of its bases looks at: `level` needs `OfLevel`, `clips` needs `Clips`.
    """

    def __init_subclass__(cls, **declared: Unpack[Declarations]) -> None:
        super().__init_subclass__()
        for name, value in declared.items():
            if not hasattr(cls, name):
                raise TypeError(
                    f"class {cls.__name__} declares {name}, which no base has: level needs OfLevel, clips needs Clips"
                )
            setattr(cls, name, value)

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (LOGPROBS, OLD_LOGPROBS)

    @property
    def scope(self) -> Scope:
        return "action"


class Surrogate(Declared, Beside):
    """A term that takes credit."""

    def check_beside(self, algorithm: Parts) -> None:
        """Raises ValueError beside Demonstrated on own samples, which it would make likelier whatever they are worth."""
        super().check_beside(algorithm)
        if type(algorithm.advantage).__name__ == "Demonstrated" and type(algorithm.planner).__name__ in OWN:
            raise ValueError(
                f"algorithm.objective has {type(self).__name__}, and with the advantage Demonstrated every sample counts as "
                "right, whatever its reward: leave that term out, or set algorithm.advantage.kind = 'GroupNorm'"
            )

    @property
    def credited(self) -> bool:
        return True

    @property
    def at_first_update(self) -> str | None:
        return PLAIN if OLD_LOGPROBS in self.reads else None


class OfLevel(Declared):
    """A term of one ratio per action, or per rollout."""

    level: Level = "action"

    @property
    def scope(self) -> Scope:
        return self.level


class Clips(OfLevel):
    """A term that stops where something has moved by more than low or high."""

    low: float
    high: float
    clips: Literal["ratio", "scaled_ratio", "probability"] = "ratio"
    """What moves, as `ClipRange.of`."""

    @property
    def clip_range(self) -> ClipRange:
        return ClipRange(self.low, self.high, self.level, self.clips)


class ProportionalToAdvantage(Surrogate):
    """A surrogate whose value at an action is the advantage (or its mean over the row) times something finite."""

    silent_without_advantage = True


class OfTheGroup(Surrogate, scope="group"):
    """A surrogate that compares the rows of a group, which a policy may not cut."""


class Penalty(Declared):
    """A penalty or bonus, which takes no credit."""

    @property
    def credited(self) -> bool:
        return False


class OldPenalty(Penalty):
    """A penalty on leaving the old policy."""

    @property
    def at_first_update(self) -> str | None:
        return NOTHING if OLD_LOGPROBS in self.reads else None


def mean_square(x: Float[Tensor, "n t ..."]) -> Float[Tensor, "n t"]:
    """Mean over a latent's elements of x^2."""
    return (x**2).flatten(2).mean(2)


def actions_only(x: Float[Tensor, "n ..."], mask: Bool[Tensor, "n t"]) -> Float[Tensor, "n t"]:
    """x, with 0 where the mask is False, even where x is not finite."""
    return torch.where(mask, x, 0.0)


def log_ratio(readings: Mapping[Reading, Tensor], mask: Bool[Tensor, "n t"], level: Level = "action") -> Float[Tensor, "n t"]:
    """log policy - log old; at level `rollout` its mean over the actions of the row (a length-normalized ratio)."""
    difference = actions_only(readings[LOGPROBS] - readings[OLD_LOGPROBS], mask)
    if level == "rollout":
        difference = masked_mean(difference, mask, dim=1)[:, None].expand_as(difference)
    return difference.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)


def rollout_mean(x: Float[Tensor, "n t"], mask: Bool[Tensor, "n t"]) -> Float[Tensor, "n t"]:
    """The mean over the actions of a row, at every action of it."""
    return masked_mean(x, mask, dim=1)[:, None].expand_as(x)


def ratio_metrics(difference: Float[Tensor, "n t"]) -> dict[str, Tensor]:
    """How far the policy is from the old one, for the log: mean ratio, and KL(old || policy) by the k3 estimate."""
    d = difference.detach()
    return {"policy/ratio": d.exp(), "policy/kl_old": d.exp() - d - 1}
