"""Groups weighed by how much their answers agree, and sets of answers rewarded for being right and different."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmrl.algorithms.advantages.group import GroupNorm, OfPattern
from mmrl.algorithms.statistics import by_group, less_mean, moments, one_per_group, to_credit, totals_and_keep
from mmrl.core.types import Credit, Rollouts, Scores
from mmrl.runtime.ranges import Count, NonNegative, Number, Seed, Share

ANSWER = r"<answer>(.*?)</answer>"
"""The content of the last answer block, or the whole completion if there is none."""
MOST_SETS = 1000
"""The most sets of a group that are evaluated; if there are more, this many are drawn with a seed."""


def answers(rollouts: Rollouts, pattern: str) -> Int[Tensor, " n"]:
    """A number per row, the same for rows with the same answer; case and the amount of white space do not count."""
    seen: dict[str, int] = {}
    texts = [sample.text or "" for _, sample in rollouts.samples()]
    found = [(re.findall(pattern, text, re.DOTALL) or [text])[-1] for text in texts]
    return torch.tensor([seen.setdefault(" ".join(one.lower().split()), len(seen)) for one in found], dtype=torch.long)


def shares(labels: Sequence[float]) -> list[float]:
    """The share of each label, one number per distinct label."""
    return [count / len(labels) for count in Counter(labels).values()]


@dataclass(frozen=True)
class SemanticEntropy(OfPattern):
    """A = (r - group mean) (1 - alpha SE / log G), SE = -mean over distinct answers of log(their share) (SEED-GRPO).

    SEED-GRPO, arXiv:2505.12346: prompts whose answers scatter move the policy less, by `alpha` at most. That more entropy means a
    smaller step is our reading of its linear form; the focal and exponential forms are not implemented.
    """

    alpha: Share = 0.02
    """The largest share by which an advantage shrinks."""
    pattern: str = ANSWER
    """A regular expression whose group is the answer; answers that are equal but for case and spaces are one."""

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        return to_credit(by_group(rollouts, keep, totals, self._scale, answers(rollouts, self.pattern)), keep, rollouts, scores)

    def _scale(self, rewards: Tensor, labels: Tensor) -> Tensor:
        if len(rewards) == 1:
            return torch.zeros_like(rewards)
        logs = [math.log(share) for share in shares(list(map(int, labels)))]
        factor = 1 - self.alpha * (-sum(logs) / len(logs)) / math.log(len(rewards))
        return less_mean(rewards, "zero") * factor


@dataclass(frozen=True)
class Consistency(OfPattern):
    """A = w local + (1 - w) global, w = sigmoid(k (H - b)), H the bits of entropy of a group's answers (COPO, arXiv:2508.04138).

    local is `GroupNorm`; global is the group's mean reward, standardized over the prompts of the step, for all its samples: where
    all agree, right or wrong, prompts are compared with prompts. With `discount` a group's mean reward is first multiplied by
    1 - (1 - 1/G) H / log2 G. The paper mixes two clipped losses, here the two advantages are mixed inside one: the same as long
    as nothing is clipped.
    """

    k: NonNegative = 5.0
    """Steepness of the sigmoid, per bit."""
    b: Number = 1.0
    """Entropy in bits at which local and global have equal weight."""
    discount: bool = False
    """Lower the mean reward of groups whose answers scatter before prompts are compared."""
    pattern: str = ANSWER
    """A regular expression whose group is the answer."""
    local: GroupNorm = field(default_factory=lambda: GroupNorm(eps=1e-6))
    """How samples of a group are compared; its eps is also used across prompts."""

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        rows = torch.stack([totals, answers(rollouts, self.pattern).to(totals)], dim=1)
        found = by_group(rollouts, keep, rows, self._weigh)
        weight, means = found[:, 0], found[:, 1]
        local = self.local(scores, rollouts)
        mixed = weight[:, None] * local.values + (1 - weight[:, None]) * self._over_prompts(means, keep, rollouts)[:, None]
        return Credit(torch.where(rollouts.action_mask & keep[:, None], mixed, 0.0).to(scores.values.dtype), keep)

    def _weigh(self, rows: Tensor) -> Tensor:
        rewards, labels = rows.unbind(1)
        entropy, factor = self.entropy([float(label) for label in labels])
        weight = torch.full_like(rewards, 1 / (1 + math.exp(-self.k * (entropy - self.b))))
        return torch.stack([weight, (rewards.mean() * (factor if self.discount else 1.0)).expand(len(rows))], dim=1)

    def entropy(self, labels: Sequence[float]) -> tuple[float, float]:
        """Bits of entropy of the answers, and the factor of the group's mean reward."""
        entropy = -sum(share * math.log2(share) for share in shares(labels))
        if len(labels) == 1:
            return 0.0, 1.0
        return entropy, 1 - (1 - 1 / len(labels)) / math.log2(len(labels)) * entropy

    def _over_prompts(self, means: Tensor, keep: Tensor, rollouts: Rollouts) -> Float[Tensor, " n"]:
        ids = rollouts.group_ids[keep]
        per_prompt = one_per_group(means[keep], ids)
        mean, deviation = moments(per_prompt, ddof=1)
        if not len(ids) or bool((per_prompt == per_prompt[0]).all()):
            return torch.zeros_like(means)
        return (means - mean) / (deviation + self.local.eps)


@dataclass(frozen=True)
class Polychromic(OfPattern):
    """A_i = mean over the sets of n samples that hold i of f - mean over all sets of f, f = mean reward x share of distinct
    answers (arXiv:2509.25424).

    All sets of a group are evaluated if there are at most 1000, else a seeded draw of 1000. A wrong answer that no other sample
    gave may gain: that is the method. A group without a right answer gets 0. Rewards must be in [0, 1]. The text form is ours
    (the paper branches within rollouts and uses a critic).
    """

    n: Count = 4
    """Samples in a set."""
    pattern: str = ANSWER
    """A regular expression whose group is the answer; answers that are equal but for case and spaces are one."""
    seed: Seed = 0
    """Of the draw of sets, with the group's id."""

    @property
    def min_group_size(self) -> int:
        return self.n + 1

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        beside = answers(rollouts, self.pattern), rollouts.group_ids
        return to_credit(by_group(rollouts, keep, totals, self._compare, *beside), keep, rollouts, scores)

    def _compare(self, rewards: Tensor, labels: Tensor, ids: Tensor) -> Tensor:
        chosen = self.sets(len(rewards), int(ids[0]))
        values = torch.zeros_like(rewards)
        if chosen:
            index = torch.tensor(chosen)
            distinct = torch.tensor([len(set(map(int, one))) for one in labels[index]]).to(rewards) / index.shape[1]
            merit = rewards[index].mean(1) * distinct
            held = torch.zeros(len(index), len(rewards)).to(rewards).scatter_(1, index, 1.0)
            times = held.sum(0)
            values = torch.where(times > 0, ((merit - merit.mean())[:, None] * held).sum(0) / times.clamp(min=1), 0.0)
        return values

    def sets(self, size: int, group_id: int) -> list[tuple[int, ...]]:
        """The sets of a group of `size` samples; none if it is no larger than a set."""
        if size <= self.n:
            return []
        if math.comb(size, self.n) <= MOST_SETS:
            return list(combinations(range(size), self.n))
        generator = torch.Generator().manual_seed((self.seed * 1_000_003 + group_id) % 2**63)
        drawn = (torch.randperm(size, generator=generator)[: self.n] for _ in range(MOST_SETS))
        return [tuple(sorted(map(int, one))) for one in drawn]
