"""Advantages of the parts of an answer or of a group: of segments, how much the value of its beginning rises over each; of turns,
what followed each of them; of actions, what a value head expected; of thoughts, what they earn beside others of their budget."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.beside import SHARES, Beside, OfBudgets, exit_of, part_numbers, worth_of
from mmrl.algorithms.statistics import Compared, by_group, less_mean, standardize, to_credit, totals_and_keep
from mmrl.algorithms.turns import SURE, Turns, TurnTable, past_observations, probabilities_of, segment_advantages
from mmrl.core.hooks import AdvantageHooks
from mmrl.core.readings import OLD_VALUE
from mmrl.core.types import Credit, Prompt, Rollouts, Sample, Scores
from mmrl.runtime.ranges import Count, NonNegative, Number, Positive, PositiveShare, Range, Share
from mmrl.runtime.tensors import within


@dataclass(frozen=True)
class SegmentGains(AdvantageHooks, Beside):
    """A = V(end of the action's segment) - V(its beginning), the reward at the last end; near-certain actions do not train (SPO).

    The chain form of arXiv:2505.23564, with the values that the planner SegmentValues finds. Actions before the first cut have
    an advantage of 0. Values are of rewards before shaping, the end of an answer is after it.
    """

    sure: Share = SURE
    """The probability from which an action no longer counts as a decision."""
    mask: bool = True
    """Sure actions leave every count. False: they train with their segment's advantage."""

    planners = ("SegmentValues",)

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


@dataclass(frozen=True)
class AboveReference(AdvantageHooks, Beside):
    """A = r - accuracy of the start weights, thinking + delta where nothing was thought (AdaptThink, arXiv:2505.13417).

    Nothing is compared within the group. The accuracy of each prompt is a column of the data, measured before.
    """

    delta: Number = 0.05
    """What it is worth not to think: how much accuracy may be lost for it."""
    column: str = "reference_accuracy"
    """The column with the share of right answers of the start weights, thinking."""

    planners = ("ThinkOrNot",)

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
class WithinBudgets(Compared, OfBudgets):
    """A = (r - mean) / (std + eps) + (mean of the samples with this budget - w(b)), w(b) = 4 cos(pi b / (2 most)) (HBPO).

    arXiv:2507.15844, for groups of the planner Budgets. Its released code adds the second part twice.
    """

    shares: tuple[PositiveShare, ...] = SHARES
    """As the planner's."""
    eps: NonNegative = 1e-6
    pi: Positive = math.pi
    """3.1416 in its code."""

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

    planners = ("BudgetCuts",)

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
