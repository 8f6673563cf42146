"""A layer in 4 bits is a linear layer with rounded weights, in every type, on the way back too."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from mmrl.policies.shared.dry_run import fake_weights
from mmrl.policies.shared.quantized.layer import (
    Nf4Linear,
    Product,
    count_weights,
    digest,
    fast_product,
    nf4_layers,
    put_layers,
    set_kernels,
)
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
    for part in (found.scales, found.units, found.offset):
        was = part.clone()
        part.view(-1)[0] += 1
        assert digest(nn.Sequential(found)) != name, "every part of the codes is in the hash"
        part.copy_(was)
    assert digest(nn.Sequential(found)) == name


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


class QuantState:
    """What bitsandbytes' operator is told about a weight, by its own words."""

    def __init__(self, absmax: Any, **more: Any) -> None:
        self.absmax, self.more = absmax, more

    def whole(self, packed: torch.Tensor) -> torch.Tensor:
        """The weight by bitsandbytes' rule: a scale of its own for each block, or one of 8 bits times a unit, and an offset."""
        scales, inner = self.absmax, self.more["state2"]
        if inner is not None:
            units = inner.absmax.repeat_interleave(inner.more["blocksize"])[: len(scales)]
            scales = inner.more["code"][scales.int()] * units + self.more["offset"]
        halves = torch.stack([packed >> 4, packed & 15], 1).flatten().int()
        rows, columns = self.more["shape"]
        spread = scales.repeat_interleave(self.more["blocksize"])[: rows * columns]
        return (self.more["code"][halves][: rows * columns] * spread).view(rows, columns)


@pytest.mark.parametrize("double", [True, False])
def test_fast_kernels_are_told_the_same_weight(double: bool, monkeypatch: pytest.MonkeyPatch):
    def matmul_4bit(x: Any, packed: Any, quant_state: Any, bias: Any) -> torch.Tensor:
        assert packed.shape[0] == 1 and packed.dtype == torch.uint8 and quant_state.more["quant_type"] == "nf4"
        return nn.functional.linear(x, quant_state.whole(packed.flatten()), bias)

    functional = SimpleNamespace(QuantState=QuantState)
    monkeypatch.setitem(sys.modules, "bitsandbytes", SimpleNamespace(matmul_4bit=matmul_4bit, functional=functional))
    monkeypatch.setitem(sys.modules, "bitsandbytes.functional", functional)
    torch.manual_seed(0)
    plain = nn.Linear(24, 40)
    layer = Nf4Linear(plain, double)
    layer.take(quantize(plain.weight, double))
    set_kernels(nn.Sequential(layer), "fast")
    assert layer.fast
    x = torch.randn(3, 24)
    torch.testing.assert_close(fast_product(x, layer.bias, layer), nn.functional.linear(x, layer.whole(x.dtype), layer.bias))
    assert torch.equal(layer(x), Product.apply(x, layer.bias, layer)), "on a card alone"
