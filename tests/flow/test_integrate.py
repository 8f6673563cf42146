from dataclasses import replace

import pytest
import torch

from mmrl.flow.dynamics import DPM2, SA, Before, SolverStep
from mmrl.flow.integrate import gaussian_of, integrate
from mmrl.flow.layout import SeededNoise, lay_out
from mmrl.flow.path import data_of
from mmrl.flow.plan import StepPlan
from mmrl.flow.schedules import Branching, Forward, Full, RandomSubset, Tree, Window
from mmrl.flow.sigmas import LinearShift
from mmrl.flow.times import TimeSampler

SCHEDULES = {
    "full": (Full(5), 6),
    "dance": (Full(5, "dance_sde", 0.3, initial_noise="group", trained_per_row=2), 6),
    "cps": (Full(5, "cps", 0.8), 6),
    "wan": (Full(5, "wan"), 6),
    "window": (Window(6, 2, low=1, stride=0), 6),
    "flash": (Window(8, 2, low=1, stride=0, flash=0.5), 6),
    "subset": (RandomSubset(6, (1, 3), 2), 6),
    "tree": (Tree(5, (0, 2), 2), 8),
    "official_tree": (Tree(5, (0, 2), 2, nominal_density=True), 8),
    "branches": (Branching(5, 3), 24),
}


def run(schedule, count, storage=None, seeds=(3, 4)):
    plan, counts = schedule.at(0), (count, count)
    sigmas, layout = plan.sigmas(LinearShift(3.0)), lay_out(schedule.at(0), counts, seeds)
    found = integrate(plan, sigmas, layout, velocity_at(sigmas, count), SeededNoise(plan, counts, seeds, (2, 3)), storage)
    return plan, sigmas, found


def velocity_at(sigmas, count):
    """Another one for the second request."""
    return lambda x, i, rows: torch.tanh(x) - 0.2 * sigmas[i] + 0.1 * (rows >= count).float()[:, None, None]


