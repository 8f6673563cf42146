"""Terms for samples that were noised again, alone or compared within a prompt: they need no likelihood, only velocities."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmrl.algorithms.beside import OfPairs
from mmrl.algorithms.objectives.terms import OfTheGroup, ProportionalToAdvantage, Surrogate, actions_only, mean_square
from mmrl.core.readings import SIGMA, SOUND_ADVANTAGE, SOUND_FROM, TARGET_VELOCITY, VELOCITY
from mmrl.core.types import Batch, Reading, Scope
from mmrl.runtime.ranges import NonNegative, Positive, With
from mmrl.runtime.tensors import within

Error = Literal["velocity", "noise"]
AdvantageMode = Literal["all", "positive_only", "negative_only", "one_only", "binary"]


@dataclass(frozen=True)
class NegativeAware(Surrogate):
    """clip / beta (r L(v+) + (1 - r) L(v-)), r = A / (2 clip) + 1/2 in [0, 1] (DiffusionNFT, arXiv:2509.16117).

    v+ = beta v + (1 - beta) v_old and v- = (1 + beta) v_old - beta v are what the policy would be if it were better and worse
    than the one that sampled. L(u) = mean (t (u - target))^2 / w with w = mean |t (u - target)| without gradient: the error of
    the predicted data, normalized by itself as in the official code, whose author found it needed; the paper's
    L(u) = mean (u - target)^2 is normalized=False. A = 0 pushes nowhere at v = v_old.
    """

    beta: Positive = 1.0
    """How far v+ and v- lie from v_old, in units of v - v_old."""
    clip: Positive = 5.0
    """Advantages are clamped to [-clip, clip]."""
    mode: AdvantageMode = "all"
    """What the clamped A becomes: itself, its positive or negative part, 1 where A > 0 else 0, or its sign."""
    normalized: bool = True
    """True: errors of the predicted data, divided by their own mean size. False: squared errors of the velocity, as in the
    paper."""
    old: Literal["old", "ema"] = "ema"
    """The weights that sampled: an average of the policy that also samples, or (old) the policy itself."""
    parts: bool = False
    """True: of samples that are a clip and its sound the sum of both parts' values, each by its own advantage, with a gradient
    through w, as in the code of OmniNFT, arXiv:2605.12480; take the advantage PerModality."""

    @property
    def reads(self) -> tuple[Reading, ...]:
        own = (VELOCITY, VELOCITY._replace(model=self.old), TARGET_VELOCITY, SIGMA)
        return (*own, SOUND_FROM, SOUND_ADVANTAGE) if self.parts else own

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> tuple[Float[Tensor, "n t"], dict[str, Tensor]]:
        live, old, target, t, *beside = (readings[reading] for reading in self.reads)
        mask, r = batch.rollouts.action_mask, self.goodness(batch.advantages)
        sides = [(live, old, target, r)]
        if beside:
            (live_clip, live_sound), (old_clip, old_sound), (clip, sound) = (
                clip_and_sound(x, beside[0]) for x in (live, old, target)
            )
            sides = [(live_clip, old_clip, clip, r), (live_sound, old_sound, sound, self.goodness(beside[1]))]
        values = torch.stack([self.pulls(*side, t).flatten(2).mean(2) for side in sides]).sum(0)
        return actions_only(values, mask), {
            "policy/goodness": actions_only(r, mask),
            "policy/moved": actions_only(mean_square(live - old), mask).detach(),
        }

    def pulls(self, live: Tensor, old: Tensor, target: Tensor, r: Tensor, t: Tensor) -> Float[Tensor, "n t ..."]:
        """clip / beta (r e(v+) + (1 - r) e(v-)) of every element, whose mean over e is L; r is of an action, or of an element."""
        better = self._error(self.beta * live + (1 - self.beta) * old, target, t)
        worse = self._error((1 + self.beta) * old - self.beta * live, target, t)
        r = r.reshape(*r.shape, *[1] * (live.ndim - r.ndim))
        return self.clip / self.beta * (r * better + (1 - r) * worse)

    def goodness(self, advantages: Float[Tensor, "*n t"]) -> Float[Tensor, "*n t"]:
        """r: 1/2 for A = 0."""
        a = advantages.clamp(-self.clip, self.clip)
        if self.mode == "positive_only":
            a = a.clamp(min=0)
        elif self.mode == "negative_only":
            a = a.clamp(max=0)
        elif self.mode == "one_only":
            a = (a > 0).to(a)
        elif self.mode == "binary":
            a = a.sign()
        return (a / (2 * self.clip) + 0.5).clamp(0, 1)

    def _error(self, v: Tensor, target: Tensor, t: Tensor) -> Float[Tensor, "n t ..."]:
        if not self.normalized:
            return (v - target) ** 2
        gap = (v - target) * t.reshape(*t.shape, *[1] * (v.ndim - 2))
        weight = (gap if self.parts else gap.detach()).double().abs().flatten(2).mean(2).clamp(min=1e-5)
        return gap**2 / weight.to(gap).reshape(*t.shape, *[1] * (v.ndim - 2))


def clip_and_sound(x: Float[Tensor, "n t d"], sound_from: Float[Tensor, "n t"]) -> tuple[Tensor, Tensor]:
    """Both parts of latents in one vector, without the scale by which means over all are means of both; ValueError for others."""
    start, whole = int(sound_from.max()) if sound_from.numel() else 0, x.shape[-1]
    if x.ndim != 3 or not 0 < start < whole:
        raise ValueError(
            "NegativeAware(parts = true) trains a clip and its sound apart, and this generator draws no sound beside its clips: "
            "take LTX-2, or the preset diffusion_nft"
        )
    return x[..., :start] * (2 * start / whole) ** 0.5, x[..., start:] * (2 * (whole - start) / whole) ** 0.5


@dataclass(frozen=True)
class AdvantageMatching(ProportionalToAdvantage):
    """PPO's clip of ratios of lp = -weighting(m), m = mean (v - target)^2, taken for a log-likelihood (AWM, arXiv:2509.25050).

    uniform: m; t: t m; t2: t^2 m; huber: t (sqrt(m + 1e-10) - 1e-5); ghuber: t / p ((m + 1e-10)^p - 1e-10^p), p = power.
    While the policy samples itself the ratio is 1 and the gradient is -A d lp; off_policy compares with the weights that
    sampled. The clip of 1 hardly ever acts.
    """

    weighting: Literal["uniform", "t", "t2", "huber", "ghuber"] = "ghuber"
    """How the error m counts at time t: one of the five formulas above."""
    power: Annotated[NonNegative, With("weighting", "ghuber")] = 0.25
    """p, for ghuber."""
    clip: Annotated[Positive, With("off_policy")] = 1.0
    """The ratio counts as at least 1 - clip and at most 1 + clip."""
    off_policy: bool = False
    """True: ratios to the weights that sampled. False: to the policy's own current weights, so that they are 1."""
    combine: Literal["exp_first", "sum_first"] = "exp_first"
    """sum_first: one ratio per sample, from lp summed over its times; the gradient is then larger by their number."""

    @property
    def scope(self) -> Scope:
        return "rollout" if self.combine == "sum_first" else "action"

    @property
    def reads(self) -> tuple[Reading, ...]:
        own = (VELOCITY, TARGET_VELOCITY, SIGMA)
        return (*own, VELOCITY._replace(model="old")) if self.off_policy else own

    @property
    def at_first_update(self) -> str | None:
        return "what it is with off_policy = false" if self.off_policy else None

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> tuple[Float[Tensor, "n t"], dict[str, Tensor]]:
        live, target, t, *old = (readings[reading] for reading in self.reads)
        mask, advantages = batch.rollouts.action_mask, batch.advantages
        lp = self.score(live, target, t)
        lp_old = self.score(old[0], target, t) if old else lp.detach()
        difference = actions_only(lp - lp_old, mask)
        if self.combine == "sum_first":
            difference = difference.sum(1, keepdim=True).expand_as(difference)
        ratio = actions_only(difference, mask).exp()
        plain, clipped = -advantages * ratio, -advantages * ratio.clamp(1 - self.clip, 1 + self.clip)
        error = actions_only(mean_square(live - target), mask).detach()
        return torch.maximum(plain, clipped), {"policy/matching_error": error}

    def score(
        self, v: Float[Tensor, "n t ..."], target: Float[Tensor, "n t ..."], t: Float[Tensor, "n t"]
    ) -> Float[Tensor, "n t"]:
        """lp of every noised sample."""
        m = mean_square((v - target).double())
        smallest, time = 1e-10, t.double()
        weighted = {
            "uniform": lambda: m,
            "t": lambda: time * m,
            "t2": lambda: time**2 * m,
            "huber": lambda: time * ((m + smallest).sqrt() - smallest**0.5),
            "ghuber": lambda: time / self.power * ((m + smallest) ** self.power - smallest**self.power),
        }[self.weighting]()
        return -weighted.to(v.dtype)


