"""Advantages of the parts of an answer: of segments, how much the value of its beginning rises over each; of turns, what followed
each of them, compared with what followed turns that began alike; of actions, what a value head expected before and after."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.statistics import Compared, standardize, totals_and_keep
from mmrl.algorithms.turns import SURE, Turns, TurnTable, past_observations, probabilities_of, segment_advantages
from mmrl.core.hooks import AdvantageHooks
from mmrl.core.readings import OLD_VALUE
from mmrl.core.types import Credit, Rollouts, Scores
from mmrl.runtime.ranges import Count, NonNegative, Number, Share
from mmrl.runtime.tensors import within


@dataclass(frozen=True)
class SegmentGains(AdvantageHooks):
    """A = V(end of the action's segment) - V(its beginning), the reward at the last end; near-certain actions do not train (SPO).

    The chain form of arXiv:2505.23564, with the values that the planner SegmentValues finds. Actions before the first cut have
    an advantage of 0. Values are of rewards before shaping, the end of an answer is after it.
    """

    sure: Share = SURE
    """The probability from which an action no longer counts as a decision."""
    mask: bool = True
    """Sure actions leave every count. False: they train with their segment's advantage."""

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        """Raises ValueError if no planner has valued the beginnings of answers."""
        totals, keep = totals_and_keep(scores)
        sure = self.sure if self.mask else math.inf
        values = torch.zeros(rollouts.action_mask.shape, dtype=torch.float64)
        trains = torch.zeros_like(rollouts.action_mask)
        found = False
        for i, ((_, sample), row) in enumerate(zip(rollouts.samples(), probabilities_of(rollouts), strict=True)):
            places = rollouts.action_mask[i].nonzero()[:, 0]
            trains[i, places] = torch.tensor([probability < sure for probability in row], dtype=torch.bool)
            found |= bool(sample.values)
            if bool(keep[i]):
                cuts, worth = [kept - 1 for kept, _ in sample.values], [value for _, value in sample.values]
                gains = segment_advantages(row, cuts, worth, float(totals[i]), sure)
                values[i, places] = torch.tensor(gains, dtype=torch.float64)
        if not found and bool(trains[keep].any()):
            raise ValueError(
                "SegmentGains finds no values inside of answers: set algorithm.planner.kind = 'SegmentValues', which samples the "
                "continuations that they are made of"
            )
        return Credit(values.to(scores.values.dtype), keep, trains)


@dataclass(frozen=True)
class ByTurn(Compared):
    """The base of advantages of turns: rewards of a sample's turns add up to its total, and every action has its turn's."""

    gamma: Share = 1.0
    """How much less a reward counts for every turn that it comes later."""
    eps: NonNegative = 1e-6
    reward: str = "environment"
    """The reward that adds up what observations state. With the rest of the total it comes at the last turn where it has
    another name."""
    cut: str = ""
    """The fact of an observation that says that its turn was wrong: no return reaches across it. Empty: returns go on."""

    def credit(self, scores: Scores, rollouts: Rollouts, f: Callable[[Turns], Tensor]) -> Credit:
        """f of every group's turns, as credit of their actions."""
        keep = totals_and_keep(scores)[1]
        table = TurnTable(scores, rollouts, keep, self.gamma, self.reward, self.cut)
        return Credit(table.deal(f).to(scores.values.dtype), keep)


@dataclass(frozen=True)
class TurnReturns(ByTurn):
    """A = (R - mean) / (deviation + eps) among the group's turns of that number, R = sum_k gamma^k r of this and later turns.

    Ours: GRPO (arXiv:2402.03300) with the return of a turn in place of the total, so that of samples with one turn it is GRPO. A
    sample that alone has so many turns gets 0 for the last ones.
    """

    eps: NonNegative = 1e-4

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        def values(turns: Turns) -> Tensor:
            return within(turns.number, turns.returns, lambda x: standardize(x, ddof=1, eps=self.eps))

        return self.credit(scores, rollouts, values)


@dataclass(frozen=True)
class GiGPO(ByTurn):
    """A = A_episode + weight A_step: totals among samples, returns among turns that began from the same state (arXiv:2505.10978).

    The first turn begins from the prompt, a later one from the key of the observation before it. A turn alone in its state gets 0
    from A_step, a total alone keeps its value. As in its code, turns of one sample count for one another. That code takes mean
    and deviation of totals over all turns too (compute_mean_std_cross_steps), so that long samples weigh more: `over = "turns"`.
    Turns of the same number compared, over turns, with returns that a wrong one cuts, are the advantages of UI-S1
    (arXiv:2509.11543).
    """

    gamma: Share = 0.95
    weight: Number = 1.0
    """Of A_step."""
    deviation: bool = False
    """Divide both by the unbiased deviation + eps."""
    over: Literal["samples", "turns"] = "samples"
    """What mean and deviation of totals are taken over: each sample once, or once per turn as in its code."""
    alike: Literal["state", "number"] = "state"
    """Which turns A_step compares: those that began from the same state, or those of the same number."""

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        return self.credit(scores, rollouts, self.values)

    def values(self, turns: Turns) -> Float[Tensor, " m"]:
        """The advantages of one group's turns."""
        each = {int(one): total for one, total in zip(turns.trajectory, turns.totals, strict=True)}
        totals = torch.stack(list(each.values())) if self.over == "samples" else turns.totals
        mean, spread = (totals.mean(), totals.std()) if len(totals) > 1 else (totals.new_zeros(()), totals.new_ones(()))
        episode = (turns.totals - mean) / (spread + self.eps) if self.deviation else turns.totals - mean
        alike = turns.observation if self.alike == "state" else turns.number
        return episode + self.weight * within(alike, turns.returns, self._centre)

    def _centre(self, x: Tensor) -> Tensor:
        if len(x) == 1:
            return torch.zeros_like(x)
        return (x - x.mean()) / (x.std() + self.eps) if self.deviation else x - x.mean()


@dataclass(frozen=True)
class HGPO(ByTurn):
    """A = sum_k w_k a_k / sum_k w_k, a_k among turns whose last k states agree, w_k = (k + 1)^power (HGPO, arXiv:2602.22817).

    k = 1 to history + 1, as far as an episode has that many turns; k = 1 is GiGPO's A_step. a_k divides by the biased deviation +
    eps, and a turn alone takes no part in it. A turn that nothing is like gets 0.
    """

    gamma: Share = 0.95
    history: Count = 2
    """How many states before a turn's own are looked at."""
    power: Number = 1.0
    """How much more an agreement counts that reaches further back."""
    base: bool = False
    """Adds k = 0, with weight 1: the total among the group's turns, by the unbiased deviation."""
    deviation: bool = True
    """False: only means are taken off."""

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        return self.credit(scores, rollouts, self.values)

    def values(self, turns: Turns) -> Float[Tensor, " m"]:
        """The advantages of one group's turns."""
        totals, returns = turns.totals, turns.returns
        top, bottom = torch.zeros_like(returns), torch.zeros_like(returns)
        if self.base:
            scale = totals.std() + self.eps if self.deviation and len(totals) > 1 else 1.0
            top, bottom = (totals - totals.mean()) / scale, torch.ones_like(totals)
        pasts = past_observations(turns, self.history + 1)
        for k in range(1, self.history + 2):
            alike: dict[tuple[int, ...], list[int]] = {}
            for row, past in enumerate(pasts):
                if len(past) >= k:
                    alike.setdefault(past[-k:], []).append(row)
            for rows in alike.values():
                if len(rows) > 1:
                    values = returns[rows]
                    scale = values.std(correction=0) + self.eps if self.deviation else 1.0
                    top[rows] += (k + 1) ** self.power * (values - values.mean()) / scale
                    bottom[rows] += (k + 1) ** self.power
        return torch.where(bottom > 0, top / bottom.clamp(min=1e-12), 0.0)


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
