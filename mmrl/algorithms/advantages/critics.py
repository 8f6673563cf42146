"""Advantages over what the policy's own value head expects."""

from dataclasses import dataclass

import torch

from mmrl.algorithms.advantages.statistics import totals_and_keep
from mmrl.core.hooks import AdvantageHooks
from mmrl.core.ranges import Share, check_ranges
from mmrl.core.readings import OLD_VALUE
from mmrl.core.types import Credit, Rollouts, Scores


@dataclass(frozen=True)
class ValueGae(AdvantageHooks):
    """A_t = sum_k (gamma decay)^k delta_(t+k), delta_t = r_t + gamma V_(t+1) - V_t (GAE, arXiv:1506.02438).

    V is what the policy's head expects before the step's first update, and 0 behind a row's last action, which has the total
    reward; r is 0 before. A row that was cut has no reward yet: behind its last action V stays what it was (EGAE of T-PPO,
    arXiv:2506.15050). Set policy.scores = ["value"] and take the term ValueFit with it. Not implemented of T-PPO: rows that go on
    in the next step, so no preset has its name.
    """

    gamma: Share = 1.0
    """What a reward is worth one action earlier."""
    decay: Share = 0.95
    """The lambda of GAE: 1 compares with the reward alone, 0 with the next value alone."""
    extends: bool = True
    """False: a row that was cut is scored as one that ended."""

    reads = (OLD_VALUE,)
    __post_init__ = check_ranges

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        values, mask = rollouts.recorded[OLD_VALUE].to(totals), rollouts.action_mask & keep[:, None]
        goes_on = rollouts.truncated().to(keep.device) & self.extends
        reward = torch.where(goes_on, 0.0, totals)
        out, ahead, behind = torch.zeros_like(values), torch.zeros_like(totals), torch.zeros_like(totals)
        is_last = torch.ones_like(keep)
        for t in reversed(range(values.shape[1])):
            own, here = mask[:, t], values[:, t]
            behind = torch.where(own & is_last & goes_on, here, behind)
            step = torch.where(is_last, reward, 0.0) + self.gamma * behind - here + self.gamma * self.decay * ahead
            out[:, t] = torch.where(own, step, 0.0)
            ahead, behind, is_last = torch.where(own, step, ahead), torch.where(own, here, behind), is_last & ~own
        return Credit(out.to(scores.values.dtype), keep)
