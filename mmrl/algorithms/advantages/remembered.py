"""Advantages with memory: of a prompt's success rate or last rewards, of rows that are gone, of all samples that were drawn."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

import torch
from torch import Tensor

from mmrl.algorithms.advantages.group import OnTop
from mmrl.algorithms.notes import Tracked, begin
from mmrl.algorithms.statistics import Compared, by_group, is_rounding, moments, standardize, to_credit, totals_and_keep
from mmrl.core.hooks import AdvantageHooks
from mmrl.core.protocols import State
from mmrl.core.types import Credit, Rollouts, Scores
from mmrl.runtime.ranges import Count, NonNegative, Number, Positive, Range, Share, check_ranges


@dataclass(frozen=True)
class AmongSeen(OnTop):
    """A = (r - mean) / (deviation + eps) over all samples a group ever had, where rows were dropped or come from earlier steps.

    Other groups get the inner advantage. Like the inner one, this is divided by the unbiased deviation or not at all.
    """

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        inner = replace(self.inner, drop_zero=False)
        credit = inner(scores, rollouts)
        values = torch.where(rollouts.action_mask, credit.values, 0.0)
        for group in rollouts.groups:
            if group.seen is not None:
                rows = (rollouts.group_ids == group.id) & keep
                lead = totals[rows] - group.seen.mean
                scale = 1.0 if inner.scale == "none" else group.seen.deviation + inner.eps
                flat = group.seen.deviation < inner.zero_below
                values[rows] = torch.where(rollouts.action_mask[rows], 0.0 if flat else (lead / scale)[:, None], 0.0).to(values)
        if self.inner.drop_zero and bool(values.any()):
            keep = keep & (values != 0).any(1)
        return Credit(torch.where(keep[:, None], values, 0.0), keep)


@dataclass
class Visits:
    """The memory of SingleStream: every prompt's evidence, and how far the policy has moved in total."""

    prompts: dict[str, Tracked] = field(default_factory=dict[str, Tracked])
    at: dict[str, float] = field(default_factory=dict[str, float])
    """How far it had moved when the prompt was last visited, in nats; 0 where it never was."""
    moved: float = 0.0


@dataclass(frozen=True)
class SingleStream(AdvantageHooks):
    """A = whiten(r - v), v = right / (right + wrong) of the prompt before the sample; evidence fades (SPO, arXiv:2509.13232).

    right <- s right + r, wrong <- s wrong + 1 - r, s = 2^(-D / half) in [0.875, 0.96], D = KL since the prompt was last visited:
    the sum over steps of the mean KL to the weights that sampled, measured in the updates. Prompts begin with `samples` imagined
    samples of mean `start`, for which the paper draws 8 real ones. `half` was not found: 0.06 is ours. Rewards in [0, 1].
    """

    start: Share = 0.5
    """The rate of a prompt that was never sampled."""
    samples: Positive = 8.0
    """How many samples that rate counts as."""
    half: Positive = 0.06
    """Nats after which half of the evidence would be forgotten."""
    whiten: bool = True
    """Divide by the deviation over the step, after subtracting the mean."""
    eps: NonNegative = 1e-8
    visits: Visits = field(default_factory=Visits, init=False, compare=False, repr=False)

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        """Raises ValueError for a total reward outside of [0, 1]."""
        totals, keep = totals_and_keep(scores)
        out_of_range = totals[keep & ((totals < 0) | (totals > 1))]
        if len(out_of_range):
            raise ValueError(
                f"SingleStream tracks success rates, and a total reward is {float(out_of_range[0]):g}: give rewards in [0, 1], "
                "and weights that add up to 1"
            )
        values, known = torch.zeros_like(totals), self.visits
        for i, (group, _) in enumerate(rollouts.samples()):
            if keep[i]:
                before = known.prompts.get(group.prompt.id, begin(self.start, self.samples))
                values[i] = totals[i] - before.rate
        for i, (group, _) in enumerate(rollouts.samples()):
            if keep[i]:
                self.visit(group.prompt.id, float(totals[i]))
        if self.whiten:
            values[keep] = standardize(values[keep], 1, self.eps)
        return to_credit(values, keep, rollouts, scores)

    def visit(self, prompt: str, reward: float) -> None:
        """Take in a sample of a prompt."""
        known = self.visits
        before = known.prompts.get(prompt, begin(self.start, self.samples))
        known.prompts[prompt] = before.after(reward, known.moved - known.at.get(prompt, 0.0), self.half)
        known.at[prompt] = known.moved

    def adapt(self, step: int, metrics: Mapping[str, float]) -> None:
        self.visits.moved += max(metrics.get("policy/kl_old", 0.0), 0.0)

    def state_dict(self) -> State:
        known = self.visits
        return {"prompts": {name: list(one) for name, one in known.prompts.items()}, "at": {**known.at}, "moved": known.moved}

    def load_state_dict(self, state: State) -> None:
        known = self.visits
        known.prompts = {name: Tracked(*one) for name, one in state["prompts"].items()}
        known.at, known.moved = dict(state["at"]), state["moved"]


