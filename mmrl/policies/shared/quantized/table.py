"""4-bit NormalFloat (QLoRA, arXiv:2305.14314) in the format of bitsandbytes: 64 weights share a scale, 256 scales another.

The same weights give the same codes on every machine: no sum depends on the order in which a processor adds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

BLOCK, SCALES = 64, 256
"""Weights that share a scale; scales that share the float32 number which they are measured by."""
CHUNK = 2**24
"""Weights that are made at a time, so that no second copy of a large matrix exists."""
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""The quantiles of a normal distribution that codes 0 to 15 stand for."""


@cache
def nf4() -> Float[Tensor, " 16"]:
    return torch.tensor(NF4, dtype=torch.float32, device="cpu")


@cache
def pairs() -> Float[Tensor, "256 2"]:
    """The two values that a byte of codes stands for, the first in its higher half."""
    byte = torch.arange(256, device="cpu")
    return torch.stack([nf4()[byte >> 4], nf4()[byte & 15]], 1)


@cache
def dynamic() -> Float[Tensor, " 256"]:
    """The values of 8-bit codes with an exponent of variable length (arXiv:2110.02861), from -1 to 1, in order.

    Each power of ten from 1e-6 to 1 has the middles of as many equal parts of [.1, 1] as bits are left for it: 1, 2, 4, ... 64.
    """
    found = [0.0, 1.0]
    for exponent in range(7):
        edges = torch.linspace(0.1, 1, 2**exponent + 1, dtype=torch.float32, device="cpu")
        middles = (10.0 ** (exponent - 6) * ((edges[:-1] + edges[1:]) / 2)).tolist()
        found += [*middles, *(-one for one in middles)]
    return torch.tensor(sorted(found), dtype=torch.float32, device="cpu")


@cache
def sent(table: Callable[[], Tensor], device: torch.device) -> Tensor:
    return table().to(device)


def there(table: Callable[[], Tensor], device: torch.device) -> Tensor:
    """A table on a device; sent to a GPU once, as layers ask for it at every forward."""
    # A dry run's tensors belong to that run.
    return table().to(device) if device.type in ("cpu", "meta") else sent(table, device)


@dataclass(frozen=True)
class Codes:
    """A matrix of n weights in 4 bits, and its scales: .516 bytes a weight, .5625 where scales are float32."""

    codes: UInt8[Tensor, " bytes"]
    """Two weights a byte, the first in its higher half."""
    scales: UInt8[Tensor, " blocks"] | Float[Tensor, " blocks"]
    """One for a block of weights: codes of `dynamic`, or the scales themselves in float32."""
    units: Float[Tensor, " units"]
    """What 256 scales are measured by; none beside scales in float32."""
    offset: Float[Tensor, ""]
    """The mean of the scales, which was taken off their codes, or 0."""


def quantize(weight: Float[Tensor, "o i"], double: bool = True) -> Codes:
    """The codes of a matrix, from the numbers as they are stored; NaN or infinity in it make the offset NaN or infinite.

    double: scales are codes, too.
    """
    blocks = in_blocks(weight.detach().float().flatten(), BLOCK)
    largest = blocks.abs().amax(1)
    codes = nearest(blocks / largest.clamp(min=1e-30)[:, None], nf4()).flatten()[: -(-weight.numel() // 2) * 2]
    packed = (codes[0::2] << 4) | codes[1::2]
    if not double:
        return Codes(packed, largest, largest.new_zeros(0), 0 * largest.max())
    offset = largest.double().mean().float()
    groups = in_blocks(largest - offset, SCALES)
    units = groups.abs().amax(1)
    scales = nearest(groups / units.clamp(min=1e-30)[:, None], dynamic()).flatten()[: len(largest)]
    return Codes(packed, scales, units, offset)


def dequantize(found: Codes, size: int, dtype: torch.dtype) -> Float[Tensor, " size"]:
    """The first `size` weights that codes stand for, multiplied in float32."""
    device = found.codes.device
    pair, steps = there(pairs, device), there(dynamic, device)
    out = torch.empty(size, dtype=dtype, device=device)
    for start in range(0, size, CHUNK):
        end = min(start + CHUNK, size)
        first, last = start // BLOCK, -(-end // BLOCK)
        scale = found.scales[first:last]
        if not scale.is_floating_point():
            units = found.units[start // (BLOCK * SCALES) : -(-last // SCALES)].repeat_interleave(SCALES)[: last - first]
            scale = steps[scale.int()] * units + found.offset
        # both values of a byte are looked up as one number of 8 bytes
        values = pair.view(torch.int64)[:, 0].index_select(0, found.codes[start // 2 : -(-end // 2)].int()).view(torch.float32)
        out[start:end] = (in_blocks(values, BLOCK) * scale[:, None]).flatten()[: end - start]
    return out


def round_weight(weight: Float[Tensor, "o i"], double: bool = True) -> Float[Tensor, "o i"]:
    """Round a matrix to what 4 bits can say, in float32."""
    return dequantize(quantize(weight, double), weight.numel(), torch.float32).view_as(weight)


def nearest(x: Float[Tensor, "*n"], values: Float[Tensor, " v"]) -> UInt8[Tensor, "*n"]:
    """Index of the value that is nearest to each number; `values` are in order."""
    values = values.to(x.device)
    return torch.bucketize(x, (values[1:] + values[:-1]) / 2).to(torch.uint8)


def in_blocks(x: Float[Tensor, " n"], block: int) -> Float[Tensor, "b block"]:
    """Rows of `block` numbers, the last one filled with 0."""
    return torch.nn.functional.pad(x, (0, -len(x) % block)).view(-1, block)
