"""Rewards by how an answer came about: its length, budget and mode, how early it leaves a thought, whether it used tools."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmrl.algorithms.beside import SHARES, Beside, OfBudgets, Parts, exit_of, part_numbers, worth_of
from mmrl.algorithms.statistics import PlainShaping, by_group, instead, number_at, reward_column, totals_and_keep, with_column
from mmrl.algorithms.turns import uses
from mmrl.core.hooks import PartHooks
from mmrl.core.readings import OLD_ENTROPY
from mmrl.core.types import Prompt, Reading, Rollouts, Scores
from mmrl.runtime.ranges import Count, NonNegative, Number, Positive, PositiveShare, Share, check_ranges
from mmrl.runtime.tensors import masked_mean

OLD_LEAD = OLD_ENTROPY._replace(quantity="lead")
"""p of the likeliest token less that of the second, of the distribution that each was drawn from."""


def written(rollouts: Rollouts) -> Float[Tensor, " n"]:
    """How many tokens the policy wrote in every row; ValueError if its samples have none."""
    samples = [sample for _, sample in rollouts.samples()]
    if any(sample.token_ids is None for sample in samples):
        raise ValueError("an answer's length is counted in tokens, and this policy's samples have none: take a text policy")
    return torch.tensor([sample.num_written for sample in samples], dtype=torch.float64)


@dataclass(frozen=True)
class ShorterIsBetter(PlainShaping):
    """Adds `shorter`: l = 1/2 - (n - shortest) / (longest - shortest) in the group for right samples, min(0, l) for wrong ones.

    Kimi k1.5, arXiv:2501.12599; 0 where all are as long. n is in tokens; a port of it counts letters.
    """

    weight: NonNegative = 0.3
    """Weight of the reward `shorter` in the total; the paper's is not published."""
    reward: str | None = None
    success_at: Number = 0.5

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        accuracy = reward_column(scores, self, self.reward)[0]
        lead = by_group(rollouts, ~accuracy.isnan(), written(rollouts), self.lead)
        return with_column(
            scores, self, "shorter", torch.where(accuracy >= self.success_at, lead, lead.clamp(max=0)), self.weight
        )

    def lead(self, lengths: Float[Tensor, " g"]) -> Float[Tensor, " g"]:
        """1/2 for the shortest of a group down to -1/2 for the longest."""
        span = lengths.max() - lengths.min()
        return 0.5 - (lengths - lengths.min()) / span if span > 0 else torch.zeros_like(lengths)


def budget_rewards(
    right: Tensor, length: Float[Tensor, " n"], budget: Float[Tensor, " n"], most: float, pi: float
) -> Float[Tensor, " n"]:
    """min(worth(n) - |b - n| / most, worth(b)) of right answers of at most `most` tokens, 0 of others."""
    worth = torch.minimum(worth_of(length, most, pi) - (budget - length).abs() / most, worth_of(budget, most, pi))
    return torch.where(right & (length <= most), worth, 0.0)


@dataclass(frozen=True)
class BudgetReward(PartHooks, OfBudgets):
    """`<reward>_budget` in a reward's place: min(w(n) - |b - n| / most, w(b)), w(n) = 4 cos(pi n / (2 most)), of right answers.

    HBPO, arXiv:2507.15844, for groups of the planner Budgets: b is the sample's budget, n its tokens, `most` the longest answer.
    Wrong ones get 0, those without `mark` get -1.
    """

    shares: tuple[PositiveShare, ...] = SHARES
    """As the planner's."""
    length: Count | None = None
    """The longest answer, in tokens. None: the run fills in its max_new_tokens."""
    mark: str = "</think>"
    """Without it there is no answer; empty: every text is one."""
    reward: str | None = None
    success_at: Number = 0.5
    pi: Positive = math.pi
    """3.1416 in its code."""

    reads = ()

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        most = float(self.length or 1)
        budget = torch.tensor(self.shares, dtype=torch.float64)[part_numbers(rollouts, len(self.shares))] * most
        answered = torch.tensor([self.mark in (sample.text or "") for _, sample in rollouts.samples()], dtype=torch.bool)

        def paid(accuracy: Tensor) -> Tensor:
            found = budget_rewards(accuracy >= self.success_at, written(rollouts), budget, most, self.pi)
            return torch.where(answered, found, -1.0).to(accuracy)

        return instead(scores, self, self.reward, "budget", paid)


