import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.flow.path import add_noise, data_of, noise_of, velocity_of, velocity_with_guidance

times = st.floats(0.01, 0.99)
seeds = st.integers(0, 1000)


def pair(seed):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(3, 2, 4, dtype=torch.float64, generator=generator) for _ in range(2))


@settings(deadline=None, max_examples=30)
@given(seeds, st.lists(times, min_size=3, max_size=3))
def test_data_noise_and_velocity_come_back(seed, numbers):
    data, noise = pair(seed)
    t = torch.tensor(numbers, dtype=torch.float64)
    x, v = add_noise(data, noise, t), velocity_of(data, noise)
    torch.testing.assert_close(data_of(x, v, t), data)
    torch.testing.assert_close(noise_of(x, v, t), noise)


@settings(deadline=None, max_examples=30)
@given(seeds, times, times)
def test_moving_along_the_velocity_stays_on_the_path(seed, t, later):
    data, noise = pair(seed)
    moved = add_noise(data, noise, t) + (later - t) * velocity_of(data, noise)
    torch.testing.assert_close(moved, add_noise(data, noise, later))


def test_time_runs_from_noise_to_data():
    data, noise = pair(0)
    assert torch.equal(add_noise(data, noise, 1.0), noise)
    assert torch.equal(add_noise(data, noise, 0.0), data)


def test_guidance():
    # 1 + 3 (2 - 1) = 4 and -1 + 3 (0 + 1) = 2; the norm of (2, 0) kept: (4, 2) * 2 / sqrt(20)
    conditional, unconditional = torch.tensor([[2.0, 0.0]]), torch.tensor([[1.0, -1.0]])
    torch.testing.assert_close(velocity_with_guidance(conditional, unconditional, 3.0), torch.tensor([[4.0, 2.0]]))
    kept = velocity_with_guidance(conditional, unconditional, 3.0, keep_norm=True)
    torch.testing.assert_close(kept, torch.tensor([[4.0, 2.0]]) * 2 / 20**0.5)
    torch.testing.assert_close(velocity_with_guidance(conditional, unconditional, 1.0), conditional)
