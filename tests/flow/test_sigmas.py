import numpy as np
import pytest
import torch

from mmrl.flow.plan import RolloutPlan, StepPlan
from mmrl.flow.schedules import Window
from mmrl.flow.sigmas import DynamicShift, LinearShift, StaticShift, spacing_of, truncated_timesteps


def of(spacing, steps, tokens=None):
    return spacing.sigmas(spacing.grid(steps), tokens)


@pytest.mark.parametrize("steps", [4, 10, 28])
def test_static_shift_is_diffusers(steps):
    from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler

    scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    scheduler.set_timesteps(steps)
    spacing = spacing_of(dict(scheduler.config))
    assert spacing == StaticShift(3.0)
    torch.testing.assert_close(of(spacing, steps), scheduler.sigmas, atol=1e-7, rtol=0)


@pytest.mark.parametrize("terminal", [None, 0.02])
def test_dynamic_shift_is_diffusers(terminal):
    from diffusers.schedulers.scheduling_flow_match_euler_discrete import FlowMatchEulerDiscreteScheduler

    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, base_shift=0.5, max_shift=0.9, shift_terminal=terminal)
    spacing = spacing_of(dict(scheduler.config))
    assert isinstance(spacing, DynamicShift)
    scheduler.set_timesteps(sigmas=np.linspace(1, 1 / 8, 8).tolist(), mu=spacing.mu(1000))
    torch.testing.assert_close(of(spacing, 8, 1000), scheduler.sigmas, atol=2e-7, rtol=0)


def test_dynamic_shift_without_the_size_of_the_picture_says_so():
    with pytest.raises(ValueError, match="image tokens"):
        of(DynamicShift(), 4)


def test_one_step_cannot_end_at_two_sigmas():
    spacing = DynamicShift(terminal=0.02)
    with pytest.raises(ValueError, match="take 2 steps or more"):
        spacing.sigmas(spacing.grid(1), 1024)
    assert spacing.sigmas(spacing.grid(2), 1024).isfinite().all()


def test_a_scheduler_with_other_sigmas_is_refused():
    with pytest.raises(ValueError, match="use_karras_sigmas"):
        spacing_of({"shift": 3.0, "use_karras_sigmas": True})


@pytest.mark.parametrize("spacing", [StaticShift(3.0), StaticShift(1.0), LinearShift(3.0), DynamicShift()], ids=str)
def test_sigmas_fall_from_one_to_zero(spacing):
    sigmas = of(spacing, 9, 1024)
    assert sigmas[0] == 1 and sigmas[-1] == 0 and len(sigmas) == 10
    assert (sigmas[1:] < sigmas[:-1]).all() and sigmas.dtype == torch.float32


def test_linear_shift_by_hand():
    # u = 1, 3/4, 1/2, 1/4, 0: sigma = 3u / (1 + 2u) = 1, 0.9, 0.75, 0.5, 0
    torch.testing.assert_close(of(LinearShift(3.0), 4), torch.tensor([1, 0.9, 0.75, 0.5, 0]))
    assert truncated_timesteps(torch.tensor([1.0, 0.96013, 0.5, 0.0])).tolist() == [1000, 960, 500]


def test_respacing_divides_the_rest_of_the_grid():
    plan = RolloutPlan((StepPlan(),) * 3, LinearShift(1.0), grid_steps=5, respaced_from=1)
    torch.testing.assert_close(plan.sigmas(StaticShift()), torch.tensor([1, 0.8, 0.4, 0]))


def test_a_plan_without_spacing_takes_the_models():
    plan = Window(10, 3).at(0)
    assert torch.equal(plan.sigmas(LinearShift(2.0)), of(LinearShift(2.0), 10))
