"""Terms for samples that were noised again: they need no likelihood, only velocities and their targets."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.objectives.terms import ProportionalToAdvantage, Surrogate, actions_only, mean_square
from mmrl.core.readings import SIGMA, SOUND_ADVANTAGE, SOUND_FROM, TARGET_VELOCITY, VELOCITY
from mmrl.core.types import Batch, Reading, Scope
from mmrl.runtime.ranges import NonNegative, Positive

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
    power: NonNegative = 0.25
    """p, for ghuber."""
    clip: Positive = 1.0
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