@dataclass(frozen=True)
class PromptHistory:
    """A = (r - mean) / (deviation + eps) over the last `size` rewards of the prompt, this step's among them (DDPO).

    arXiv:2305.13301, code kvablack/ddpo-pytorch. A prompt with fewer than `least` rewards is compared with all rows of the step.
    Deviations are biased. A prompt is identified by its id; the paper's code uses its text.
    """

    size: Count = 16
    """Rewards of a prompt that are remembered."""
    least: Count = 16
    """Fewest remembered rewards for a prompt to be compared with its own."""
    eps: NonNegative = 1e-6
    zero_below: NonNegative = 1e-6
    """Rewards whose deviation is smaller, in units of the largest where that is above 1, differ only by rounding and teach
    nothing; 0 is parity with the code."""
    clip: Positive | None = 5.0
    rewards: dict[str, list[float]] = field(default_factory=dict[str, list[float]], init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.least > self.size:
            raise ValueError(
                f"PromptHistory.least is {self.least}, but only {self.size} rewards of a prompt are remembered: "
                "set advantage.least no higher than advantage.size"
            )

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        values = torch.zeros_like(totals)
        for prompt, rows in rows_by_prompt(rollouts, keep).items():
            known = [*self.rewards.get(prompt, ()), *(float(totals[row]) for row in rows)][-self.size :]
            self.rewards[prompt] = known
            values[rows] = self.compare(totals[rows], totals.new_tensor(known) if len(known) >= self.least else totals[keep])
        if self.clip is not None:
            values = values.clamp(-self.clip, self.clip)
        return to_credit(values, keep, rollouts, scores)

    def compare(self, rewards: Tensor, known: Tensor) -> Tensor:
        """The advantages of rewards (g,), compared with rewards (m,)."""
        mean, deviation = moments(known, ddof=0)
        if bool((known == known[0]).all()) or is_rounding(known, deviation, self.zero_below):
            return torch.zeros_like(rewards)
        return (rewards - mean) / (deviation + self.eps)

    def state_dict(self) -> State:
        return {"rewards": {prompt: [*known] for prompt, known in self.rewards.items()}}

    def load_state_dict(self, state: State) -> None:
        self.rewards.clear()
        self.rewards.update({prompt: [*known][-self.size :] for prompt, known in state["rewards"].items()})


def rows_by_prompt(rollouts: Rollouts, keep: Tensor) -> dict[str, list[int]]:
    """Kept rows by the id of their prompt, in the order of groups and samples, however many processes sampled them."""
    prompts = {group.id: group.prompt.id for group in rollouts.groups}
    kept = [row for row in range(len(rollouts)) if keep[row]]
    places = [(int(rollouts.group_ids[row]), int(rollouts.sample_ids[row]), row) for row in kept]
    found: dict[str, list[int]] = {}
    for group, _, row in sorted(places):
        found.setdefault(prompts[group], []).append(row)
    return found


@dataclass(frozen=True)
class Downsampled(Compared):
    """A = (1[right] - p) / (deviation + eps), p and the unbiased deviation over all samples of the group; `keep` rows train.

    Reinforce-Ada (arXiv:2510.04996): half of the kept rows are right and half wrong, filled from the other kind; the earliest
    of each kind are taken. The others leave every count. Kept rows no longer have mean 0, and must not be normalized again.
    """

    keep: Annotated[int, Range(2, 2**20)] = 4
    """Rows of a group that train."""
    scale: bool = False
    """Divide by the deviation; the authors' script does not."""
    success_at: Number = 0.7
    """Total reward above which a sample is right."""
    eps: NonNegative = 1e-6

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        right = (totals > self.success_at).to(totals)
        values = by_group(rollouts, keep, right, self.compare)
        chosen = by_group(rollouts, keep, right, self.choose) > 0
        return to_credit(values, keep & chosen, rollouts, scores)

    def compare(self, right: Tensor) -> Tensor:
        """The advantages of the samples of a group (g,); 1 marks right ones."""
        return self.against(right, float(right.mean()), len(right))

    def against(self, right: Tensor, rate: float, count: int) -> Tensor:
        """The same, against a group of `count` samples of which a share of `rate` was right."""
        centred = right - rate
        if not self.scale or count < 2:
            return centred
        return centred / ((rate * (1 - rate) * count / (count - 1)) ** 0.5 + self.eps)

    def choose(self, right: Tensor) -> Tensor:
        """1 for the samples that train."""
        good, bad = (int((right == kind).sum()) for kind in (1, 0))
        wanted = min(self.keep, len(right))
        num_good = min(good, max(wanted // 2, wanted - bad))
        chosen = torch.zeros_like(right)
        for kind, number in ((1, num_good), (0, wanted - num_good)):
            chosen[(right == kind).nonzero()[:number, 0]] = 1
        return chosen
