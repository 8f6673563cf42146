"""Which samples of a rollout share which latents, where noise is drawn, and which transitions train."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmrl.flow.plan import RolloutPlan, StepPlan


@dataclass(frozen=True)
class Layout:
    """Rows are samples, in the order of the requests."""

    state_ids: Int[Tensor, "n t1"]
    """The first row with the same latent; column 0 is the initial noise, column i + 1 the latent after step i."""
    stochastic: Bool[Tensor, "n t"]
    """Where the row's step draws noise and has a density."""
    trained: Bool[Tensor, "n t"]
    """The action mask: stochastic, trained by the plan, and owned by the row (the first with that latent)."""

    def __len__(self) -> int:
        return len(self.state_ids)

    @property
    def node_ids(self) -> Int[Tensor, "n t"]:
        """Equal where rows share a transition."""
        return self.state_ids[:, 1:]

    def owners(self, column: int) -> Int[Tensor, " m"]:
        """The first row of every distinct latent of a column."""
        return (self.state_ids[:, column] == torch.arange(len(self))).nonzero()[:, 0]

    def places(self, column: int) -> Int[Tensor, " n"]:
        """Where every row's latent stands among the distinct ones of a column."""
        return torch.searchsorted(self.owners(column), self.state_ids[:, column].contiguous())


def lay_out(plan: RolloutPlan, counts: Sequence[int], seeds: Sequence[int]) -> Layout:
    """The layout of requests of `counts` samples; `seeds` choose a row's steps where plan.trained_per_row is set.

    Raises ValueError for a count that does not fill the plan's trees.
    """
    parts = [_one(plan, count, seed) for count, seed in zip(counts, seeds, strict=True)]
    offsets = [sum(counts[:i]) for i in range(len(counts))]
    return Layout(
        torch.cat([part.state_ids + offset for part, offset in zip(parts, offsets, strict=True)]),
        torch.cat([part.stochastic for part in parts]),
        torch.cat([part.trained for part in parts]),
    )


def leaves(plan: RolloutPlan) -> int:
    """Samples of one tree or trunk; the group size is a multiple of it."""
    if plan.shape == "tree":
        return math.prod(step.branch for step in plan.steps)
    if plan.shape == "branches":
        return sum(step.branch for step in plan.steps if step.stochastic)
    return 1


def _one(plan: RolloutPlan, count: int, seed: int) -> Layout:
    size = leaves(plan)
    if count % size:
        verb = "needs" if plan.shape == "tree" else "need"
        fewer = ", or branch at fewer steps: every split multiplies the samples" if size > count else ""
        raise ValueError(
            f"the schedule's {plan.shape} {verb} groups of a multiple of {size} samples, but algorithm.group_size is {count}: "
            f"set group_size = {size * max(1, round(count / size))}{fewer}"
        )
    noisy = torch.tensor([step.stochastic for step in plan.steps])
    if plan.noisy_at is not None:
        noisy = torch.arange(plan.num_steps) == _noisy_step(plan, seed)
        plan = replace(plan, steps=tuple(step if draws else StepPlan() for step, draws in zip(plan.steps, noisy, strict=True)))
    state_ids = {"chains": _chains, "tree": _tree, "branches": _branches}[plan.shape](plan, count)
    stochastic = noisy.expand(count, -1)
    if plan.shape == "branches":
        stochastic = stochastic & (torch.arange(plan.num_steps) == _branch_steps(plan, count)[:, None])
    owned = state_ids[:, 1:] == torch.arange(count)[:, None]
    trained = stochastic & owned & torch.tensor([step.trained for step in plan.steps])
    if plan.imitate:
        trained = (torch.arange(plan.num_steps) < plan.imitate).expand(count, -1)
    if plan.surrogate is not None:
        trained = torch.stack([active for active, _ in surrogate_steps(plan, [count], [seed])])
    if plan.trained_per_row is not None:
        trained = trained & _subsets(trained, plan.trained_per_row, seed)
    return Layout(state_ids, stochastic, trained)


