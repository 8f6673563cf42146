"""The record of sampling along a plan, from which its transitions can be evaluated again."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmrl.flow.integrate import Trajectory
from mmrl.flow.layout import generator_of
from mmrl.flow.path import add_noise, velocity_of
from mmrl.flow.plan import RolloutPlan
from mmrl.flow.sigmas import timesteps, truncated_timesteps
from mmrl.flow.surrogate import SurrogatePath
from mmrl.policies.flow.families.base import Condition
from mmrl.policies.flow.sizes import Size
from mmrl.runtime.tensors import pad_actions


@dataclass(frozen=True)
class Latents:
    """Latents of one or several shapes, numbered across all parts: `latents[places]` are some of one shape."""

    parts: tuple[Tensor, ...]
    """One for every plan of a trace."""

    def __len__(self) -> int:
        return sum(map(len, self.parts))

    def __getitem__(self, places: Tensor) -> Tensor:
        if len(self.parts) == 1:
            return self.parts[0][places]
        part = torch.searchsorted(self._ends, places.contiguous(), right=True)
        used = part.unique().tolist() or [0]
        shapes = {self.parts[i].shape[1:] for i in used}
        assert len(shapes) == 1, f"latents of the shapes {shapes} in one tensor"
        found = self.parts[used[0]].new_empty(*places.shape, *shapes.pop())
        for i in used:
            here = part == i
            found[here] = self.parts[i][places[here] - int(self._ends[i]) + len(self.parts[i])]
        return found

    @cached_property
    def _ends(self) -> Int[Tensor, " k"]:
        return torch.tensor([len(part) for part in self.parts]).cumsum(0)


@dataclass(frozen=True)
class NoisyLatents:
    """Latents of pictures of one size, with what the network is given for each."""

    x: Float[Tensor, "m ..."]
    timesteps: Float[Tensor, " m"]
    index: Int[Tensor, " m"]
    """Their places among the conditions."""
    size: Size

    def take(self, rows: Tensor | slice) -> "NoisyLatents":
        return NoisyLatents(self.x[rows], self.timesteps[rows], self.index[rows], self.size)


@dataclass(frozen=True)
class SigmaTable:
    """A plan with the size of the pictures it was followed for, and the sigmas it was followed at."""

    plan: RolloutPlan
    size: Size
    sigmas: Float[Tensor, " t1"]
    part_sizes: tuple[int, ...] = ()
    """Elements of each of several latents that are one vector; see Gaussian."""

    @property
    def timesteps(self) -> Float[Tensor, " t"]:
        """The times that the network is given at every step."""
        return truncated_timesteps(self.sigmas).float() if self.plan.truncated_timesteps else timesteps(self.sigmas)

    @cached_property
    def deviations(self) -> Float[Tensor, " t"]:
        return self.plan.deviations(self.sigmas)

    @cached_property
    def pulls(self) -> Float[Tensor, " t"]:
        return self.plan.pulls(self.sigmas)


@dataclass(frozen=True)
class FlowTrace:
    """Transitions of rows, all on the CPU. Latents are kept once, however many transitions touch them, by plan and size.

    An action is a step of the row's plan, or (forward plans) a noised copy of its finished sample.
    """

    conditions: tuple[Condition, ...]
    prompt_index: Int[Tensor, " n"]
    """Row -> its condition."""
    sigma_tables: tuple[SigmaTable, ...]
    course_index: Int[Tensor, " n"]
    steps: Int[Tensor, "n t"]
    """Which step of the plan; -1 where the row has no such action."""
    latents: Latents
    before: Int[Tensor, "n t"]
    """Index into `latents`: where the step starts; of a noised copy, the sample. Valid where the action may train."""
    after: Int[Tensor, "n t"]
    """Where it ends; of a noised copy, the noise; of a surrogate plan, the finished sample."""
    means: Int[Tensor, "n t"]
    """The mean of what it was drawn from."""
    sigma: Float[Tensor, "n t"]
    """t of the latent that the network sees."""
    timesteps: Float[Tensor, "n t"]
    """The time that the network is given for it, 1000 = noise."""
    teachers: Int[Tensor, " n"]
    """The place of the row's teacher in policy.teachers; -1: it has none."""
    through: Float[Tensor, "n t"]
    """Of surrogate plans, how much of the gradient of earlier steps passes into the step's latent; elsewhere 0."""

    def __len__(self) -> int:
        return len(self.prompt_index)

    def take(self, rows: Tensor, steps: slice = slice(None)) -> "FlowTrace":
        """Some rows and some of their actions; the latents stay where they are."""
        per_action = ("steps", "before", "after", "means", "sigma", "timesteps", "through")
        cut = {name: getattr(self, name)[rows][:, steps] for name in per_action}
        whole = {name: getattr(self, name)[rows] for name in ("prompt_index", "course_index", "teachers")}
        return replace(self, **whole, **cut)

    def by_size(self, rows: Int[Tensor, " m"]) -> list[tuple[Size, Int[Tensor, " k"]]]:
        """Every size of pictures, and the places of its rows in `rows`; without rows one size that has none."""
        sizes = sorted({sigma_table.size for sigma_table in self.sigma_tables})
        if len(sizes) == 1:
            return [(sizes[0], torch.arange(len(rows)))]
        number = torch.tensor([sizes.index(sigma_table.size) for sigma_table in self.sigma_tables])[self.course_index[rows]]
        found = [(size, (number == i).nonzero()[:, 0]) for i, size in enumerate(sizes)]
        # Of no rows, the latents are in the shape of the first plan's.
        return [(size, places) for size, places in found if len(places)] or [(self.sigma_tables[0].size, torch.arange(0))]

    def size_of(self, rows: Int[Tensor, " m"]) -> Size:
        """The size of the pictures of these rows, which have one; of no rows, that of the first plan."""
        return self.sigma_tables[int(self.course_index[rows[0]]) if len(rows) else 0].size

    def shape_at(self, size: Size) -> torch.Size:
        """The shape of a latent of a size."""
        parts = zip(self.sigma_tables, self.latents.parts, strict=True)
        return next(part.shape[1:] for sigma_table, part in parts if sigma_table.size == size)

    @property
    def is_forward(self) -> bool:
        """Are the actions noised copies?"""
        return any(sigma_table.plan.forward is not None for sigma_table in self.sigma_tables)

    @property
    def has_densities(self) -> bool:
        """Is there a step that trains, so that it makes sense to ask for log-probabilities?"""
        return any(step.trained for sigma_table in self.sigma_tables for step in sigma_table.plan.steps)

    @property
    def imitates(self) -> bool:
        """Are there steps whose velocities and means train, without a density?"""
        return any(sigma_table.plan.imitate for sigma_table in self.sigma_tables)

    @property
    def surrogate(self) -> SurrogatePath | None:
        """The path that carries a reward's gradient; None: none does."""
        return self.sigma_tables[0].plan.surrogate

    def inputs(self, rows: Int[Tensor, " m"], columns: Int[Tensor, " m"]) -> Float[Tensor, "m ..."]:
        """The latents that the network sees."""
        before = self.latents[self.before[rows, columns]]
        if not self.is_forward:
            return before
        return add_noise(before, self.latents[self.after[rows, columns]], self.sigma[rows, columns])

    def targets(self, rows: Int[Tensor, " m"], columns: Int[Tensor, " m"]) -> Float[Tensor, "m ..."]:
        """noise - data of noised copies."""
        return velocity_of(self.latents[self.before[rows, columns]], self.latents[self.after[rows, columns]])