@dataclass(frozen=True)
class ModePays:
    """`<reward>_mode` in a reward's place: `short_right` or `think_right` for right answers by the word they begin with, else -1.

    Thinkless, arXiv:2505.13379: right after `short` 1, after `think` 1/2; wrong, or neither word, -1.
    """

    short: str = "<short>"
    """Begins an answer without a thought."""
    think: str = "<think>"
    """Begins a thought; it may be what the chat template opens."""
    short_right: Number = 1.0
    """For a right answer without a thought."""
    think_right: Number = 0.5
    """For a right answer behind a thought."""
    wrong: Number = -1.0
    """For a wrong answer, or one that begins with neither word."""
    reward: str | None = None
    success_at: Number = 0.5

    reads = ()

    def __post_init__(self) -> None:
        check_ranges(self)
        if not (self.short and self.think):
            raise ValueError("ModePays.short and ModePays.think begin answers of either mode: write a word for both")

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        begun = [sample.opened + (sample.transcript or "") for _, sample in rollouts.samples()]
        pays = [
            self.short_right if text.startswith(self.short) else self.think_right if text.startswith(self.think) else self.wrong
            for text in begun
        ]

        def paid(accuracy: Tensor) -> Tensor:
            return torch.tensor(pays).to(accuracy).where(accuracy >= self.success_at, self.wrong)

        return instead(scores, self, self.reward, "mode", paid)


@dataclass(frozen=True)
class LengthBudget(PartHooks):
    """`<reward>_length` in a reward's place: r clamp(1 - (n - b) / slope, 0, 1), n the length of the whole answer (PixelThink).

    arXiv:2505.23727. b = hard_budget + per_uncertainty u for prompts of difficulty `hard` and more, none from `medium` on, else
    easy_budget; u is the mean over the tokens of 1 less the lead of the likeliest over the second. Short answers lose nothing;
    rewards below 0 stay, or a long wrong answer would be worth more.
    """

    unit: Literal["words", "tokens"] = "words"
    """Of n, of budgets and of the slope."""
    column: str = "difficulty"
    """The column with a prompt's difficulty, a number."""
    hard: Number = 5.0
    """The difficulty from which a prompt is hard."""
    medium: Number = 3.5
    """The difficulty from which a prompt is neither hard nor easy, and has no budget."""
    hard_budget: NonNegative = 256.0
    """The length that a hard prompt is worth."""
    easy_budget: NonNegative = 96.0
    """The length that an easy prompt is worth."""
    per_uncertainty: NonNegative = 25.0
    """0: the policy's uncertainty is not read."""
    slope: Positive = 500.0
    """How far beyond the budget nothing is left."""
    reward: str | None = None
    """None: the first reward."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.medium > self.hard:
            raise ValueError(
                f"LengthBudget.medium is {self.medium:g}, above hard = {self.hard:g}: set medium to hard, where nothing is to be "
                "without a budget, or below it"
            )

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (OLD_LEAD,) if self.per_uncertainty else ()

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError for a prompt without a difficulty."""
        for prompt in prompts:
            number_at(prompt, self.column)

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        pairs, unsure = list(rollouts.samples()), torch.zeros(len(rollouts))
        if self.per_uncertainty:
            unsure = masked_mean((1 - frozen[OLD_LEAD]).clamp(0, 1), rollouts.action_mask, dim=1)
        words = [float(len((sample.transcript or "").split())) for _, sample in pairs]
        lengths = words if self.unit == "words" else list(map(float, written(rollouts)))
        budgets = [
            self.budget(number_at(group.prompt, self.column), float(u)) for (group, _), u in zip(pairs, unsure, strict=True)
        ]
        share = [min(1.0, max(0.0, 1 - (n - b) / self.slope)) for n, b in zip(lengths, budgets, strict=True)]
        return instead(scores, self, self.reward, "length", lambda r: r * r.new_tensor(share).where(r > 0, 1.0))

    def budget(self, difficulty: float, uncertainty: float) -> float:
        """How long an answer a prompt is worth; infinite between `medium` and `hard`."""
        if difficulty >= self.hard:
            return self.hard_budget + self.per_uncertainty * uncertainty
        return math.inf if difficulty >= self.medium else self.easy_budget


