"""Temperatures that follow entropy: by hand, and at their bounds."""

import math

import torch

from mmrl.algorithms.planners.tempered import Heat


def test_tokens_above_the_pivot_are_drawn_hotter_and_those_below_colder():
    heat = Heat(pivot=0.0, deviation=2.0, above=1.0, below=0.5, amount=0.1)
    # log entropies 1, -1, 9 and -9: distances 0.5, -0.5, 4.5 and -4.5 deviations, u = 0.5, -0.25, 1 and -1
    entropy = torch.tensor([1.0, -1.0, 9.0, -9.0], dtype=torch.float64).exp()
    torch.testing.assert_close(heat.factor(entropy), torch.tensor([1.05, 0.975, 1.1, 0.9], dtype=torch.float64))
    assert torch.equal(Heat().factor(entropy), torch.ones(4, dtype=torch.float64)), "nothing was measured"


def test_a_distribution_is_drawn_at_its_own_temperature():
    logprobs = torch.tensor([[2.0, 0.0, -1.0], [9.0, 0.0, 0.0], [0.0, -math.inf, -math.inf]]).log_softmax(-1)
    heat = Heat(pivot=-1.0, deviation=1.0, above=10.0, below=10.0, amount=0.5)
    drawn = heat(logprobs)
    torch.testing.assert_close(drawn[0], (logprobs[0] / 1.5).log_softmax(-1))
    torch.testing.assert_close(drawn[1], (logprobs[1] / 0.5).log_softmax(-1))
    assert drawn[2].exp().tolist() == [1.0, 0.0, 0.0], "what is certain or banned stays so"
