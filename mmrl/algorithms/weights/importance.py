"""How much an action's credit counts: by what policy or teacher knew, attention, the group, its prompt, a step's noise."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmrl.algorithms.statistics import number_at
from mmrl.algorithms.views import SEEN
from mmrl.algorithms.weights.aggregate import PlainWeight
from mmrl.core.hooks import PartHooks, WeightHooks
from mmrl.core.readings import (
    ATTENTION_DISTANCE,
    ATTENTION_INFLUENCE,
    DT,
    GROUP_DIVERGENCE,
    MEAN_REWARD,
    OLD_ENTROPY,
    OLD_LOGPROBS,
    PULL,
    REWARD,
    ROLLOUT_LOGPROBS,
    STD,
    TAUGHT,
)
from mmrl.core.types import Batch, Counts, Group, MediaSize, Prompt, Reading, Sample, Scope
from mmrl.runtime.ranges import Count, Factor, NonNegative, Number, Positive, PositiveShare, Share, With
from mmrl.runtime.tensors import masked_mean


@dataclass(frozen=True)
class HighEntropy(WeightHooks):
    """1 for the `quantile` of actions with the highest entropy, 0 for the others ("80/20", arXiv:2506.01939).

    The threshold is taken over the actions of the minibatch, at the weights that sampled (TRL: at the current ones, again in
    every pass). Shares stay those of all actions, so the loss shrinks with the quantile.
    """

    quantile: PositiveShare = 0.2
    """The part that is kept, in (0, 1]."""

    reads = pools = (OLD_ENTROPY,)

    @property
    def scope(self) -> Scope:
        return "batch"

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        entropy, mask = batch.frozen[OLD_ENTROPY], batch.rollouts.action_mask
        if not bool(mask.any()):
            return torch.zeros_like(batch.advantages)
        threshold = quantile(counts.pooled.get(OLD_ENTROPY, entropy[mask]), 1 - self.quantile)
        return ((entropy >= threshold) & mask).to(batch.advantages.dtype)


@dataclass(frozen=True)
class RolloutCorrection(PartHooks):
    """old / sampler, for samplers whose probabilities differ from the trainer's (TIS and MIS; TRL 1.16's default mode).

    Per action, or multiplied over the rollout (TRL's product, not ms-swift's geometric mean). `truncate` clamps the ratio
    into [low, high]; `mask` puts 0 where it leaves them. An action whose sampler log-probability is NaN is not corrected.
    Needs Algorithm.old = "reread", else old is the sampler and the ratio is always 1.
    """

    mode: Literal["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"] = "sequence_mask"
    """token: a ratio per action; sequence: their product over the rollout. truncate: into [low, high]; mask: 0 outside."""
    low: NonNegative | None = None
    """Least ratio; None: no bound."""
    high: Positive | None = 3.0
    """Largest ratio; None: no bound."""

    reads = (OLD_LOGPROBS, ROLLOUT_LOGPROBS)

    @property
    def scope(self) -> Scope:
        return "action" if self.mode.startswith("token") else "rollout"

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        log_ratio = sampler_gap(batch)
        if self.mode.startswith("sequence"):
            log_ratio = log_ratio.sum(1, keepdim=True).expand_as(log_ratio)
        ratio, low, high = log_ratio.exp(), self.low or 0.0, self.high or math.inf
        if self.mode.endswith("truncate"):
            return ratio.clamp(low, high)
        return ratio.masked_fill((ratio < low) | (ratio > high), 0.0)


@dataclass(frozen=True)
class OffPolicyMask(PlainWeight):
    """0 for actions with A < 0 of rollouts where mean_t(log sampler - log old) > delta (OPSM, DeepSeek-V3.2, arXiv:2512.02556).

    What the policy has left behind must not be pushed further down. The gap is taken once, before the first update
    (TRL: against the moving weights, at every update); Algorithm.old must be "reread".
    """

    delta: Number = 0.5
    """In nats per action."""

    reads = (OLD_LOGPROBS, ROLLOUT_LOGPROBS)

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        gap = masked_mean(-sampler_gap(batch), batch.rollouts.action_mask, dim=1)
        left_behind = (gap > self.delta)[:, None] & (batch.advantages < 0)
        return 1.0 - left_behind.to(batch.advantages.dtype)


def sampler_gap(batch: Batch) -> Float[Tensor, "n t"]:
    """log old - log sampler where an action trains and the sampler said something, else 0."""
    gap = batch.frozen[OLD_LOGPROBS] - batch.frozen[ROLLOUT_LOGPROBS]
    return torch.where(batch.rollouts.action_mask & ~gap.isnan(), gap, 0.0)


def quantile(x: Float[Tensor, " m"], q: float) -> Tensor:
    """torch.quantile for any number of values; the original refuses more than 2^24."""
    ordered = x.sort().values
    position = q * (len(ordered) - 1)
    low = int(position)
    return torch.lerp(ordered[low], ordered[min(low + 1, len(ordered) - 1)], position - low)


@dataclass(frozen=True)
class SureTeacher(PartHooks):
    """exp(-beta H) over its mean in rows that a teacher has to itself, 1 elsewhere: H the entropy of the teacher's next token.

    SRPO, arXiv:2604.02288. The mean is over all such tokens of the minibatch, of all processes. Take FollowTeacher with
    weighed = true, the same model, and a view.
    """

    beta: NonNegative = 1.0
    """How much a teacher's doubt counts, per nat."""
    model: Literal["teacher", "ref", "ema"] = "ema"
    """Whose weights the teacher has."""

    @property
    def entropy(self) -> Reading:
        """The teacher's doubt."""
        return Reading("entropy", self.model, SEEN)

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (self.entropy, TAUGHT)

    @property
    def pools(self) -> tuple[Reading, ...]:
        return self.reads

    @property
    def scope(self) -> Scope:
        return "batch"

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        weight, taught = (-self.beta * batch.frozen[self.entropy]).exp(), batch.frozen[TAUGHT] > 0
        mask = batch.rollouts.action_mask
        entropy, theirs = (counts.pooled.get(reading, batch.frozen[reading][mask]) for reading in self.reads)
        mean = (-self.beta * entropy[theirs > 0]).exp().mean()
        return torch.where(taught, weight / mean, 1.0).to(batch.advantages.dtype)


