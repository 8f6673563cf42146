"""One step and a rollout of many: paths, dynamics, which rows share which latents and noises, what is drawn and recorded."""

import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.flow.dynamics import (
    CPS,
    DPM2,
    SA,
    Before,
    DanceSDE,
    DynamicsName,
    FlowSDE,
    Gaussian,
    Solver,
    SolverName,
    SolverStep,
    Stochastic,
    dynamics_of,
    euler,
    log_snr,
    multistep,
    name_of,
)
from mmrl.flow.integrate import gaussian_of, integrate
from mmrl.flow.layout import SeededNoise, lay_out, leaves
from mmrl.flow.path import add_noise, data_of, noise_of, velocity_of
from mmrl.flow.plan import RolloutPlan, StepPlan
from mmrl.flow.schedules import Branching, Forward, Full, OneStep, RandomSubset, Tree, Window
from mmrl.flow.sigmas import LinearShift, StaticShift
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


def test_sa_solver_is_deterministic_without_noise():
    _, _, still = run(Forward(6, "sa", 0.0, times=TimeSampler(count=6)), 4)
    _, _, dpm = run(Forward(6, "dpm2", times=TimeSampler(count=6)), 4)
    _, _, noisy = run(Forward(6, "sa", 0.8, times=TimeSampler(count=6)), 4)
    assert torch.equal(still.samples, dpm.samples) and not torch.equal(noisy.samples, dpm.samples)
    assert not noisy.logprobs.any()


def test_a_tree_by_hand():
    layout = lay_out(Tree(4, (0, 2), 2).at(0), [4], [0])
    assert layout.state_ids.tolist() == [[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 2, 2, 2, 2], [0, 2, 2, 3, 3]]
    assert layout.trained.int().tolist() == [[1, 1, 1, 1], [0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 1, 1]]
    assert layout.owners(2).tolist() == [0, 2]
    assert layout.places(2).tolist() == [0, 0, 1, 1]


def test_branches_by_hand():
    # two children at step 0 and two at step 1; the trunk goes on to step 1 only
    layout = lay_out(Branching(3, 2, at_steps=(0, 1)).at(0), [4], [0])
    assert layout.state_ids.tolist() == [[0, 0, 0, 0], [0, 1, 1, 1], [0, 2, 2, 2], [0, 2, 3, 3]]
    assert layout.stochastic.int().tolist() == [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0]]
    assert torch.equal(layout.trained, layout.stochastic)


def test_every_group_is_noisy_at_one_step_of_its_own():
    plan = OneStep(8, low=1, high=7, initial_noise="group", share_prefix=True).at(3)
    seeds = list(range(40))
    layout = lay_out(plan, [3] * 40, seeds)
    steps = layout.stochastic.int().argmax(1).reshape(40, 3)
    assert torch.equal(layout.stochastic, layout.trained) and layout.stochastic.sum(1).eq(1).all()
    assert (steps == steps[:, :1]).all() and set(steps[:, 0].tolist()) == set(range(1, 7))
    assert torch.equal(lay_out(plan, [2], [7]).stochastic[0], layout.stochastic[21]), "by the seed alone"
    shared = [len(layout.state_ids[:3, column].unique()) for column in range(9)]
    assert shared == [1] * (int(steps[0, 0]) + 1) + [3] * (8 - int(steps[0, 0]))
    whole = lay_out(OneStep(8, low=1, high=7, per="step").at(3), [2] * 40, seeds).stochastic
    assert (whole == whole[:1]).all()


def test_requests_share_nothing_with_each_other():
    layout = lay_out(Tree(3, (0,), 2).at(0), [2, 4], [0, 1])
    assert layout.state_ids[:, 0].tolist() == [0, 0, 2, 2, 4, 4]
    assert layout.state_ids[:, 3].tolist() == [0, 1, 2, 3, 4, 5]


def test_every_trained_transition_has_one_owner():
    for schedule in (Tree(6, (1, 3), 3), Branching(5, 4), Full(6), Tree(6, (0,), 2, first_half_only=True)):
        plan = schedule.at(0)
        layout = lay_out(plan, [2 * leaves(plan)], [0])
        owned = layout.state_ids[:, 1:][layout.trained]
        columns = layout.trained.nonzero()[:, 1]
        pairs = list(zip(owned.tolist(), columns.tolist(), strict=True))
        assert len(pairs) == len(set(pairs))
        assert layout.trained.any(1).all() or plan.shape == "tree"


def test_a_group_that_does_not_fill_the_tree_is_refused_with_a_size_that_does():
    with pytest.raises(ValueError, match=r"multiple of 16 samples, but algorithm.group_size is 12: set group_size = 16"):
        lay_out(Tree().at(0), [12], [0])