@dataclass(frozen=True)
class Matching(ProportionalToAdvantage):
    """A mean (v - target)^2: flow matching on what a row holds (arXiv:2210.02747), v the model's velocity at one noised copy.

    With A = 1 this is supervised training on pictures; with 1 for the best of a group and 0 for the others, rejection
    fine-tuning, in which the best of G weighs 1 / G. With `error` "noise" it is the error of the predicted noise.
    """

    error: Error = "velocity"
    """velocity: of flow models; noise: of models that predict noise, such as Stable Diffusion 1.5 and XL."""
    guidance: Positive | None = 1.0
    """The guidance of v: 1: none, as training scripts have it; FLUX.1-dev takes a number as an input. None: the policy's."""

    @property
    def reads(self) -> tuple[Reading, ...]:
        return error_reads(self.error, self.guidance)

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> tuple[Float[Tensor, "n t"], dict[str, Tensor]]:
        error = actions_only(error_of(readings, self.reads[0], self.error), batch.rollouts.action_mask)
        return batch.advantages * error, {"policy/matching_error": error.detach()}


def error_reads(error: Error, guidance: float | None) -> tuple[Reading, ...]:
    """The readings that `error_of` needs: the velocity first."""
    return (VELOCITY._replace(guidance=guidance), TARGET_VELOCITY, *((SIGMA,) if error == "noise" else ()))