@dataclass(frozen=True)
class GroupDivergence(WeightHooks):
    """w_t = 1 + (alpha - 1) (D_t - min D) / (max D - min D), D_t = how far a group's distributions differ there (TW-GRPO).

    arXiv:2505.24718. D_t = mean_g sum_v exp(d) - d - 1, d = clamp(mean over the group of log p - log p, 11), the same for all
    rows of a group; rows that have ended count as uniform. At the first token all rows have the same distribution, so min D is 0.
    The code of the paper takes the current weights and lets a gradient through the weight; here it is the weights that sampled,
    so in later passes the values are stale.
    """

    alpha: NonNegative = 1.7
    """Weight where the group disagrees most; 1 = uniform. The paper's script has 1.7, its code 1.4."""

    reads = (GROUP_DIVERGENCE,)

    @property
    def scope(self) -> Scope:
        return "group"

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        divergence = batch.frozen[GROUP_DIVERGENCE].to(batch.advantages.dtype)
        least, most = divergence.amin(dim=1, keepdim=True), divergence.amax(dim=1, keepdim=True)
        return 1 + (self.alpha - 1) * (divergence - least) / (most - least + 1e-8)


ROUNDING = 1e-6
"""A reward this near to its group's mean is neither right nor wrong."""


@dataclass(frozen=True)
class ConflictTokens(WeightHooks):
    """w / max(1, number of shared tokens), w at those 0 in wrong answers and `boost` in right ones, 1 at the others (GTPO).

    GTPO, arXiv:2508.03772. An answer is right if its reward is above its group's mean and wrong below, whatever else its
    advantage is made of. A token is shared if some answer of the other kind in the group has the same token at the same position,
    counted from the beginning without a gap, or likewise from the end; where both counts reach it, weights are multiplied. Only
    the rows of the minibatch are compared. In the authors' code a mask that was not flipped miscounts such tokens; here the
    tokens counted are the tokens weighted.
    """

    boost: NonNegative = 2.0
    """Weight of shared tokens in right answers."""

    reads = (REWARD, MEAN_REWARD)

    @property
    def scope(self) -> Scope:
        return "group"

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        """Raises ValueError when samples have no tokens (pictures)."""
        weights = torch.ones_like(batch.advantages)
        mask, ids = batch.rollouts.action_mask, batch.rollouts.group_ids
        lead = (batch.frozen[REWARD] - batch.frozen[MEAN_REWARD])[:, 0].nan_to_num()
        sign = torch.where(lead.abs() > ROUNDING, lead.sign(), 0.0)
        tokens = [self._tokens(sample.token_ids, group.prompt.id) for group, sample in batch.rollouts.samples()]
        for i, own in enumerate(tokens):
            if sign[i] == 0:
                continue
            others = [tokens[j] for j in range(len(tokens)) if ids[j] == ids[i] and sign[j] == -sign[i]]
            factor = self.boost if sign[i] > 0 else 0.0
            start, end = shared(own, others), shared(own[::-1], [other[::-1] for other in others])
            weights[i, :start] *= factor
            weights[i, max(0, len(own) - end) : len(own)] *= factor
            weights[i] /= max(1, min(start + end, len(own)))
        return weights * mask

    def _tokens(self, token_ids: Sequence[int] | None, prompt: str) -> Sequence[int]:
        if token_ids is None:
            raise ValueError(f"ConflictTokens compares tokens, and the samples of prompt {prompt!r} have none: it is for text")
        return token_ids


