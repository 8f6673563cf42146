"""One step: the straight path between data and noise, guidance, and the dynamics that move along it."""

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.flow.dynamics import (
    CPS,
    SA,
    Before,
    DanceSDE,
    DynamicsName,
    FlowSDE,
    Gaussian,
    Solver,
    SolverName,
    Stochastic,
    dynamics_of,
    euler,
    log_snr,
    multistep,
    name_of,
)
from mmrl.flow.integrate import integrate
from mmrl.flow.layout import lay_out
from mmrl.flow.path import add_noise, data_of, noise_of, velocity_of
from mmrl.flow.plan import RolloutPlan, StepPlan
from mmrl.flow.sigmas import LinearShift, StaticShift

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


def test_a_linear_schedule_leaves_noise_at_a_noisy_last_step():
    sigmas = LinearShift(3.0).sigmas(LinearShift(3.0).grid(6)).double()
    assert FlowSDE(0.9).deviation(sigmas, torch.tensor([5]))[0] > 0.2
    assert CPS(0.9).deviation(sigmas, torch.tensor([5]))[0] == 0


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


@settings(deadline=None, max_examples=30)
@given(SEEDS, st.lists(TIMES, min_size=3, max_size=3))
def test_data_noise_and_velocity_come_back(seed, numbers):
    data, noise = latents(3, seed)
    t = torch.tensor(numbers, dtype=torch.float64)
    x, v = add_noise(data, noise, t), velocity_of(data, noise)
    torch.testing.assert_close(data_of(x, v, t), data)
    torch.testing.assert_close(noise_of(x, v, t), noise)


@settings(deadline=None, max_examples=30)
@given(SEEDS, TIMES, TIMES)
def test_moving_along_the_velocity_stays_on_the_path(seed, t, later):
    data, noise = latents(3, seed)
    moved = add_noise(data, noise, t) + (later - t) * velocity_of(data, noise)
    torch.testing.assert_close(moved, add_noise(data, noise, later))


def test_time_runs_from_noise_to_data():
    data, noise = latents()
    assert torch.equal(add_noise(data, noise, 1.0), noise)
    assert torch.equal(add_noise(data, noise, 0.0), data)
