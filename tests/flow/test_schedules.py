"""Schedules: which steps are noisy and train, at which noise levels and times, what that costs, and what is refused."""

import inspect
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.pipelines.flux2.pipeline_flux2 import compute_empirical_mu

from mmrl.flow.dynamics import CPS, DPM2, ODE, FlowSDE, name_of
from mmrl.flow.layout import generator_of
from mmrl.flow.plan import RolloutPlan, StepPlan, evaluation_plan
from mmrl.flow.schedules import Branching, Full, OneStep, RandomSubset, Tree, Window
from mmrl.flow.sigmas import (
    CLASSES,
    KNOWN,
    DynamicShift,
    EmpiricalShift,
    FlowSigmas,
    LinearShift,
    StaticShift,
    spacing_of,
    table_of,
)
from mmrl.flow.times import TimeSampler
from tests.support.flow_costs import forwards
from tests.support.refused import refused

MOVES = ["progressive", "random", "decay", "exp_decay"]


def trained(plan):
    return [i for i, step in enumerate(plan.steps) if step.trained]


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("stride", [1, 3, 4])
def test_windows_are_full_and_cover_the_range(move, stride):
    schedule = Window(12, 4, move=move, stride=stride, dwell=2, decay=(3, 1), low=1, high=10)
    windows = [schedule.window(step) for step in range(200)]
    assert all(len(window) == 4 and window[0] >= 1 and window[-1] < 10 for window in windows)
    assert {i for window in windows for i in window} == set(range(1, 10))


@pytest.mark.parametrize("move", MOVES)
def test_windows_depend_on_seed_and_step_alone(move):
    make = lambda seed: Window(20, 3, move=move, seed=seed)  # noqa: E731 - two schedules that differ in one number
    order = [37, 2, 150, 2, 37]
    assert [make(1).window(step) for step in order] == [Window(20, 3, move=move, seed=1).window(step) for step in order]
    if move == "random":
        assert [make(1).window(s) for s in range(20)] != [make(2).window(s) for s in range(20)]


def test_progressive_window_by_hand():
    schedule = Window(8, 3, dwell=2, stride=2)
    starts = [schedule.window(step)[0] for step in range(10)]
    assert starts == [0, 0, 2, 2, 4, 4, 0, 0, 2, 2]
    stays = Window(8, 3, dwell=2, stride=3, roll_back=False)
    assert [stays.window(step)[0] for step in range(8)] == [0, 0, 3, 3, 4, 4, 4, 4]
    assert [Window(8, 3, dwell=2, stride=0, low=1).window(step)[0] for step in range(5)] == [1] * 5


def test_the_official_empty_window_is_refused_with_the_remedy():
    schedule = Window(25, 4, high=23, overrun=True)
    assert schedule.window(574) == [22] and schedule.window(575) == []
    refused(r"step 575 .*overrun = false", schedule.at, 575)


def test_full_trains_the_last_step_on_request_alone_and_may_train_the_first_ones():
    last: Any
    for last, kind in (("ode", "ode"), ("noisy", "cps")):
        plan = Full(3, "cps", 0.8, last=last).at(5)
        assert [name_of(step.dynamics) for step in plan.steps] == ["cps", "cps", kind] and trained(plan) == [0, 1], last
    assert trained(Full(4, last="trained").at(0)) == [0, 1, 2, 3]
    assert trained(Full(4, trained_steps=2).at(0)) == [0, 1]


def test_plans_that_train_nothing_have_guidance_and_weights_of_their_own():
    assert evaluation_plan(3, guidance=1.0).guidance == 1.0
    assert [evaluation_plan(50, base_from=share).base_from for share in (0.6, 0.001, 1.0)] == [30, 1, 50]


def test_random_subset_is_the_same_everywhere_and_leaves_the_rest_deterministic():
    schedule = RandomSubset(8, (1, 2, 3, 4), 2)
    plan = schedule.at(3)
    assert plan == RandomSubset(8, (1, 2, 3, 4), 2).at(3)
    assert trained(plan) == sorted(schedule.choice(3))
    assert [step.dynamics for i, step in enumerate(plan.steps) if i not in schedule.choice(3)] == [ODE()] * 6
    assert {tuple(sorted(schedule.choice(step))) for step in range(60)} == {(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)}


