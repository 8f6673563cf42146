"""Surrogate paths: which denoising steps of a sample carry the gradient of a reward, and how they are joined.

All are x_0 + g, x_0 the sample as it was drawn and g a sum over steps of -c dt (v - stopgrad v): 0 in value, with the gradient of
velocities that are evaluated again at the sample's own latents. `through` says how much of g an evaluation sees in its input.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmrl.flow.path import like_batch
from mmrl.runtime.ranges import Count, NonNegative, PositiveShare, check_ranges

Velocities = Callable[[Int[Tensor, " m"], Int[Tensor, " m"], Float[Tensor, "m ..."] | None], Float[Tensor, "m ..."]]
"""Velocities at steps (row, column), with what is added to the latents there (None: nothing)."""


@dataclass(frozen=True)
class SurrogatePath:
    """The steps that carry the gradient: K = `steps` of T.

    draft: the last K, each seen by the next one's input (DRaFT-K, arXiv:2309.17400); K = T is full backpropagation.
    refl: one step, from which the sample is predicted at once, x - sigma v (ReFL, arXiv:2304.05977), a value of its own.
    sparse: K steps, step i with a chance in proportion to (i + 1)^bias, whose inputs carry nothing (FlowBP, arXiv:2606.11075).
    bridge: K steps in two intervals [k, j) and [j, T), k and j uniform; step j sees alpha of the first one's gradient (FlowBP).
    """

    kind: Literal["sparse", "bridge", "refl", "draft"] = "sparse"
    """Which of the four."""
    steps: Count = 4
    """K; of refl always 1."""
    bias: NonNegative = 1.0
    """How much later steps are preferred by sparse and bridge."""
    rescale: NonNegative = 0.0
    """c = 1 + rescale (sum of all dt / sum of active dt - 1), of sparse and bridge; FlowBP's Sparse has 0.5."""
    alpha: NonNegative = 0.5
    """Of bridge: how much of the gradient passes into step j."""
    tail: PositiveShare = 1.0
    """Of refl: the share of the steps, from the end, of which one is drawn; 11 of 25 in ReFL."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.kind == "bridge" and self.steps < 2:
            raise ValueError("SurrogatePath.steps is 1, and a bridge has a step on both sides: set steps = 5, or kind = 'sparse'")

    def choose(self, num_steps: int, generator: torch.Generator) -> tuple[Bool[Tensor, " t"], Float[Tensor, " t"]]:
        """The active steps of one sample, and how much of the gradient so far passes into the input of each."""
        chances = torch.arange(1, num_steps + 1).double() ** self.bias
        active, through = torch.zeros(num_steps, dtype=torch.bool), torch.zeros(num_steps)
        if self.kind == "draft":
            first = num_steps - self.steps
            active[first:], through[first + 1 :] = True, 1.0
        elif self.kind == "refl":
            first = tail_of(num_steps, self.tail)
            active[int(torch.randint(first, num_steps, (1,), generator=generator))] = True
        elif self.kind == "sparse":
            active[torch.multinomial(chances, self.steps, generator=generator)] = True
        else:
            j = int(torch.randint(1, num_steps, (1,), generator=generator))
            k = int(torch.randint(0, j, (1,), generator=generator))
            before, after = shares_of(self.steps, j - k, num_steps - j)
            active[k + torch.multinomial(chances[k:j], before, generator=generator)] = True
            if after > 1:
                active[j + 1 + torch.multinomial(chances[j + 1 :], after - 1, generator=generator)] = True
            active[j], through[j] = True, self.alpha
        return active, through

    def end(
        self,
        active: Bool[Tensor, "n t"],
        through: Float[Tensor, "n t"],
        dt: Float[Tensor, "n t"],
        samples: Float[Tensor, "n ..."],
        velocities: Velocities,
    ) -> Float[Tensor, "n ..."]:
        """x_0 + g of every row, for all kinds but refl; steps whose input carries nothing are evaluated together."""
        scale = 1 + self.rescale * (dt.sum(1) / (dt * active).sum(1).clamp(min=1e-12) - 1)
        if self.kind == "draft":
            scale = torch.ones_like(scale)
        carried = torch.zeros_like(samples)
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        waves = [active & (through == 0)]
        for column in map(int, (active & (through != 0)).any(0).nonzero()[:, 0]):
            waves.append(torch.zeros_like(active))
            waves[-1][:, column] = active[:, column] & (through[:, column] != 0)
        for wave in waves:
            rows, columns = wave.nonzero(as_tuple=True)
            if len(rows) == 0:
                continue
            seen = None
            if wave is not waves[0]:
                column = int(columns[0])
                before = [added * like_batch((at < column).to(added), added) for _, at, added in found]
                owners = torch.cat([of for of, _, _ in found]).to(samples.device)
                sums = torch.zeros_like(samples).index_add(0, owners, torch.cat(before))
                passed = sums[rows.to(samples.device)]
                seen = passed * like_batch(through[rows, columns].to(samples.device), passed)
            v = velocities(rows, columns, seen)
            weight = (scale[rows] * dt[rows, columns]).to(v.device)
            found.append((rows, columns.to(v.device), -like_batch(weight, v) * (v - v.detach())))
        for rows, _, added in found:
            carried = carried.index_add(0, rows.to(added.device), added)
        return samples + carried


def tail_of(num_steps: int, share: float) -> int:
    """The first step of the last share of them, rounded up."""
    return num_steps - ceil(num_steps * share - 1e-9)


def shares_of(budget: int, before: int, after: int) -> tuple[int, int]:
    """How many of `budget` steps lie in each of two intervals with that many steps: in proportion, at least one in each."""
    first = min(max(1, round(budget * before / (before + after))), before, budget - 1)
    return first, min(budget - first, after)