def error_of(readings: Mapping[Reading, Tensor], velocity: Reading, error: Error) -> Float[Tensor, "n t"]:
    """The mean squared error of a velocity, or of the noise that it predicts: noises differ by (1 - t) times as much."""
    found = mean_square(readings[velocity] - readings[TARGET_VELOCITY])
    return found if error == "velocity" else found * (1 - readings[SIGMA]) ** 2


Averaged = Literal["old", "ema"]


@dataclass(frozen=True)
class CenteredReward(OfTheGroup):
    """clip / beta (beta (r - mean r) - (g - mean g))^2, means over the samples of a prompt (CRD, arXiv:2603.14128).

    r = -(e - e_old) is what the change of the error says a sample is worth, e = mean (v - target)^2 / w with w = mean |v -
    target| without gradient, g = A / (2 clip) + 1/2 in [0, 1]. No gradient passes the means. Means are of one noised time, so
    times.shared must be on: at unlike times errors are not to be compared. At v = v_old the gradient is that of matching with
    2 clip (g - mean g) for advantage, and stays finite from there on. Code: Flow-Factory a0b2bc5, variant uniform.
    """

    beta: Positive = 1.0
    """How much the implicit reward r counts: the larger, the less the policy moves."""
    clip: Positive = 5.0
    """Advantages are clamped to [-clip, clip]."""
    normalized: bool = True
    """False: e = mean (v - target)^2."""
    old: Averaged = "ema"
    """The weights that r is measured from: an average of the policy that also samples, or (old) the policy itself."""

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (VELOCITY, VELOCITY._replace(model=self.old), TARGET_VELOCITY)

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> tuple[Float[Tensor, "n t"], dict[str, Tensor]]:
        live, old, target = (readings[reading] for reading in self.reads)
        mask, ids = batch.rollouts.action_mask, batch.rollouts.group_ids
        worth = actions_only(self._error(old - target) - self._error(live - target), mask)
        good = (batch.advantages / (2 * self.clip) + 0.5).clamp(0, 1).to(worth)
        gap = self.beta * less_group_mean(worth, mask, ids) - less_group_mean(good, mask, ids)
        return actions_only(self.clip / self.beta * gap**2, mask), {
            "policy/goodness": actions_only(good, mask),
            "policy/moved": actions_only(mean_square(live - old), mask).detach(),
        }

    def _error(self, gap: Float[Tensor, "n t ..."]) -> Float[Tensor, "n t"]:
        if not self.normalized:
            return mean_square(gap)
        size = gap.detach().double().abs().flatten(2).mean(2).clamp(min=1e-5)
        return mean_square(gap) / size.to(gap)


