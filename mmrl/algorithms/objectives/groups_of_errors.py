"""Terms that compare how well noised samples of one prompt are predicted, all at the same noise and times."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmrl.algorithms.objectives.forward import Error, error_of, error_reads
from mmrl.algorithms.objectives.terms import OfTheGroup, actions_only, mean_square
from mmrl.core.readings import TARGET_VELOCITY, VELOCITY
from mmrl.core.types import Batch, Reading
from mmrl.runtime.ranges import NonNegative, Positive
from mmrl.runtime.tensors import within

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
class DenoisingPreference(OfTheGroup):
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