def test_costs_are_those_of_the_methods():
    flash = [forwards(Window(25, 4, low=left, stride=0, high=23, flash=0.4).at(0), 1).rollout for left in range(15)]
    assert flash == [11, 12, 13, 13, 14, 14, 15, 16, 16, 17, 17, 18, 19, 19, 20]
    assert forwards(Window(25, 4, stride=0, flash=0.2).at(0), 1).rollout == 7
    assert forwards(Window(25, 4, low=18, stride=0, high=23, flash=0.4).at(0), 1).rollout == 23
    prefix = Window(10, 2, low=4, stride=0, initial_noise="group", share_prefix=True)
    assert forwards(prefix.at(0), 8).rollout == 5 + 8 * 5
    assert forwards(evaluation_plan(40), 1).rollout == 40 and forwards(evaluation_plan(40), 1).update == 0


def test_tree_prunes_and_clamps():
    tree = Tree(8, (0, 3, 99), pruned_depths=(6, 7), slide_every=10, stop_depth=4)
    assert tree.splits == (0, 3, 7) and tree.group_size == 8
    assert [tree.depths_to_prune(step) for step in (0, 10, 20, 500)] == [[6, 7], [5, 6], [4, 5], [4, 5]]
    assert trained(tree.at(0)) == [0, 1, 2, 3, 4, 7]
    assert trained(Tree(8, (0, 3), first_half_only=True).at(0)) == [0, 1, 2, 3, 4, 5]
    assert not Tree(8, (0, 3), last="ode").at(0).steps[-1].stochastic


def test_a_mixed_tree_is_noisy_at_splits_and_in_its_window():
    tree = Tree(8, (0, 3), window=(1, 2), window_every=10, last="ode")
    noisy = lambda step: [i for i, one in enumerate(tree.at(step).steps) if one.stochastic]  # noqa: E731 - read below
    assert [noisy(step) for step in (0, 9, 10, 20, 49, 50, 60)] == [
        [0, 1, 2, 3],
        [0, 1, 2, 3],
        [0, 2, 3],
        [0, 3, 4],
        [0, 3, 5, 6],
        [0, 3, 6],
        [0, 1, 2, 3],
    ]
    assert trained(tree.at(10)) == noisy(10)
    assert (forwards(tree.at(0), 4).rollout, forwards(tree.at(0), 4).update) == (1 + 3 * 2 + 4 * 4, 2 + 2 + 2 + 4)


TRAINED = (StepPlan(CPS(0.5), trained=True), StepPlan())
NONSENSE = [
    (partial(Window, 6, 5, low=1), "5 steps do not fit"),
    (partial(StepPlan, DPM2(), trained=True), "no log-probability"),
    (partial(StepPlan, FlowSDE(0.0), trained=True), "level 0"),
    (partial(Full(3, "cps", 0.8, last="trained").at, 0), "last cps step"),
    (partial(RolloutPlan, TRAINED, forward=TimeSampler()), "forward plan"),
    (partial(RolloutPlan, TRAINED, guidance=2.0), r"guidance 2\.0 of its own, .*set policy\.guidance"),
    (partial(RolloutPlan, TRAINED, base_from=1), r"from step 1 on, .*evaluation\.base_from"),
    (partial(RolloutPlan, (StepPlan(),), forward=TimeSampler(), guidance=1.0), r"set policy\.guidance"),
    (partial(OneStep, 6, low=4, high=4), "no step from low = 4 up to high = 4 of 6"),
    (partial(OneStep, 6, high=4, cap=0.45), r"cap is 0.45: it counts with dynamics = 'flow_sde' alone, and dynamics is 'wan'"),
    (partial(RolloutPlan, (replace(TRAINED[0], branch=2), StepPlan()), shape="tree", noisy_at=0), "whole chains"),
    (partial(RandomSubset, 4, (0, 1, 2, 3), 1), "RandomSubset"),
    (partial(Tree, 8, (0, 3), window=(6, 4)), r"Tree.window is \(6, 4\): 4 steps from step 6 on do not fit into 8 steps"),
    (partial(Full, 4, trained_steps=5), "Full.trained_steps is 5, but 3 of the 4 steps may train"),
    (partial(Full, 1), "num_steps is 1"),
    (partial(Branching, 6, at_steps=()), "at_steps"),
    (partial(Branching, 6, 1), "branches is 1: it must be 2 to"),
]


@pytest.mark.parametrize(("make", "said"), NONSENSE, ids=[said for _, said in NONSENSE])
def test_plans_that_mean_nothing_are_refused(make, said):
    refused(said, make)


