"""A layer in 4 bits is a linear layer with rounded weights, in every type, on the way back too."""

import pytest
import torch
from torch import nn

from mmrl.policies.shared.meta_models import fake_weights
from mmrl.policies.shared.quantized.layer import Nf4Linear, count_weights, digest, nf4_layers, put_layers
from mmrl.policies.shared.quantized.table import quantize


def pair(bias: bool = True) -> tuple[Nf4Linear, nn.Linear]:
    torch.manual_seed(0)
    plain = nn.Linear(24, 40, bias).requires_grad_(False)
    found, codes = Nf4Linear(plain), quantize(plain.weight)
    found.weight, found.scales, found.units, found.offset = (
        nn.Parameter(codes.codes, requires_grad=False),
        codes.scales,
        codes.units,
        codes.offset,
    )
    plain.weight.copy_(found.whole(torch.float32))
    return found, plain


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("narrow", [False, True])
def test_product_and_gradient_are_those_of_the_rounded_layer(bias: bool, narrow: bool):
    found, plain = pair(bias)
    x, y = (torch.linspace(-1, 1, 2 * 3 * 24).view(2, 3, 24).requires_grad_() for _ in range(2))
    with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
        ours, theirs = found(x), plain(y)
    assert ours.dtype == theirs.dtype == (torch.bfloat16 if narrow else torch.float32)
    # two products of other shapes may add in other orders
    bound = 2e-2 if narrow else 1e-6
    torch.testing.assert_close(ours, theirs, atol=bound, rtol=bound)
    step = torch.linspace(0, 1, ours.numel()).view(ours.shape).to(ours.dtype)
    ours.backward(step)
    theirs.backward(step)
    torch.testing.assert_close(x.grad, y.grad, atol=bound, rtol=bound)


def test_it_moves_and_is_never_cast():
    found, _ = pair()
    before, name = found.whole(torch.float32), digest(nn.Sequential(found))
    found.to(torch.bfloat16)
    assert found.weight.dtype == torch.uint8 and found.units.dtype == torch.float32
    assert torch.equal(found.whole(torch.float32), before) and digest(nn.Sequential(found)) == name
    found.scales[0] += 1
    assert digest(nn.Sequential(found)) != name


def test_without_values_it_knows_its_sizes():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(128, 96), nn.Linear(96, 4))
    put_layers(model, ["0"])
    fake_weights(model)
    assert count_weights(model) == 128 * 96 + 96 + 96 * 4 + 4
    [(_, layer)] = nf4_layers(model)
    held = [layer.weight, layer.scales, layer.units, layer.offset]
    assert sum(one.numel() * one.element_size() for one in held) == 128 * 96 // 2 + 192 + 4 + 4
    assert model(torch.empty(5, 128)).shape == (5, 4)
