"""Times at which forward-process objectives (DiffusionNFT, AWM) noise a finished sample again."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmrl.flow.sigmas import shift_by
from mmrl.runtime.ranges import Count, Positive, PositiveShare, With, check_ranges

TimeKind = Literal["rollout", "uniform", "logit_normal", "discrete", "discrete_with_init", "discrete_wo_init"]


@dataclass(frozen=True)
class TimeSampler:
    """`count` times per sample, one from each of `count` strata.

    rollout: a random choice among the rollout's own sigmas (DiffusionNFT).
    discrete: the rollout's sigmas, one per stratum of their indices; _wo_init never takes the first, _with_init always does
    (AWM). The index at the end of the range is never drawn, as in Flow-Factory.
    uniform, logit_normal: t = 1 - f, with f stratified in [0, reach], and f or its logistic shifted by `shift`. As in
    Flow-Factory a shift above 1 then moves times towards the data; official AWM and SD3 shift the noise level instead.
    """

    kind: TimeKind = "rollout"
    """Where the times come from: one of the ways above."""
    count: Count = 9
    """Times of every sample."""
    shift: Annotated[Positive, With("kind", "uniform", "logit_normal")] = 1.0
    """Shift of uniform and logit_normal times; 1 = none."""
    reach: PositiveShare = 1.0
    """The part of the way from noise to data that times are taken from: discrete ones have sigma >= 1 - reach."""
    shared: bool = False
    """The samples of a prompt are noised with the same noise at the same times, so that their errors can be compared in pairs
    (DPO of image generators, arXiv:2311.12908)."""

    __post_init__ = check_ranges

    def draw(self, sigmas: Float[Tensor, " t1"], generator: torch.Generator) -> Float[Tensor, " k"]:
        """Times of one sample, in random order; raises ValueError if `count` exceeds the rollout's steps."""
        if self.kind == "rollout":
            if self.count > len(sigmas) - 1:
                raise ValueError(f"TimeSampler.count is {self.count}, but the rollout has {len(sigmas) - 1} steps: set it lower")
            return sigmas[torch.randperm(len(sigmas) - 1, generator=generator)[: self.count]]
        uniform = torch.rand(self.count, generator=generator)
        return self.strata(sigmas, uniform)[torch.randperm(self.count, generator=generator)]

    def strata(self, sigmas: Float[Tensor, " t1"], uniform: Float[Tensor, " k"]) -> Float[Tensor, " k"]:
        """Times for given places inside the strata, uniform in [0, 1); from noise to data. Not for kind `rollout`."""
        f = (torch.arange(self.count).to(uniform) + uniform) / self.count
        if self.kind == "uniform":
            return 1 - shift_by(self.shift, self.reach * f)
        if self.kind == "logit_normal":
            raw = torch.sigmoid(torch.distributions.Normal(0.0, 1.0).icdf(f.clamp(1e-7, 1 - 1e-7)))
            return 1 - self.reach * shift_by(self.shift, raw).clamp(0.01, 1 - 1e-6)
        last = int((sigmas[:-1] >= 1 - self.reach - 1e-6).nonzero()[-1])
        if self.kind == "discrete_with_init":
            return sigmas[torch.cat([torch.zeros(1, dtype=torch.long), indices(1, last, uniform[: self.count - 1])])]
        return sigmas[indices(int(self.kind == "discrete_wo_init"), last, uniform)]


def indices(first: int, last: int, uniform: Float[Tensor, " k"]) -> Int[Tensor, " k"]:
    """One index per stratum of [first, last), strata having whole bounds."""
    bounds = torch.linspace(first, last, len(uniform) + 1).long()
    return bounds[:-1] + (uniform * (bounds[1:] - bounds[:-1])).long()