DDIMScheduler, DPMSolverMultistepScheduler, FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler = (
    getattr(import_module("diffusers"), name)
    for name in ("DDIMScheduler", "DPMSolverMultistepScheduler", "FlowMatchEulerDiscreteScheduler", "UniPCMultistepScheduler")
)


def of(spacing, steps, tokens=None):
    return spacing.sigmas(spacing.grid(steps), tokens)


@pytest.mark.parametrize(("steps", "terminal"), [(4, None), (10, None), (28, None), (10, 0.1)])
def test_static_shift_is_diffusers(steps, terminal):
    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0, shift_terminal=terminal)
    scheduler.set_timesteps(steps)
    spacing = spacing_of(dict(scheduler.config))
    assert spacing == StaticShift(3.0, terminal=terminal)
    torch.testing.assert_close(of(spacing, steps), scheduler.sigmas, atol=1e-7, rtol=0)


@pytest.mark.parametrize("terminal", [None, 0.02])
def test_dynamic_shift_is_diffusers(terminal):
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9, shift_terminal=terminal)
    spacing = spacing_of(dict(scheduler.config))
    assert isinstance(spacing, DynamicShift)
    scheduler.set_timesteps(sigmas=np.linspace(1, 1 / 8, 8).tolist(), mu=spacing.mu(1000))
    torch.testing.assert_close(of(spacing, 8, 1000), scheduler.sigmas, atol=2e-7, rtol=0)


def test_a_dynamic_shift_needs_the_size_of_the_picture_and_two_steps_for_two_sigmas():
    refused("image tokens", of, DynamicShift(), 4)
    spacing = DynamicShift(terminal=0.02)
    refused("take 2 steps or more", spacing.sigmas, spacing.grid(1), 1024)
    assert spacing.sigmas(spacing.grid(2), 1024).isfinite().all()


def test_a_scheduler_with_other_sigmas_is_refused():
    others = ["use_karras_sigmas", "invert_sigmas", "stochastic_sampling", "a_key_of_tomorrow"]
    for name in others:
        refused(f"scheduler has {name} = True, .* set schedule.spacing", spacing_of, {"shift": 3.0, name: True})
    flow = {"use_flow_sigmas": True, "flow_shift": 3.0, "use_dynamic_shifting": True, "shift_terminal": 0.1}
    refused(r"use_dynamic_shifting = True, shift_terminal = 0\.1", spacing_of, flow)
    with pytest.raises(ValueError, match="_class_name = FlowMatchHeunDiscreteScheduler"):
        spacing_of({"shift": 3.0, "_class_name": "FlowMatchHeunDiscreteScheduler"})


def test_every_key_of_the_schedulers_that_are_read_is_known():
    """A key that diffusers adds fails here: it must be honoured, or found to be without effect, or refused."""
    refused = {"invert_sigmas", "use_karras_sigmas", "use_exponential_sigmas", "use_beta_sigmas", "use_lu_lambdas"}
    refused |= {"stochastic_sampling", "thresholding", "rescale_betas_zero_snr"}
    for name in CLASSES:
        keys = set(inspect.signature(getattr(import_module("diffusers"), name).__init__).parameters) - {"self", "args", "kwargs"}
        assert keys <= KNOWN | refused, f"{name}: {sorted(keys - KNOWN - refused)}"


@pytest.mark.parametrize("shift", [1.0, 3.0, 6.0])
@pytest.mark.parametrize(("listed", "dtype"), [("float32", torch.float32), ("float64", torch.float64)])
def test_a_listed_even_grid_is_diffusers_bit_for_bit(shift: float, listed: Any, dtype: torch.dtype):
    scheduler, spacing = FlowMatchEulerDiscreteScheduler(shift=shift), LinearShift(shift, listed)
    for steps in range(1, 61):
        scheduler.set_timesteps(sigmas=torch.linspace(1.0, 1 / steps, steps, dtype=dtype).tolist())
        assert torch.equal(of(spacing, steps), scheduler.sigmas)


def test_respacing_divides_the_rest_of_the_grid():
    plan = RolloutPlan((StepPlan(),) * 3, LinearShift(1.0), grid_steps=5, respaced_from=1)
    torch.testing.assert_close(plan.sigmas(StaticShift()), torch.tensor([1, 0.8, 0.4, 0]))