def shared(own: Sequence[int], others: Sequence[Sequence[int]]) -> int:
    """How many tokens from the beginning, without a gap, also occur at the same position in one of the other rows."""
    for place, token in enumerate(own):
        if not any(place < len(other) and other[place] == token for other in others):
            return place
    return len(own)


Kind = Literal["local", "global", "coupled"]


def steps_of(values: Float[Tensor, " t"]) -> Float[Tensor, " t"]:
    """|x_t - x_(t+1)|; 0 for the last."""
    return torch.cat([(values[:-1] - values[1:]).abs(), values.new_zeros(1)])


def largest(values: Float[Tensor, " t"], share: float) -> Bool[Tensor, " t"]:
    """True at the ceil(share t) largest values; ties go to the first."""
    chosen = torch.zeros(len(values), dtype=torch.bool, device=values.device)
    chosen[values.argsort(descending=True, stable=True)[: math.ceil(share * len(values))]] = True
    return chosen


@dataclass(frozen=True)
class Rhythm:
    """How far back every token looks, and how much later tokens look at it."""

    distance: Float[Tensor, " t"]
    influence: Float[Tensor, " t"]

    def factors(self, kind: Kind, share: float = 0.4, amplify: float = 1.5, back: int = 2, moved: float = 0.5) -> Tensor:
        """1 + (amplify - 1) at chosen tokens.

        local: the share of tokens where the distance changes most; global: those of the largest influence; coupled: global, but
        an anchor that looks near and follows a jump of the distance within `back` tokens hands `moved` of its gain to the token
        of that jump, once for each such token. Thresholds of near and jump are medians (ours).
        """
        # as exact as what it is given: a number times a mask would be of float32
        steps, gain = steps_of(self.distance), torch.full_like(self.distance, amplify - 1)
        if kind == "local":
            return 1 + gain * largest(steps, share)
        anchors = largest(self.influence, share)
        if kind == "global":
            return 1 + gain * anchors
        led = self.leaders(anchors, back)
        dominated, leading = torch.zeros_like(anchors), torch.zeros_like(anchors)
        dominated[list(led)], leading[list(led.values())] = True, True
        return 1 + gain * (anchors & ~dominated) + gain * (1 - moved) * dominated + gain * moved * leading

    def leaders(self, anchors: Bool[Tensor, " t"], back: int) -> dict[int, int]:
        """Anchor -> the token before it whose jump it follows."""
        steps = steps_of(self.distance)
        near, jump = self.distance.quantile(0.5), steps.quantile(0.5)
        led: dict[int, int] = {}
        for t in map(int, anchors.nonzero()[:, 0]):
            before = steps[max(0, t - back) : t]
            if len(before) and self.distance[t] <= near and before.max() >= jump:
                led[t] = max(0, t - back) + int(before.argmax())
        return led