def surrogate_steps(
    plan: RolloutPlan, counts: Sequence[int], seeds: Sequence[int]
) -> list[tuple[Bool[Tensor, " t"], Float[Tensor, " t"]]]:
    """The steps of every row that carry a reward's gradient, and how much of it passes into the input of each."""
    assert plan.surrogate is not None
    keys = [(seed, sample) for count, seed in zip(counts, seeds, strict=True) for sample in range(count)]
    return [plan.surrogate.choose(plan.num_steps, generator_of(seed, sample, "surrogate")) for seed, sample in keys]


def _noisy_step(plan: RolloutPlan, seed: int) -> int:
    """The one noisy step of the request with this seed."""
    if isinstance(plan.noisy_at, int):
        return plan.noisy_at
    pool = [i for i, step in enumerate(plan.steps) if step.stochastic]
    return pool[int(torch.randint(len(pool), (1,), generator=generator_of(seed, "noisy step")))]


def _chains(plan: RolloutPlan, count: int) -> Int[Tensor, "n t1"]:
    ids = torch.arange(count)[:, None].repeat(1, plan.num_steps + 1)
    if plan.share_prefix and plan.initial_noise == "group":
        noisy = [i for i, step in enumerate(plan.steps) if step.stochastic or step.dynamics.draws_noise]
        ids[:, : (noisy[0] if noisy else plan.num_steps) + 1] = 0
    return ids


def _tree(plan: RolloutPlan, count: int) -> Int[Tensor, "n t1"]:
    rows, below = torch.arange(count), leaves(plan)
    columns = [rows // below * below]
    for step in plan.steps:
        below //= step.branch
        columns.append(rows // below * below)
    return torch.stack(columns, 1)


def _branch_steps(plan: RolloutPlan, count: int) -> Int[Tensor, " n"]:
    """The step at which every row leaves the trunk."""
    of_a_trunk = [i for i, step in enumerate(plan.steps) if step.stochastic for _ in range(step.branch)]
    return torch.tensor(of_a_trunk).repeat(count // len(of_a_trunk))


def _branches(plan: RolloutPlan, count: int) -> Int[Tensor, "n t1"]:
    rows, leaves_at, size = torch.arange(count), _branch_steps(plan, count), leaves(plan)
    columns: list[Tensor] = []
    for column in range(plan.num_steps + 1):
        on_trunk = leaves_at >= column
        first = int((leaves_at[:size] >= column).nonzero()[0]) if bool(on_trunk.any()) else 0
        columns.append(torch.where(on_trunk, rows // size * size + first, rows))
    return torch.stack(columns, 1)


def _subsets(candidates: Bool[Tensor, "n t"], count: int, seed: int) -> Bool[Tensor, "n t"]:
    chosen = torch.zeros_like(candidates)
    for row, mask in enumerate(candidates):
        steps = mask.nonzero()[:, 0]
        chosen[row, steps[torch.randperm(len(steps), generator=generator_of(seed, row, "steps"))[:count]]] = True
    return chosen


def generator_of(*key: int | str) -> torch.Generator:
    """A generator on the CPU whose stream depends only on the key."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest, "big") >> 1)


Noise = Callable[[int, Int[Tensor, " m"]], Float[Tensor, "m ..."]]
"""Standard normal latents for column 0 (initial noise) or i + 1 (drawn at step i) and the rows that own them."""


@dataclass(frozen=True)
class SeededNoise:
    """Noise that depends on (request seed, sample, step) alone, so any sample can be drawn again by itself."""

    plan: RolloutPlan
    counts: tuple[int, ...]
    seeds: tuple[int, ...]
    """One per request."""
    shape: tuple[int, ...]
    """Of one latent."""
    samples: Sequence[Sequence[int]] = ()
    """Numbers of the samples of every request; (): all from 0 on."""

    def __call__(self, column: int, rows: Int[Tensor, " m"]) -> Float[Tensor, "m ..."]:
        samples = self.samples or [range(count) for count in self.counts]
        keys = [(seed, i) for seed, own in zip(self.seeds, samples, strict=True) for i in own]
        shared = column == 0 and self.plan.initial_noise == "group"
        chosen = [keys[int(row)] for row in rows]
        generators = [generator_of(seed, 0 if shared else sample, column) for seed, sample in chosen]
        return torch.stack([torch.randn(self.shape, generator=generator) for generator in generators])