@pytest.mark.parametrize("steps", [4, 28])
@pytest.mark.parametrize("tokens", [64, 4096, 4301])
def test_flux2s_shift_is_its_pipelines(steps: int, tokens: int):
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    mu = compute_empirical_mu(tokens, steps)
    scheduler.set_timesteps(sigmas=[1 - i / steps for i in range(steps)], mu=mu)
    torch.testing.assert_close(of(EmpiricalShift(), steps, tokens), scheduler.sigmas, atol=1e-6, rtol=0)
    # with another number of steps on the same grid mu stays that of the grid
    plan = RolloutPlan((StepPlan(),) * 3, EmpiricalShift(), grid_steps=steps, respaced_from=1)
    torch.testing.assert_close(plan.sigmas(LinearShift(), tokens)[:2], of(EmpiricalShift(), steps, tokens)[:2])
    refused("number of image tokens", of, EmpiricalShift(), steps)


@pytest.mark.parametrize(("solver", "start"), [(UniPCMultistepScheduler, 1.0), (DPMSolverMultistepScheduler, 0.999)])
def test_flow_sigmas_are_those_of_the_multistep_schedulers(solver: type, start: float):
    scheduler = solver(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)
    scheduler.set_timesteps(10)
    spacing = spacing_of({**scheduler.config, "_class_name": solver.__name__})
    assert isinstance(spacing, FlowSigmas) and spacing.start == pytest.approx(start)
    torch.testing.assert_close(of(spacing, 10), scheduler.sigmas, atol=2e-6, rtol=0)


@pytest.mark.parametrize("start", [1.0, 0.999])
def test_a_table_that_starts_just_below_one_has_the_noise_of_one_that_starts_there(start: float):
    """Without this the first deviation would be 7 to 130 instead of 0.7."""
    sigmas = of(FlowSigmas(3.0, start), 10)
    at_one = torch.cat([torch.ones(1), sigmas[1:]])
    first = torch.zeros(1, dtype=torch.long)
    found, expected = (FlowSDE(0.7).deviation(table, first) for table in (sigmas, at_one))
    torch.testing.assert_close(found, expected, atol=0, rtol=0.01)
    assert 0.4 < float(found) < 0.9


@pytest.mark.parametrize("steps", [3, 4, 50])
@pytest.mark.parametrize("placing", ["leading", "trailing"])
def test_the_table_of_noise_levels_is_ddims(steps: int, placing: str):
    scheduler = DDIMScheduler(
        beta_start=0.00085,
        beta_end=0.012,
        beta_schedule="scaled_linear",
        set_alpha_to_one=False,
        steps_offset=1,
        timestep_spacing=placing,
    )
    scheduler.set_timesteps(steps)
    table = table_of(scheduler.config)
    sigmas = of(table, steps)
    assert torch.equal(table.times_of(sigmas[:-1]), scheduler.timesteps)
    signal = torch.cat([scheduler.alphas_cumprod[scheduler.timesteps], scheduler.final_alpha_cumprod[None]]).sqrt()
    noise = (1 - signal**2).sqrt()
    torch.testing.assert_close(sigmas, noise / (signal + noise))
    if steps == 4 and placing == "leading":
        assert sigmas[0] == pytest.approx(0.80, abs=0.01) and sigmas[-1] == pytest.approx(0.028, abs=0.001)
    refused("1001 denoising steps are more than the 1000 times", table.grid, 1001)


EVEN = of(StaticShift(3.0), 10)


def draws(sampler, count=50):
    return torch.stack([sampler.draw(EVEN, generator_of(i)) for i in range(count)])


def test_rollout_times_repeat_none_and_the_first_index_is_forced_or_left_out():
    assert (draws(TimeSampler("discrete_with_init", 3, reach=0.9)) == 1).any(1).all()
    assert not (draws(TimeSampler("discrete_wo_init", 3, reach=0.9)) == 1).any()
    for row in draws(TimeSampler("rollout", 9)):
        assert set(row.tolist()) < set(EVEN[:-1].tolist()) and len(set(row.tolist())) == 9
    refused("10 steps", TimeSampler("rollout", 11).draw, EVEN, generator_of(0))


@pytest.mark.parametrize("kind", ["uniform", "logit_normal", "discrete", "discrete_with_init", "discrete_wo_init"])
def test_every_sample_has_one_time_per_stratum(kind):
    sampler = TimeSampler(kind, 4, reach=0.9)
    low, high = (sampler.strata(EVEN, torch.full((4,), u)) for u in (0.0, 0.999))
    ordered = draws(sampler).sort(dim=1, descending=True).values
    assert (ordered <= low + 1e-6).all() and (ordered >= high - 1e-6).all()
    assert ((ordered > 0) & (ordered <= 1)).all()
