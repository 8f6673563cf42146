"""Planners that sample more of the prompts that need it: until a group is mixed, where it is hard, where it is uncertain, or
at another temperature.

All samples of a prompt are one group. Groups then differ in size, so an aggregation that averages rollouts lets hard prompts
count more, which is what these methods want.
"""

import math
import random
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.notes import Notes
from mmrl.algorithms.planners.base import Once, Remembering, Twice
from mmrl.algorithms.statistics import uncertainty
from mmrl.core.readings import OLD_ENTROPY, ROLLOUT_LOGPROBS
from mmrl.core.types import Credit, Group, Reading, Request, Revision, Rollouts, Scores, Tempering
from mmrl.runtime.ranges import Count, NonNegative, Number, Positive, Range, Share
from mmrl.runtime.tensors import masked_mean


@dataclass(frozen=True)
class Again(Remembering):
    """A planner that gives some groups more samples, with random numbers of their own."""

    def look(self, groups: Sequence[Group], rewards: dict[int, list[float]], round_index: int) -> Revision:
        """Ask for more samples of the groups that want some."""
        known = {name: [reward for reward in values if not math.isnan(reward)] for name, values in rewards.items()}
        more = self.extra(known, round_index)
        wanted = [(group.id, more[group.id]) for group in groups if more.get(group.id, 0) > 0]
        return Revision([self.again(name, count, round_index + 1) for name, count in wanted])

    @abstractmethod
    def extra(self, rewards: dict[int, list[float]], round_index: int) -> dict[int, int]:
        """Group -> how many more samples to draw, given its total rewards so far."""


@dataclass(frozen=True)
class UntilMixed(Again):
    """Rounds of samples for a prompt until `right` of them are right and `wrong` are wrong (Reinforce-Ada, arXiv:2510.04996).

    Take the advantage Downsampled with it, which computes its statistics from all samples and trains on a few.
    """

    max_rounds: Count = 4
    right: Annotated[int, Range(0, 2**20)] = 2
    """The number of right samples to reach."""
    wrong: Annotated[int, Range(0, 2**20)] = 2
    """The number of wrong samples to reach; 0: the paper's variant that only waits for right ones."""
    per_round: Count = 8
    """Samples drawn in each further round."""
    success_at: Number = 0.7
    """Total reward above which a sample is right."""

    def extra(self, rewards: dict[int, list[float]], round_index: int) -> dict[int, int]:
        if round_index + 1 >= self.max_rounds:
            return {}
        counts = {name: sum(r > self.success_at for r in values) for name, values in rewards.items()}
        lacking = [name for name, n in counts.items() if n < self.right or len(rewards[name]) - n < self.wrong]
        return dict.fromkeys(lacking, self.per_round)


@dataclass(frozen=True)
class WhereHard(Again):
    """A second round of ceil((peak - N S) / S) samples where p < 1/2, S = 2 p (1 - p) (DARS, arXiv:2508.13755).

    p is the success rate of the first N samples, 1 / (2 N) where none was right; peak = N / 2. `deviation`: for advantages that
    are divided by the deviation, S = 2 sqrt(p (1 - p)) and peak = N. `weigh = "hard"` (its HW) puts 2 (1 - p) peak in place of
    peak. At most `most` samples per prompt in all.
    """

    most: Count = 32
    """Samples of a prompt, both rounds: 32 in the paper's ET, 64 in its HW."""
    weigh: Literal["even", "hard"] = "even"
    """hard: prompts that are rarely solved get even more samples."""
    deviation: bool = False
    """True where the advantage divides by the group's deviation."""
    success_at: Number = 0.5

    max_rounds = 2

    def extra(self, rewards: dict[int, list[float]], round_index: int) -> dict[int, int]:
        if round_index:
            return {}
        rates = {name: sum(r >= self.success_at for r in values) / len(values) for name, values in rewards.items() if values}
        return {name: self.count(rate, len(rewards[name])) for name, rate in rates.items()}

    def count(self, rate: float, num_samples: int) -> int:
        """Number of further samples for a prompt with a success rate of `rate` among its first `num_samples`."""
        rate = rate or 0.5 / num_samples
        if rate >= 0.5:
            return 0
        spread = 2 * (math.sqrt(rate * (1 - rate)) if self.deviation else rate * (1 - rate))
        peak = num_samples if self.deviation else num_samples / 2
        wanted = (2 * (1 - rate) if self.weigh == "hard" else 1) * peak - num_samples * spread
        # A bound that rounding raises by one ulp must not cost a sample.
        return max(0, min(math.ceil(wanted / spread - 1e-9), self.most - num_samples))


@dataclass(frozen=True)
class WhereUncertain(Again):
    """Rounds of samples for the prompts with the largest h(n) - h(n + 1) + bonus sqrt(ln(1 + T) / n) (XRPO, arXiv:2510.06672).

    h(n) = t s / sqrt(n) is half the t-interval of the mean reward, s its unbiased deviation, T the step's samples so far. From a
    review of the paper; not implemented: adding solved examples to the prompts of groups in which every sample fails.
    """

    max_rounds: Count = 3
    per_round: Count = 4
    """Samples that a round adds to a prompt."""
    prompts_per_round: Count = 4
    """Prompts that a round adds samples to."""
    bonus: NonNegative = 1.0
    """How much prompts with few samples gain."""
    confidence: Annotated[float, Range(above=0, below=1)] = 0.95
    """Of the interval of the mean reward."""

    def extra(self, rewards: dict[int, list[float]], round_index: int) -> dict[int, int]:
        if round_index + 1 >= self.max_rounds:
            return {}
        total = sum(map(len, rewards.values()))
        priority = {name: sum(self.gain(values, total)) for name, values in rewards.items() if len(values) > 1}
        ranked = sorted(priority, key=lambda name: (-priority[name], name))
        return dict.fromkeys(ranked[: self.prompts_per_round], self.per_round)

    def half_width(self, deviation: float, count: int) -> float:
        """h(count)."""
        from scipy.special import stdtrit  # type: ignore[import-untyped]  # scipy ships no types

        return float(stdtrit(count - 1, 0.5 + self.confidence / 2)) * deviation / math.sqrt(count)

    def gain(self, rewards: Sequence[float], total: int) -> tuple[float, float]:
        """How much one more sample narrows the interval, plus the bonus of a prompt with few samples."""
        count, mean = len(rewards), sum(rewards) / len(rewards)
        deviation = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (count - 1))
        narrower = self.half_width(deviation, count) - self.half_width(deviation, count + 1)
        return narrower, self.bonus * math.sqrt(math.log(1 + total) / count)