@dataclass(frozen=True)
class AttentionRhythm(PlainWeight):
    """`amplify` where A >= 0 and a token plans or anchors, 1 elsewhere; coupled: anchors hand a part to the token they follow.

    Attention Illuminates LLM Reasoning, arXiv:2510.13554. Costs a forward in which a few layers compute their attention twice, of
    (completion x completion) floats per head. Windows are the paper's (10 back, 10 to 50 ahead); which heads are local, the
    thresholds (medians) and the part that is handed on are ours. Looks at the prompt and at pictures are left out.
    """

    kind: Kind = "coupled"
    """local: where the distance of looks jumps. global: what later tokens look at. coupled: both, tied together."""
    share: Share = 0.4
    """Share of a completion's tokens that are chosen."""
    amplify: Factor = 1.5
    """The factor of a chosen token."""
    back: Annotated[Count, With("kind", "coupled")] = 2
    """coupled: tokens before an anchor in which a jump may lead to it."""
    moved: Annotated[Share, With("kind", "coupled")] = 0.5
    """coupled: the part of an anchor's gain that goes to that jump."""

    reads = (ATTENTION_DISTANCE, ATTENTION_INFLUENCE)

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        weights = torch.ones_like(batch.advantages)
        for i, mask in enumerate(batch.rollouts.action_mask):
            length = int(mask.nonzero()[-1]) + 1 if bool(mask.any()) else 0
            if length > 1:
                rhythm = Rhythm(*(batch.frozen[reading][i, :length] for reading in self.reads))
                weights[i, :length] = rhythm.factors(self.kind, self.share, self.amplify, self.back, self.moved).to(weights)
        return torch.where(batch.advantages >= 0, weights, 1.0)


class OfTheStep(PartHooks):
    """A weight that knows the schedule only."""

    reads: tuple[Reading, ...] = ()
    scope: Scope = "action"


@dataclass(frozen=True)
class NoiseLevel(OfTheStep):
    """S_i / mean of S over the steps that the schedule trains: noisy early steps count more (TempFlow-GRPO, arXiv:2508.04324).

    The mean is taken, not the paper's constants (2.25 for SD3, 1.73 for FLUX), which are 1 / mean to three digits.
    """

    reads = (STD,)

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        std = batch.frozen[STD]
        trained = std > 0
        mean = std.sum(1, keepdim=True) / trained.sum(1, keepdim=True).clamp(min=1)
        return torch.where(trained, std / mean.clamp(min=1e-12), 0.0)


@dataclass(frozen=True)
class InverseStep(OfTheStep):
    """1 / (sigma - sigma'): with normalized ratios every step pulls equally at the velocity (GRPO-Guard, arXiv:2510.22319)."""

    reads = (DT,)

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        return 1 / batch.frozen[DT].clamp(min=1e-12)


