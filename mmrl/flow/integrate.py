"""From noise to samples along a plan: one loop for every schedule, each shared latent evaluated once."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmrl.flow.dynamics import ODE, Before, Gaussian, Solver, SolverStep, Stochastic
from mmrl.flow.layout import Layout, Noise
from mmrl.flow.path import data_of
from mmrl.flow.plan import RolloutPlan, StepPlan
from mmrl.runtime.tensors import to_device

Velocity = Callable[[Float[Tensor, "m ..."], int, Int[Tensor, " m"]], Float[Tensor, "m ..."]]
"""The (guided) velocity at latents x before step i; `rows` names for each latent one row that has it (its prompt)."""


@dataclass(frozen=True)
class Trajectory:
    """The record of an integrated plan. Column c of the states is the latent before step c; the last are the samples."""

    layout: Layout
    states: tuple[Tensor, ...]
    """The distinct latents (m, ...) of every column."""
    means: tuple[Tensor, ...]
    """Means of what the latents of column i + 1 were drawn from; the latents themselves where nothing was drawn."""
    logprobs: Float[Tensor, "n t"]
    """0 at steps that do not train."""
    predictions: tuple[Tensor, ...] = ()
    """The data that every step's input predicts, the latents of column i + 1; empty unless the plan asks for them."""

    def state(self, column: int, rows: Int[Tensor, " k"]) -> Float[Tensor, "k ..."]:
        """Latents of these rows."""
        return self._rows_of(self.states[column], column, rows)

    def mean(self, step: int, rows: Int[Tensor, " k"]) -> Float[Tensor, "k ..."]:
        """Means of the transitions of these rows."""
        return self._rows_of(self.means[step], step + 1, rows)

    def prediction(self, column: int, rows: Int[Tensor, " k"]) -> Float[Tensor, "k ..."]:
        """The data that the latents of a column predict, for these rows."""
        return self._rows_of(self.predictions[column], column + 1, rows)

    @property
    def samples(self) -> Float[Tensor, "n ..."]:
        """The final latents of all rows."""
        return self.state(len(self.states) - 1, torch.arange(len(self.layout)))

    def _rows_of(self, x: Tensor, column: int, rows: Tensor) -> Tensor:
        return x[self.layout.places(column)[rows].to(x.device)]


def gaussian_of(
    step: StepPlan,
    x: Float[Tensor, "m ..."],
    v: Float[Tensor, "m ..."],
    sigmas: Float[Tensor, " t1"],
    index: int | Int[Tensor, " m"],
    part_sizes: tuple[int, ...] = (),
) -> Gaussian:
    """The density of a stochastic step at latents x with velocity v: what re-evaluation needs.

    `index` is the place of the step in the table, one per latent or one for all; `part_sizes` see Gaussian.

    Raises:
        ValueError: the step belongs to a solver, which has no density.
    """
    if not isinstance(step.dynamics, Stochastic):
        raise ValueError("a step without noise has no log-probability: train stochastic steps only")
    at = index if isinstance(index, Tensor) else torch.full((len(x),), index)
    plain = step.dynamics.transition(x, v, to_device(sigmas, x.device), to_device(at, x.device))
    return Gaussian(plain.mean, plain.std * step.density_scale, plain.normalized, part_sizes)


def integrate(
    plan: RolloutPlan,
    sigmas: Float[Tensor, " t1"],
    layout: Layout,
    velocity: Velocity,
    noise: Noise,
    storage: torch.dtype | None = None,
    keep: Callable[[Tensor], Tensor] = lambda x: x,
    part_sizes: tuple[int, ...] = (),
) -> Trajectory:
    """Sample all rows of the layout, on the device of noise and velocities, without waiting for it on the way.

    `keep` moves the latents that the trajectory holds, for example to the host's memory.
    `storage` is the dtype latents will be kept in: they are rounded to it before their log-probabilities are taken, so that
    evaluating them again from the record gives the same numbers. `part_sizes` see Gaussian.
    """
    x = _round_to(noise(0, layout.owners(0)), storage)
    states, means, logprobs, predictions = [keep(x)], list[Tensor](), list[Tensor](), list[Tensor]()
    before: Before | None = None
    for i, step in enumerate(plan.steps):
        v = velocity(x, i, layout.owners(i)).to(x)
        if i == plan.base_from:
            before = None  # predicted by other weights
        children = layout.owners(i + 1)
        parents = to_device(layout.places(i)[children], x.device)
        x, v = x[parents], v[parents]
        if before is not None:
            before = Before(before.data[parents], before.sigma)
        here = Before(data_of(x, v, float(sigmas[i])), float(sigmas[i]))
        if plan.previews:
            predictions.append(keep(here.data))
        way = SolverStep(x, v, here.sigma, float(sigmas[i + 1]), before, lambda c=i + 1, rows=children: noise(c, rows))
        # Rows that a stochastic step skips take an Euler step.
        solver = step.dynamics if isinstance(step.dynamics, Solver) else ODE()
        x_next = _round_to(solver.advance(way), storage)
        mean, lp = x_next, torch.zeros(len(x), dtype=x.dtype, device=x.device)
        drawn = layout.stochastic[children, i].nonzero()[:, 0]
        if len(drawn):
            noisy = to_device(drawn, x.device)
            x_next, mean = x_next.clone(), mean.clone()
            gaussian = gaussian_of(step, x[noisy], v[noisy], sigmas, i, part_sizes)
            fresh = noise(i + 1, children[drawn]).to(x) * (step.noise_scale / step.density_scale)
            mean[noisy] = gaussian.mean
            x_next[noisy] = _round_to(gaussian.draw(fresh), storage)
            if step.trained:
                lp[noisy] = gaussian.log_density(x_next[noisy])
        before, x = here, x_next
        states.append(keep(x))
        means.append(states[-1] if mean is x else keep(mean))
        logprobs.append(lp[to_device(layout.places(i + 1), x.device)])
    return Trajectory(layout, tuple(states), tuple(means), torch.stack(logprobs, 1), tuple(predictions))


def _round_to(x: Tensor, storage: torch.dtype | None) -> Tensor:
    return x if storage is None else x.to(storage).to(x.dtype)