@dataclass(frozen=True)
class OverlongPenalty(PlainShaping):
    """Adds a reward `overlong`: 0 up to length - buffer actions, then linear to -1 at length (DAPO, arXiv:2503.14476)."""

    length: Count | None = None
    """In actions. None: the run fills in its max_new_tokens."""
    buffer: Count | None = None
    """In actions. None: a fifth of the length, as in the paper (4096 of 20480)."""
    weight: NonNegative = 1.0
    """Weight of the reward `overlong` in the total."""

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        """Raises ValueError when `length` was never filled in, or a reward is called `overlong` already."""
        if self.length is None:
            raise ValueError(
                "OverlongPenalty.length is not set, and nothing filled in the run's max_new_tokens: "
                "give the penalty a length, OverlongPenalty(length=1024)"
            )
        buffer = max(self.length // 5, 1) if self.buffer is None else self.buffer
        num_actions = rollouts.action_mask.sum(1).to(scores.values)
        penalty = ((self.length - buffer - num_actions) / buffer).clamp(-1, 0)
        return with_column(scores, self, "overlong", penalty, self.weight)


def exit_rewards(right: Bool[Tensor, " g"]) -> Float[Tensor, " g"]:
    """2^-(k - 1) for the k-th right one, in the order given, 0 for wrong ones."""
    return torch.where(right, 0.5 ** (right.cumsum(0) - 1), 0.0)


@dataclass(frozen=True)
class ExitDecay(PlainShaping, Beside):
    """Adds `<reward>_exit` in place of a reward: 2^-(k - 1) for the k-th right sample of a group, from the earliest exit on.

    S-GRPO, arXiv:2505.07686; for groups of SerialExits. The whole answer, which has no given tokens, is the last exit.
    """

    reward: str | None = None
    success_at: Number = 0.5

    planners = ("SerialExits",)

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        exits = torch.tensor([exit_of(sample) for _, sample in rollouts.samples()], dtype=torch.long)

        def decay(accuracy: Tensor) -> Tensor:
            values = torch.zeros_like(accuracy)
            for group in rollouts.groups:
                rows = (rollouts.group_ids == group.id).nonzero()[:, 0]
                rows = rows[exits[rows].argsort(stable=True)]
                values[rows] = exit_rewards(accuracy[rows] >= self.success_at).to(values)
            return values

        return instead(scores, self, self.reward, "exit", decay)


@dataclass(frozen=True)
class WhereToolsHelp(PlainShaping, Beside):
    """Adds a reward `tools_help` to samples that used a tool: the sign of mean(r that did) - mean(r that did not) beyond `least`.

    The contrast of GeometryZero's GCPO, arXiv:2506.07160, from summaries. The two sides of a group are those that the policy
    chose, or with `asked`, as there, those that the planner AskedHalves asked for; a group without one of them gets 0.
    """

    weight: NonNegative = 0.5
    """Weight of the reward in the total; ours."""
    least: NonNegative = 0.1
    """Differences up to this, in units of the total reward, say nothing; ours."""
    fact: str = "tool"
    """The fact of an observation that says that a tool was used."""
    asked: bool = False
    """Compare the halves that were asked with and without the tool, in place of those that used it and did not."""

    planners = ("AskedHalves",)

    def check_beside(self, algorithm: Parts) -> None:
        """Raises ValueError where halves are to be compared that nobody asked."""
        if self.asked:
            super().check_beside(algorithm)

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        """Raises ValueError when a reward has its name already."""
        totals, keep = totals_and_keep(scores)
        used = uses(rollouts, self.fact)
        side = first_halves(rollouts) if self.asked else used
        found = by_group(rollouts, keep, totals, self._contrast, used, side)
        return with_column(scores, self, "tools_help", found, self.weight)

    def _contrast(self, totals: Tensor, used: Tensor, side: Tensor) -> Tensor:
        if side.all() or not side.any():
            return torch.zeros_like(totals)
        lead = totals[side].mean() - totals[~side].mean()
        return torch.where(used, lead.sign() * (lead.abs() > self.least), 0.0)


@dataclass(frozen=True)
class SeldomTools(PlainShaping):
    """Adds a reward `seldom_tools` to samples that used a tool: max(wanted - share of the group that did, 0) (VR-Thinker).

    The reward for exploration of arXiv:2510.10518, from summaries.
    """

    weight: NonNegative = 1.0
    """Weight of the reward in the total; ours."""
    wanted: Share = 0.5
    """The share of a group from which using tools brings nothing more; ours."""
    fact: str = "tool"
    """The fact of an observation that says that a tool was used."""

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        """Raises ValueError when a reward has its name already."""
        totals, keep = totals_and_keep(scores)
        used = uses(rollouts, self.fact).to(totals)
        found = by_group(rollouts, keep, used, lambda group: group * (self.wanted - group.mean()).clamp(min=0))
        return with_column(scores, self, "seldom_tools", found, self.weight)


def first_halves(rollouts: Rollouts) -> Tensor:
    """True for the first half of every group's samples, which AskedHalves asks to use a tool."""
    sizes = {group.id: len(group.samples) for group in rollouts.groups}
    half = torch.tensor([sizes[group_id] // 2 for group_id in map(int, rollouts.group_ids)])
    return rollouts.sample_ids < half.to(rollouts.sample_ids.device)