@dataclass(frozen=True)
class Tempered(Notes, Twice):
    """Samples a share of the prompts once more at temperature T: `hot` up to the target entropy, `cold` above it.

    Arbitrary entropy policy optimization, arXiv:2510.08141, code Arbitrary-Entropy b353a05. Take the advantage
    GoodTempered with it, which trains the good ones of these rows with A = 1, and a surrogate without a clip. Entropy is the
    mean of -log p of what the step before sampled, 0 before the first.
    """

    target: NonNegative = 0.5
    """Wanted entropy, in nats per action."""
    share: Share = 0.25
    """Of the step's prompts, rounded up."""
    hot: Positive = 1.2
    """T as long as the entropy is at most the target."""
    cold: Positive = 0.8
    """T above it."""

    def look(self, groups: Sequence[Group], rewards: dict[int, list[float]], round_index: int) -> Revision:
        """Ask for some of the groups again, as groups of their own."""
        if round_index or not groups:
            return Revision()
        heat = self.hot if self.notes.get("entropy", 0.0) <= self.target else self.cold
        sizes, seed = {group.id: len(group.samples) for group in groups}, min(one.seed for one in self.requests.values())
        chosen = random.Random(f"{seed}/tempered").sample(sorted(sizes), math.ceil(self.share * len(groups)))
        again = [self.again(one, sizes[one], -1, tempering=Tempering(heat)) for one in chosen]
        return Revision([replace(request, group_id=-1 - i) for i, request in enumerate(again)])

    def watch(self, step: int, rollouts: Rollouts, scores: Scores, credit: Credit) -> None:
        noted = rollouts.recorded[ROLLOUT_LOGPROBS]
        known = rollouts.action_mask & noted.isfinite()
        self.notes["entropy"] = -float(masked_mean(noted.double(), known))


class Heat(NamedTuple):
    """T (1 + amount u) for a token, u in [-1, 1] how far its log entropy is from a pivot: `Heat(-0.3, 0.8, 0.5, 0.4, 0.05)`."""

    pivot: float = 0.0
    """The log entropy of the run's own temperature."""
    deviation: float = 1.0
    """Of log entropies about the pivot."""
    above: float = 0.0
    """u per deviation above the pivot."""
    below: float = 0.0
    """u per deviation below it, where distances are negative."""
    amount: float = 0.0

    def factor(self, entropy: Float[Tensor, " *n"]) -> Float[Tensor, " *n"]:
        """The factor on the temperature of tokens with these entropies, in nats."""
        distance = (entropy.clamp(min=1e-12).log() - self.pivot) / self.deviation
        size = distance * torch.where(distance > 0, self.above, self.below)
        return 1 + self.amount * size.clamp(-1, 1)

    def __call__(self, logprobs: Float[Tensor, "n v"]) -> Float[Tensor, "n v"]:
        """Log-probabilities that tokens are drawn with, from those at the run's temperature."""
        p = logprobs.exp()
        entropy = -torch.where(p > 0, p * logprobs, 0.0).sum(-1)
        return (logprobs / self.factor(entropy)[:, None]).log_softmax(-1)


@dataclass(frozen=True)
class ByDoubt(Notes, Once):
    """T (1 + amount u) for every token, u in [-1, 1] how far its log entropy is from that of the step before (HAPO).

    HAPO, arXiv:2509.16591, code starriver030515/HAPO. Pivot, deviation and scales are those of EntropyClip, over all actions of
    the step before; the first step uses the run's temperature. The recorded probabilities are those at the run's temperature, as
    in the code. Works with the policy's own network only, not with an engine.
    """

    samples_plainly = False
    amount: Share = 0.05
    """Largest relative change of a temperature."""
    pivot: Annotated[float, Range(above=0, below=1)] = 0.8
    """The quantile of log entropies above which tokens are drawn hotter."""
    sign: Literal["paper", "code"] = "paper"
    """code: tokens below the pivot are drawn hotter as well, as the released code has it."""
    heats_tokens = True

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (OLD_ENTROPY,)

    @property
    def heat(self) -> Heat | None:
        """How the next step's tokens are drawn; None before anything was measured."""
        return Heat(**self.notes, amount=self.amount) if self.notes else None

    def asked(self, request: Request) -> Sequence[Request]:
        return (replace(request, tempering=Tempering(rule=self.heat)),)

    def watch(self, step: int, rollouts: Rollouts, scores: Scores, credit: Credit) -> None:
        found = uncertainty(rollouts.recorded[OLD_ENTROPY].double(), rollouts.action_mask, self.pivot, self.sign)
        below = found.lower if self.sign == "code" else -found.lower
        self.notes.update(pivot=found.pivot, deviation=found.deviation or 1.0, above=found.upper, below=below)