@dataclass(frozen=True)
class EqualGradient(OfTheStep):
    """w / mean of w, w = 1 / |d log p / d velocity| at a noise of 1: all steps pull equally (Flash-GRPO, arXiv:2605.15980).

    With Flow-SDE, Dance-SDE and Wan w = 1 / (sqrt(dt) / s + s sqrt(dt) (1 - sigma) / (2 sigma)); 3/2 of it is LongCat-Video's
    (arXiv:2510.22200). It never touches a KL term.
    """

    normalize: Literal["pool", "batch"] = "pool"
    """The mean is over the steps that the schedule may train, or (the authors' script) over all trained actions of the batch."""

    reads = (PULL,)

    @property
    def pools(self) -> tuple[Reading, ...]:
        return (PULL,) if self.normalize == "batch" else ()

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        pull = batch.frozen[PULL]
        trained = pull > 0
        weight = torch.where(trained, 1 / torch.where(trained, pull, 1.0), 0.0)
        mean = weight.sum(1, keepdim=True) / trained.sum(1, keepdim=True).clamp(min=1)
        if self.normalize == "batch":
            mean = (1 / counts.pooled[PULL]).mean()
        return torch.where(trained, weight / mean, 0.0)


@dataclass(frozen=True)
class Difficulty(PlainWeight):
    """The number in a column of the prompt, for every action of its rollouts (GUI-G1, arXiv:2505.15810).

    There it grows as the target box shrinks against the picture. The column is used as it is, without normalizing.
    """

    column: str = "difficulty"
    """The column of the prompts that holds the weight, a number."""

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        """Raises ValueError when a prompt has no number in that column."""
        values = torch.tensor([number_at(group.prompt, self.column) for group, _ in batch.rollouts.samples()])
        return values.to(batch.advantages)[:, None].expand_as(batch.advantages)

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError for a prompt without a number in that column."""
        for prompt in prompts:
            number_at(prompt, self.column)


@runtime_checkable
class Rectangle(Protocol):
    """The part of a true box that is used here."""

    @property
    def area(self) -> float: ...

    def to(self, space: Literal["norm1"], size: MediaSize | None) -> "Rectangle":
        """The same in shares of the picture's sides."""
        ...


@dataclass(frozen=True)
class SmallTarget(PlainWeight):
    """kappa = clamp((reference / s)^power, least, most), s the share of the picture that the true box covers (GUI-G1).

    arXiv:2505.15810, whose data hold such a number for every prompt (Difficulty reads it); how it was made of the box's relative
    size was not found, so this form and its numbers are ours. Of several boxes the mean size counts.
    """

    reference: PositiveShare = 0.01
    """Share of the picture at which kappa is 1."""
    power: Positive = 0.5
    """How fast kappa grows as a box shrinks."""
    least: Positive = 0.5
    """kappa of large boxes."""
    most: Positive = 2.0
    """kappa of tiny ones."""

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        """Raises ValueError when a prompt's answer is no box."""
        values = torch.tensor([self.factor(self._share(*pair)) for pair in batch.rollouts.samples()])
        return values.to(batch.advantages)[:, None].expand_as(batch.advantages)

    def factor(self, share: float) -> float:
        """kappa of a box that covers this share of its picture."""
        return min(max((self.reference / share) ** self.power, self.least), self.most)

    def _share(self, group: Group, sample: Sample) -> float:
        size = sample.media_sizes[0] if sample.media_sizes else None
        boxes = self._boxes(group.prompt)
        return sum(box.to("norm1", size).area for box in boxes) / len(boxes)

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError for a prompt whose answer is no box."""
        for prompt in prompts:
            self._boxes(prompt)

    def _boxes(self, prompt: Prompt) -> Sequence[Rectangle]:
        answer = prompt.answer
        given = cast(Sequence[object], answer if isinstance(answer, tuple | list) else (answer,))
        boxes = [box for box in given if isinstance(box, Rectangle)]
        if len(boxes) < len(given) or not boxes:
            raise ValueError(
                f"prompt {prompt.id!r} has the answer {answer!r}, and SmallTarget weighs rollouts by the size of true "
                "boxes: take a data set whose answers are boxes, or remove it from algorithm.importance"
            )
        return boxes