@dataclass(frozen=True)
class GroupPreference(OfTheGroup):
    """softplus(S) / beta per group, S = beta / G sum_i A_i (e_i - e_i ref), e = mean (v - target)^2 (DGPO, arXiv:2510.08425).

    A row gets sigmoid(S) A_i de_i, with S taken over its whole group. With r = exp(e_old - e), rows with r > 1 + clip and A > 0,
    or r < 1 - clip and A <= 0, keep their place in S and get no gradient. times.shared must be on. Advantages should add up to
    0 in a group, which clamped ones do not. Of two samples with A = 1 and -1 it is Diffusion-DPO (arXiv:2311.12908) over beta.
    G counts the rows that train, where the code (01ceb4b) has the configured group size, and the value printed is softplus, where
    the code's is of no function.
    """

    beta: Positive = 100.0
    """How soon a group that is ordered as rewards say stops teaching."""
    clip: Positive | None = 1e-2
    """How far the ratio r may go from 1 before a row stops; None: any way."""
    ref: Literal["ref", "ema"] = "ref"
    """The weights that errors are compared with; ema: TDM-R1's dynamic reference."""
    old: Averaged = "ema"
    """The weights that sampled: an average of the policy that also samples, or (old) the policy itself."""

    @property
    def reads(self) -> tuple[Reading, ...]:
        old = () if self.clip is None else (VELOCITY._replace(model=self.old),)
        return tuple(dict.fromkeys((VELOCITY, VELOCITY._replace(model=self.ref), TARGET_VELOCITY, *old)))

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> tuple[Float[Tensor, "n t"], dict[str, Tensor]]:
        mask, ids, advantages = batch.rollouts.action_mask, batch.rollouts.group_ids, batch.advantages
        target = readings[TARGET_VELOCITY]
        error = mean_square(readings[VELOCITY] - target)
        preferred = advantages * (error.detach() - mean_square(readings[VELOCITY._replace(model=self.ref)] - target))
        total = self.beta * group_mean(preferred, mask, ids).to(error)
        stopped = torch.zeros_like(mask)
        if self.clip is not None:
            ratio = (mean_square(readings[VELOCITY._replace(model=self.old)] - target) - error.detach()).exp()
            stopped = torch.where(advantages > 0, ratio > 1 + self.clip, ratio < 1 - self.clip) & mask
        # The value is softplus, the gradient that of the error.
        moving = torch.where(stopped, 0.0, error - error.detach())
        values = total.sigmoid() * advantages * moving + torch.nn.functional.softplus(total) / self.beta
        return actions_only(values, mask), {
            "policy/clip_frac": stopped.to(error),
            "policy/disorder": actions_only(total.sigmoid(), mask),
        }


@dataclass(frozen=True)
class DenoisingPreference(OfTheGroup, OfPairs):
    """-log sigmoid(-beta / 2 [(e_w - e_w ref) - (e_l - e_l ref)]) per pair: Diffusion-DPO (arXiv:2311.12908), of flows too.

    e is the mean squared error of a noised sample, w the row of the group with A > 0 and l that with A < 0, at one noise and one
    time: times.shared must be on. beta is for means over a latent's elements, not sums. Every action of a pair has the pair's
    loss: take the aggregation SequenceMean. Code: diffusers 58eb52c080 and flow_grpo ac4c86e.
    """

    beta: Positive = 2000.0
    """How much moving away from the reference costs: 5000 in diffusers, 2000 in Flow-Factory, 100 in flow_grpo."""
    error: Error = "velocity"
    """velocity: of flow models; noise: of models that predict noise, such as Stable Diffusion 1.5 and XL."""
    sft: NonNegative = 0.0
    """How much e_w is added."""
    guidance: Positive | None = 1.0
    """The guidance of all velocities: 1: none, as training scripts have it; None: the policy's."""

    @property
    def reads(self) -> tuple[Reading, ...]:
        live, *rest = error_reads(self.error, self.guidance)
        return (live, live._replace(model="ref"), *rest)

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> tuple[Float[Tensor, "n t"], dict[str, Tensor]]:
        mask, ids = batch.rollouts.action_mask, batch.rollouts.group_ids
        error, before = (error_of(readings, reading, self.error) for reading in self.reads[:2])
        sign, same = actions_only(batch.advantages.sign().to(error), mask), (ids[:, None] == ids).to(error)
        inside = -self.beta / 2 * (same @ (sign * (error - before)))
        loss = -torch.nn.functional.logsigmoid(inside)
        if self.sft:
            loss = loss + self.sft * (same @ (error * (sign > 0)))
        metrics = {"policy/margin": inside, "policy/preferred": (inside > 0).to(inside)}
        paired = sign != 0
        return actions_only(loss, paired), {name: actions_only(x.detach(), paired) for name, x in metrics.items()}


def group_mean(x: Float[Tensor, "n t"], mask: Bool[Tensor, "n t"], ids: Int[Tensor, " n"]) -> Float[Tensor, "n t"]:
    """The mean over the rows of every row's group that train, at every action by itself."""
    live, out = mask.any(1), torch.zeros_like(x)
    out[live] = within(ids[live], x[live], lambda rows: rows.mean(0).expand_as(rows))
    return out


def less_group_mean(x: Float[Tensor, "n t"], mask: Bool[Tensor, "n t"], ids: Int[Tensor, " n"]) -> Float[Tensor, "n t"]:
    """x less its mean over the rows of its group that train, at every action by itself; the mean has no gradient."""
    return x - group_mean(x.detach(), mask, ids)
