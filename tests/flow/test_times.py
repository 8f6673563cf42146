import pytest
import torch

from mmrl.flow.layout import generator_of
from mmrl.flow.sigmas import StaticShift
from mmrl.flow.times import TimeSampler

SIGMAS = StaticShift(3.0).sigmas(StaticShift(3.0).grid(10))


def draws(sampler, count=50):
    return torch.stack([sampler.draw(SIGMAS, generator_of(i)) for i in range(count)])


def test_rollout_times_are_a_choice_without_repetition():
    for row in draws(TimeSampler("rollout", 9)):
        assert set(row.tolist()) < set(SIGMAS[:-1].tolist()) and len(set(row.tolist())) == 9


def test_more_times_than_steps_are_refused():
    with pytest.raises(ValueError, match="10 steps"):
        TimeSampler("rollout", 11).draw(SIGMAS, generator_of(0))


@pytest.mark.parametrize("kind", ["uniform", "logit_normal", "discrete", "discrete_with_init", "discrete_wo_init"])
def test_every_sample_has_one_time_per_stratum(kind):
    sampler = TimeSampler(kind, 4, reach=0.9)
    low, high = (sampler.strata(SIGMAS, torch.full((4,), u)) for u in (0.0, 0.999))
    ordered = draws(sampler).sort(dim=1, descending=True).values
    assert (ordered <= low + 1e-6).all() and (ordered >= high - 1e-6).all()
    assert ((ordered > 0) & (ordered <= 1)).all()


def test_first_index_is_forced_or_left_out():
    assert (draws(TimeSampler("discrete_with_init", 3, reach=0.9)) == 1).any(1).all()
    assert not (draws(TimeSampler("discrete_wo_init", 3, reach=0.9)) == 1).any()


def test_uniform_by_hand():
    # f = 1/8, 5/8: t = 7/8, 3/8; shifted by 3: 3f / (1 + 2f) = 0.3, 15/18
    halves = torch.tensor([0.25, 0.25])
    torch.testing.assert_close(TimeSampler("uniform", 2).strata(SIGMAS, halves), torch.tensor([7 / 8, 3 / 8]))
    torch.testing.assert_close(TimeSampler("uniform", 2, shift=3.0).strata(SIGMAS, halves), torch.tensor([0.7, 1 - 15 / 18]))
