"""Prompts sampled again at another temperature, or at one per token, to steer entropy."""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.notes import Notes
from mmrl.algorithms.planners.base import Once, Twice
from mmrl.algorithms.statistics import uncertainty
from mmrl.core.readings import OLD_ENTROPY, ROLLOUT_LOGPROBS
from mmrl.core.types import Credit, Group, Reading, Request, Revision, Rollouts, Scores, Tempering
from mmrl.runtime.ranges import NonNegative, Positive, Range, Share
from mmrl.runtime.tensors import masked_mean


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