def trace_of_steps(
    trajectory: Trajectory, sigma_table: SigmaTable, conditions: Sequence[Condition], prompt_index: Int[Tensor, " n"]
) -> FlowTrace:
    """The record of those transitions of a trajectory that may train."""
    layout, n, t = trajectory.layout, len(trajectory.layout), sigma_table.plan.num_steps
    kept: list[Tensor] = []
    count = 0

    def keep(x: Tensor, column: int, rows: Bool[Tensor, " n"]) -> Int[Tensor, " n"]:
        """Where the latents of these rows will be found, for every row."""
        nonlocal count
        place = layout.places(column)
        used = place[rows].unique()
        kept.append(x[used].cpu())
        found = torch.zeros(len(x), dtype=torch.long)
        found[used] = count + torch.arange(len(used))
        count += len(used)
        return found[place]

    trained = torch.nn.functional.pad(layout.trained, (1, 1))
    surrogate = sigma_table.plan.surrogate is not None
    trained[:, t + 1] |= surrogate
    at = [keep(trajectory.states[column], column, trained[:, column] | trained[:, column + 1]) for column in range(t + 1)]
    means = [keep(trajectory.means[i], i + 1, layout.trained[:, i]) for i in range(t)]
    return FlowTrace(
        conditions=tuple(conditions),
        prompt_index=prompt_index,
        sigma_tables=(sigma_table,),
        course_index=torch.zeros(n, dtype=torch.long),
        teachers=torch.full((n,), -1),
        steps=torch.arange(t).repeat(n, 1),
        latents=Latents((torch.cat(kept),)),
        before=torch.stack(at[:-1], 1),
        after=at[t][:, None].expand(n, t) if surrogate else torch.stack(at[1:], 1),
        means=torch.stack(means, 1),
        sigma=sigma_table.sigmas[:-1].repeat(n, 1),
        timesteps=sigma_table.timesteps.repeat(n, 1),
        through=torch.zeros(n, t),
    )


