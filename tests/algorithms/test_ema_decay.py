"""How much of averaged weights stays at an update, step by step."""

import pytest

from mmrl.algorithms.ema_decay import RampDecay, SteadyDecay, WarmDecay


@pytest.mark.parametrize(
    ("step", "expected"),
    # slope (s - flat) = 0.01 (s - 5), at most 0.2, and 0 before
    [(0, 0.0), (5, 0.0), (6, 0.01), (15, 0.1), (25, 0.2), (26, 0.2), (1000, 0.2)],
)
def test_a_ramp_rises_after_the_flat_steps_up_to_its_most(step: int, expected: float):
    assert RampDecay(flat=5, slope=0.01, most=0.2)(step) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("step", "expected"),
    # (1 + s) / (10 + s) at every fourth step, at most 0.5
    [(0, 1.0), (2, 1.0), (3, 4 / 13), (4, 1.0), (7, 8 / 17), (11, 0.5)],
)
def test_a_warm_average_moves_at_every_so_many_steps(step: int, expected: float):
    assert WarmDecay(most=0.5, every=4)(step) == pytest.approx(expected)


def test_a_steady_one_is_a_share():
    assert SteadyDecay(0.99)(0) == SteadyDecay(0.99)(10_000) == 0.99
    for decay in (-0.1, 1.1):
        with pytest.raises(ValueError, match=r"SteadyDecay\.decay is"):
            SteadyDecay(decay)