@pytest.mark.parametrize("storage", [None, torch.bfloat16])
@pytest.mark.parametrize("name", SCHEDULES)
def test_evaluating_the_record_again_gives_the_recorded_log_probabilities(name, storage):
    schedule, count = SCHEDULES[name]
    plan, sigmas, found = run(schedule, count, storage)
    rows = torch.arange(len(found.layout))
    for i, step in enumerate(plan.steps):
        if not step.trained:
            assert not found.logprobs[:, i].any()
            continue
        x = found.state(i, rows)
        gaussian = gaussian_of(step, x, velocity_at(sigmas, len(rows) // 2)(x, i, rows), sigmas, i)
        drawn = found.layout.stochastic[:, i]
        again = gaussian.log_density(found.state(i + 1, rows))
        torch.testing.assert_close(again[drawn], found.logprobs[drawn, i], atol=1e-6, rtol=0)
        torch.testing.assert_close(gaussian.mean[drawn], found.mean(i, rows)[drawn], atol=1e-6, rtol=0)
    if storage is not None:
        assert all(torch.equal(state, state.to(storage).float()) for state in found.states)


def test_rows_share_exactly_the_latents_the_layout_says():
    _, _, found = run(Tree(5, (0, 2), 2), 4)
    rows = torch.arange(8)
    for column, ids in enumerate(found.layout.state_ids.T):
        x = found.state(column, rows)
        same = (x[:, None] == x[None]).flatten(2).all(2)
        assert torch.equal(same, ids[:, None] == ids)


def test_solvers_after_a_split_go_on_from_the_leafs_own_past():
    """A tree that splits at a noisy step and, between steps of DPM2, at one of SA: every leaf is its chain alone."""
    tree = Tree(5, (0, 2), 2).at(0)
    solvers = {1: DPM2(), 2: SA(0.8), 3: DPM2(), 4: DPM2()}
    steps = tuple(StepPlan(solvers[i], branch=step.branch) if i in solvers else step for i, step in enumerate(tree.steps))
    plan, counts, seeds = replace(tree, steps=steps), (8, 4), (3, 4)
    sigmas, noise = plan.sigmas(LinearShift(3.0)), SeededNoise(plan, counts, seeds, (2, 3))
    velocity = velocity_at(sigmas, 8)
    found = integrate(plan, sigmas, lay_out(plan, counts, seeds), velocity, noise)
    table = sigmas.tolist()
    for row in range(12):
        one, before = torch.tensor([row]), None
        for i in range(5):
            x = found.state(i, one)
            v = velocity(x, i, one)
            if i in solvers:
                owner = found.layout.state_ids[one, i + 1]
                way = SolverStep(x, v, table[i], table[i + 1], before, lambda c=i + 1, rows=owner: noise(c, rows))
                torch.testing.assert_close(found.state(i + 1, one), solvers[i].advance(way))
            before = Before(data_of(x, v, table[i]), table[i])
    assert len(found.samples.unique(dim=0)) == 12


def test_branches_end_without_noise_and_leave_the_same_trunk():
    schedule = Branching(5, 3)
    _, sigmas, found = run(schedule, 12)
    x = found.state(0, torch.tensor([0]))
    v = velocity_at(sigmas, 12)
    for i in range(4):
        rows = torch.arange(3 * i, 3 * i + 3)
        torch.testing.assert_close(found.state(i, rows), x.expand(3, -1, -1))
        x = x + (sigmas[i + 1] - sigmas[i]) * v(x, i, torch.tensor([0]))
    rows = torch.tensor([2])
    child = found.state(1, rows)
    for i in range(1, 5):
        child = child + (sigmas[i + 1] - sigmas[i]) * v(child, i, rows)
    torch.testing.assert_close(found.samples[2:3], child)


def test_split_noise_is_drawn_and_the_density_knows_it():
    tree = Tree(4, (1,), 2, split_noise=4.0)
    _, _, plain = run(Tree(4, (1,), 2, split_noise=1.0), 2)
    plan, sigmas, wide = run(tree, 2)
    _, _, official = run(Tree(4, (1,), 2, split_noise=4.0, nominal_density=True), 2)
    rows = torch.arange(4)
    torch.testing.assert_close(wide.state(2, rows), wide.mean(1, rows) + 4 * (plain.state(2, rows) - plain.mean(1, rows)))
    torch.testing.assert_close(official.state(2, rows), wide.state(2, rows))
    torch.testing.assert_close(wide.logprobs[:, 1], plain.logprobs[:, 1] - torch.tensor(4.0).log())
    gap = ((wide.state(2, rows) - wide.mean(1, rows)) ** 2).flatten(1).mean(1)
    std = plan.deviations(sigmas)[1] / 4
    torch.testing.assert_close(
        official.logprobs[:, 1] - wide.logprobs[:, 1], gap / (2 * std**2) * (1 / 16 - 1) + torch.tensor(4.0).log()
    )


def test_one_request_alone_gives_the_same_samples():
    schedule, count = SCHEDULES["full"]
    plan, sigmas, both = run(schedule, count)
    noise = SeededNoise(plan, (count,), (3,), (2, 3))
    alone = integrate(plan, sigmas, lay_out(plan, [count], [3]), velocity_at(sigmas, count), noise)
    assert torch.equal(alone.samples, both.samples[:count])
    assert torch.equal(alone.logprobs, both.logprobs[:count])


def test_sa_solver_is_deterministic_without_noise():
    _, _, still = run(Forward(6, "sa", 0.0, times=TimeSampler(count=6)), 4)
    _, _, dpm = run(Forward(6, "dpm2", times=TimeSampler(count=6)), 4)
    _, _, noisy = run(Forward(6, "sa", 0.8, times=TimeSampler(count=6)), 4)
    assert torch.equal(still.samples, dpm.samples) and not torch.equal(noisy.samples, dpm.samples)
    assert not noisy.logprobs.any()