def trace_of_noised(
    samples: Float[Tensor, "n ..."],
    keys: Sequence[tuple[int, int]],
    sigma_table: SigmaTable,
    conditions: Sequence[Condition],
    prompt_index: Int[Tensor, " n"],
) -> FlowTrace:
    """Noised copies of finished samples; times and noise depend on `keys` alone, (seed of the request, sample), or the seed."""
    times = sigma_table.plan.forward
    assert times is not None
    n, k = len(samples), times.count
    generators = [generator_of(seed, 0 if times.shared else sample, "noised") for seed, sample in keys]
    sigma = torch.stack([times.draw(sigma_table.sigmas, generator) for generator in generators])
    noise = torch.stack([torch.randn(k, *samples.shape[1:], generator=generator) for generator in generators])
    rows = torch.arange(n)[:, None].expand(n, k)
    after = n + torch.arange(n * k).view(n, k)
    return FlowTrace(
        conditions=tuple(conditions),
        prompt_index=prompt_index,
        sigma_tables=(sigma_table,),
        course_index=torch.zeros(n, dtype=torch.long),
        teachers=torch.full((n,), -1),
        steps=torch.arange(k).repeat(n, 1),
        latents=Latents((torch.cat([samples.cpu(), noise.flatten(0, 1)]),)),
        before=rows,
        after=after,
        means=after,
        sigma=sigma,
        timesteps=sigma * 1000,
        through=torch.zeros_like(sigma),
    )


def join(traces: Sequence[FlowTrace]) -> FlowTrace:
    """The rows of all, in order; raises ValueError for noised copies together with steps."""
    if len({trace.is_forward for trace in traces}) > 1:
        raise ValueError("rollouts of a forward schedule cannot train together with those of a schedule of noisy steps")
    width = max(trace.steps.shape[1] for trace in traces)
    shifts = {"conditions": 0, "sigma_tables": 0, "latents": 0}
    moved: list[dict[str, Tensor]] = []
    for trace in traces:
        moved.append(
            {
                "prompt_index": trace.prompt_index + shifts["conditions"],
                "course_index": trace.course_index + shifts["sigma_tables"],
                "teachers": trace.teachers,
                "steps": pad_actions(trace.steps, width, -1.0),
                **{name: pad_actions(getattr(trace, name) + shifts["latents"], width) for name in ("before", "after", "means")},
                **{name: pad_actions(getattr(trace, name), width) for name in ("sigma", "timesteps", "through")},
            }
        )
        shifts = {name: shift + len(getattr(trace, name)) for name, shift in shifts.items()}
    return FlowTrace(
        conditions=tuple(condition for trace in traces for condition in trace.conditions),
        sigma_tables=tuple(sigma_table for trace in traces for sigma_table in trace.sigma_tables),
        latents=Latents(tuple(part for trace in traces for part in trace.latents.parts)),
        **{name: torch.cat([part[name] for part in moved]) for name in moved[0]},
    )
