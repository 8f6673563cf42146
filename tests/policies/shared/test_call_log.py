"""A network of one weight that stands for those which a dry run does not have."""

import torch
from torch import nn

from mmrl.policies.shared.dry_run import StillWeights


def test_still_weights_are_kept_in_place_of_the_networks():
    still = StillWeights()
    kept = still.keeper()(nn.Linear(3, 2), {"ref", "ema"}, 0.9, False, "device")
    assert set(kept.shadows) == {"ref", "ema"}
    assert all([weight.shape for weight in shadow.weights] == [torch.Size([])] for shadow in kept.shadows.values())


def test_their_zero_has_a_gradient_where_gradients_are_on():
    still = StillWeights()
    still.zero().backward()
    assert still.weight.grad is not None and not still.weight.grad.any()
    with torch.no_grad():
        assert still.zero() == 0 and not still.zero().requires_grad