def test_every_row_trains_its_own_choice_of_steps():
    plan = Full(9, trained_per_row=3).at(0)
    layout = lay_out(plan, [20, 20], [1, 2])
    assert (layout.trained.sum(1) == 3).all() and not layout.trained[:, -1].any()
    assert len({tuple(row) for row in layout.trained.tolist()}) > 10
    assert torch.equal(layout.trained, lay_out(plan, [20, 20], [1, 2]).trained)
    assert torch.equal(layout.trained[20:], lay_out(plan, [20], [2]).trained)


def test_noise_depends_on_the_requests_seed_the_sample_and_the_step_alone():
    plan = Full(3).at(0)
    both, one = (SeededNoise(plan, counts, seeds, (2, 5)) for counts, seeds in (((2, 3), (7, 8)), ((3,), (8,))))
    torch.testing.assert_close(both(2, torch.tensor([3])), one(2, torch.tensor([1])))
    draws = torch.stack([both(column, torch.arange(5)) for column in range(3)])
    assert len(draws.flatten().unique()) == draws.numel()


def test_a_group_may_share_its_initial_noise_and_nothing_else():
    noise = SeededNoise(Full(3, initial_noise="group").at(0), (2, 2), (7, 8), (4,))
    first, second = noise(0, torch.arange(4)), noise(1, torch.arange(4))
    assert torch.equal(first[0], first[1]) and torch.equal(first[2], first[3])
    assert not torch.equal(first[0], first[2]) and not torch.equal(second[0], second[1])


def test_a_shared_prefix_ends_before_the_first_noise():
    layout = lay_out(Window(6, 2, low=2, stride=0, initial_noise="group", share_prefix=True).at(0), [3], [0])
    assert layout.state_ids[:, :3].unique().tolist() == [0]
    assert layout.state_ids[:, 3].tolist() == [0, 1, 2]
    assert layout.trained[:, 2:4].all()


def test_deviations_are_zero_where_nothing_trains_and_a_linear_schedule_leaves_noise_at_the_last_step():
    plan = RolloutPlan((StepPlan(DanceSDE(0.3), True, noise_scale=4.0), StepPlan(DanceSDE(0.3)), StepPlan()))
    sigmas = torch.tensor([1.0, 0.75, 0.5, 0.0])
    torch.testing.assert_close(plan.deviations(sigmas), torch.tensor([4 * 0.3 * 0.5, 0, 0]))
    linear = LinearShift(3.0).sigmas(LinearShift(3.0).grid(6)).double()
    assert FlowSDE(0.9).deviation(linear, torch.tensor([5]))[0] > 0.2
    assert CPS(0.9).deviation(linear, torch.tensor([5]))[0] == 0


SPACING = StaticShift(3.0)
SIGMAS = SPACING.sigmas(SPACING.grid(10)).double()
STEPS = torch.arange(10)
TIMES, SEEDS = st.floats(0.01, 0.99), st.integers(0, 1000)


def latents(n=10, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(n, 2, 3, dtype=torch.float64, generator=generator) for _ in range(2))


def col(x):
    return x[:, None, None]


@pytest.mark.parametrize("dynamics", [CPS(0.0), FlowSDE(0.0), DanceSDE(0.0)], ids=name_of)
def test_without_noise_every_step_is_euler(dynamics):
    x, v = latents()
    gaussian = dynamics.transition(x, v, SIGMAS, STEPS)
    steps = zip(x, v, SIGMAS[:-1].tolist(), SIGMAS[1:].tolist(), strict=True)
    expected = torch.stack([euler(one[None], its[None], now, then)[0] for one, its, now, then in steps])
    torch.testing.assert_close(gaussian.mean, expected)
    assert not gaussian.std.any()
    torch.testing.assert_close(gaussian.draw(torch.ones_like(x)), gaussian.mean)


def test_log_density_has_no_gradient_through_the_latent():
    mean = torch.zeros(1, 3, requires_grad=True)
    gaussian = Gaussian(mean, torch.ones(1))
    gaussian.log_density(gaussian.draw(torch.ones(1, 3))).sum().backward()
    torch.testing.assert_close(mean.grad, torch.full((1, 3), 1 / 3))


def test_arithmetic_is_never_in_half_precision():
    x, v = (z.bfloat16() for z in latents())
    gaussian = FlowSDE(0.7).transition(x, v, SIGMAS, STEPS)
    assert gaussian.mean.dtype == gaussian.std.dtype == gaussian.log_density(x).dtype == torch.float32
    exact = FlowSDE(0.7).transition(x.double(), v.double(), SIGMAS, STEPS)
    noise = torch.randn(10, 2, 3).bfloat16()
    torch.testing.assert_close(gaussian.draw(noise).double(), exact.draw(noise.double()), atol=1e-6, rtol=1e-6)


