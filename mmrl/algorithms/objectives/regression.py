"""Objectives that regress: the policy's log-ratios on advantages, a whole group at a time, and its value head on rewards."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.objectives.surrogates import Values
from mmrl.algorithms.objectives.terms import PLAIN, OfTheGroup, Penalty, actions_only, rollout_mean
from mmrl.core.readings import LOGPROBS, MEAN_REWARD, OLD_LOGPROBS, REWARD, VALUE
from mmrl.core.types import Batch, Reading, Scope
from mmrl.runtime.ranges import Positive, Share
from mmrl.runtime.tensors import within


@dataclass(frozen=True)
class AdvantageRegression(OfTheGroup):
    """(A_i - (rho_i - mean) / (std + eps))^2, rho_i = sum_t log policy - log old, over a group (Reg-GRPO, arXiv:2506.07464).

    No clip and no minimum; only a KL penalty bounds the step, since the value does not change when all rho grow alike. At rho =
    0, where every step starts, the gradient is -2 A / eps: plain policy gradient with a gain of 2 / eps. So it only regresses
    from the second update on the same rollouts, and only where rho spreads by more than eps. The paper names no eps; its formula
    has none. Groups whose advantages are all 0 have nothing to regress on and give 0.
    """

    eps: Positive = 0.1
    """In nats. At 1 and above, small updates are hardly more than policy gradient; at 0.01 the first one is all gain."""
    level: Literal["sum", "mean"] = "sum"
    """rho is the paper's sum over the actions, which favours long rollouts, or their mean."""

    @property
    def at_first_update(self) -> str | None:
        return f"{PLAIN} of whole rollouts, times {2 / self.eps:g}"

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> tuple[Float[Tensor, "n t"], dict[str, Tensor]]:
        mask = batch.rollouts.action_mask
        live = mask.any(1)
        rho = actions_only(readings[LOGPROBS] - readings[OLD_LOGPROBS], mask).sum(1)
        if self.level == "mean":
            rho = rho / mask.sum(1).clamp(min=1)
        advantages = rollout_mean(batch.advantages, mask)[:, 0]
        ids = batch.rollouts.group_ids
        fitted, informed = torch.zeros_like(rho), torch.zeros_like(advantages)
        fitted[live] = within(ids[live], rho[live], self._standard_scores)
        informed[live] = within(ids[live], advantages[live], lambda a: (a != 0).any().to(a).expand_as(a))
        values = (informed * (advantages - fitted) ** 2)[:, None].expand_as(mask)
        spread = rho.detach().abs()[:, None].expand_as(mask)
        return actions_only(values, mask), {"policy/log_ratio": actions_only(spread, mask)}

    def _standard_scores(self, rho: Tensor) -> Tensor:
        centred = rho - rho.mean()
        # The floor keeps the gradient of a root at 0 finite: there it is 0.
        deviation = (centred**2).mean().clamp(min=1e-36).sqrt()
        return centred / (deviation + self.eps)


@dataclass(frozen=True)
class ValueFit(Penalty):
    """(V_t - gamma^k R)^2, R the row's total reward and k the actions that follow; 0 in rows that were cut.

    With `group`: (V - R)^2 of the value of the prompt alone, R the mean reward of its samples (PCL, arXiv:2510.01135).

    The head of policy.scores = ["value"] learns what comes of a row, from rows that ended alone, as in T-PPO (arXiv:2506.15050).
    The gradient goes on into the policy. Take the advantage ValueGae with it.
    """

    gamma: Share = 1.0
    """What a reward is worth one action earlier."""
    group: bool = False
    """Only before a row's first action, and against the mean reward of its group; the row's actions share the square."""

    @property
    def scope(self) -> Scope:
        return "rollout" if self.group else "action"

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (VALUE, MEAN_REWARD if self.group else REWARD)

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask = batch.rollouts.action_mask
        if self.group:
            first = mask & (mask.cumsum(1) == 1)
            off = actions_only((actions_only(readings[VALUE] - readings[MEAN_REWARD], first)).sum(1, keepdim=True), mask)
            return off**2, {"policy/value_error": off.detach().abs()}
        ended = mask & ~batch.rollouts.truncated().to(mask.device)[:, None]
        follow = mask.sum(1, keepdim=True) - mask.cumsum(1)
        off = actions_only(readings[VALUE] - self.gamma**follow * readings[REWARD], ended)
        return off**2, {"policy/value_error": off.detach().abs()}
