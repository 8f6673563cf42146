"""What trains the policy's value head."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from mmrl.algorithms.objectives.surrogates import Values
from mmrl.algorithms.objectives.terms import Penalty, actions_only
from mmrl.core.ranges import Share, check_ranges
from mmrl.core.readings import REWARD, VALUE
from mmrl.core.types import Batch, Reading


@dataclass(frozen=True)
class ValueFit(Penalty):
    """(V_t - gamma^k R)^2, R the row's total reward and k the actions that follow; 0 in rows that were cut.

    The head of policy.scores = ["value"] learns what comes of a row, from rows that ended alone, as in T-PPO (arXiv:2506.15050).
    The gradient goes on into the policy. Take the advantage ValueGae with it.
    """

    gamma: Share = 1.0
    """What a reward is worth one action earlier."""

    __post_init__ = check_ranges

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (VALUE, REWARD)

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask = batch.rollouts.action_mask
        ended = mask & ~batch.rollouts.truncated().to(mask.device)[:, None]
        follow = mask.sum(1, keepdim=True) - mask.cumsum(1)
        off = actions_only(readings[VALUE] - self.gamma**follow * readings[REWARD], ended)
        return off**2, {"policy/value_error": off.detach().abs()}