def follow(steps, order):
    """The end of dx / dsigma = x + 1 on a schedule of so many steps, whose exact flow is known; from sigma 0.9."""
    sigmas = [0.9 - 0.8 * i / steps for i in range(steps + 1)]
    x, before = torch.ones(1, 1, dtype=torch.float64), None
    for now, then in pairwise(sigmas):
        v = x + 1
        here = Before(data_of(x, v, now), now)
        x = multistep(x, v, now, then, before if order == 2 else None)
        before = here
    return float(x)


def test_multistep_is_of_second_order():
    exact = 2 * math.exp(-0.8) - 1
    for order in (1, 2):
        coarse, fine = (abs(follow(steps, order) - exact) for steps in (20, 40))
        assert coarse / fine == pytest.approx(2**order, rel=0.2)


def test_first_order_is_euler_and_the_last_step_is_the_predicted_data():
    x, v = latents(3)
    before = Before(x, 0.8)
    torch.testing.assert_close(multistep(x, v, 0.6, 0.4, None), euler(x, v, 0.6, 0.4))
    torch.testing.assert_close(multistep(x, v, 1.0, 0.4, before), euler(x, v, 1.0, 0.4))
    torch.testing.assert_close(multistep(x, v, 0.6, 0.0, before), x - 0.6 * v)


@pytest.mark.parametrize("tau", [0.0, 0.4, 1.0])
def test_first_order_with_noise_is_sa_solvers_predictor(tau):
    from diffusers.schedulers.scheduling_sasolver import SASolverScheduler

    x, v, noise = (torch.randn(2, 3) for _ in range(3))
    scheduler = SASolverScheduler(use_flow_sigmas=True, prediction_type="flow_prediction")
    scheduler.set_timesteps(5)
    scheduler._step_index = 2
    now, then = scheduler.sigmas[2].item(), scheduler.sigmas[3].item()
    scheduler.model_outputs = [None, x - now * v]
    expected = scheduler.stochastic_adams_bashforth_update(
        model_output=x - now * v, sample=x, noise=noise, order=1, tau=torch.tensor(tau)
    )
    torch.testing.assert_close(multistep(x, v, now, then, None, tau, noise), expected, atol=2e-6, rtol=2e-6)


def test_sa_solver_is_noisy_in_the_middle_only():
    assert [SA(0.4).tau(sigma) for sigma in (1.0, 0.95, 0.9, 0.5, 0.3, 0.29)] == [0.0, 0.0, 0.4, 0.4, 0.4, 0.0]
    assert log_snr(0.5) == 0.0


@pytest.mark.parametrize("name", get_args(DynamicsName))
def test_every_word_of_a_config_names_a_part_of_its_own(name):
    part = dynamics_of(name, 0.5)
    assert name_of(part) == name
    assert isinstance(part, Solver) == (name in get_args(SolverName)) != isinstance(part, Stochastic)
    assert part.draws_noise == (name not in ("ode", "dpm2"))
    assert dynamics_of(name, 0.0).draws_noise == (name == "wan")


@dataclass(frozen=True)
class Half:
    """x' = mean + S noise around half the Euler step: a user's own."""

    draws_noise = True
    draws_at_end = True

    def deviation(self, sigmas, index):
        return sigmas[index] / 2

    def transition(self, x, v, sigmas, index):
        return Gaussian(x + col((sigmas[index + 1] - sigmas[index]) / 2) * v, self.deviation(sigmas, index))


def test_a_schedule_may_bring_dynamics_of_its_own():
    plan = RolloutPlan((StepPlan(Half(), trained=True), StepPlan()))
    x, v = (z[:4] for z in latents())
    sigmas, noise = torch.tensor([1.0, 0.5, 0.0]).double(), torch.ones_like(x)
    found = integrate(plan, sigmas, lay_out(plan, [4], [0]), lambda x, i, rows: v, lambda column, rows: noise if column else x)
    torch.testing.assert_close(found.states[1], x - v / 4 + 0.5)
    torch.testing.assert_close(plan.deviations(sigmas), torch.tensor([0.5, 0.0]))
    assert name_of(Half()) == "Half"


@settings(deadline=None, max_examples=30, derandomize=True)
@given(SEEDS, st.lists(TIMES, min_size=3, max_size=3))
def test_data_noise_and_velocity_come_back(seed, numbers):
    data, noise = latents(3, seed)
    t = torch.tensor(numbers, dtype=torch.float64)
    x, v = add_noise(data, noise, t), velocity_of(data, noise)
    torch.testing.assert_close(data_of(x, v, t), data)
    torch.testing.assert_close(noise_of(x, v, t), noise)


@settings(deadline=None, max_examples=30, derandomize=True)
@given(SEEDS, TIMES, TIMES)
def test_moving_along_the_velocity_stays_on_the_path(seed, t, later):
    data, noise = latents(3, seed)
    moved = add_noise(data, noise, t) + (later - t) * velocity_of(data, noise)
    torch.testing.assert_close(moved, add_noise(data, noise, later))
