"""4-bit NormalFloat (QLoRA, arXiv:2305.14314) in the format of bitsandbytes: 64 weights share a scale, 256 scales another.

The same weights give the same codes on every machine: no sum depends on the order in which a processor adds. In files a weight
`a.weight` has tensors `a.weight`, `a.weight.absmax`, `a.weight.quant_map`, `a.weight.quant_state.bitsandbytes__nf4`, and where
its scales are codes, too, `a.weight.nested_absmax` and `a.weight.nested_quant_map`.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from mmrl.runtime.pretrained import REMEDY

BLOCK, SCALES = 64, 256
"""Weights that share a scale; scales that share the float32 number which they are measured by."""
CHUNK = 2**24
"""Weights that are made at a time, so that no second copy of a large matrix exists."""
QUANTILES = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""The quantiles of a normal distribution that codes 0 to 15 stand for."""


@cache
def nf4() -> Float[Tensor, " 16"]:
    return torch.tensor(QUANTILES, dtype=torch.float32, device="cpu")


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


STATE, OTHER = ".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"
PARTS = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map", STATE, OTHER)
"""What the names of a weight's tensors end with, beside those of its codes."""
NF4, NETWORK = "nf4", "diffusion_pytorch_model"
"""Our method's name in configs, and how diffusers names the files of weights."""
ROUNDED = 1e-6
"""By how much a table's values may differ from ours: as much as another machine's rounding."""
LARGEST = 65504.0
"""The largest scale: what a weight in float16 can be."""
Read = Callable[[str], Tensor]
"""A tensor by its name."""


def method_of(config: object) -> str | None:
    """How a model's files are quantized by its config, a mapping or an object: "nf4", another method's name, or None."""
    found = config.get("quantization_config") if isinstance(config, Mapping) else getattr(config, "quantization_config", None)
    if found is None:
        return None
    said: Mapping[str, object] = found if isinstance(found, Mapping) else vars(found)
    method = str(getattr(said.get("quant_method"), "value", said.get("quant_method")))
    is_4_bit = said.get("load_in_4bit", said.get("_load_in_4bit", False))
    if method == "bitsandbytes":
        return str(said.get("bnb_4bit_quant_type", "fp4")) if is_4_bit else "bitsandbytes in 8 bits"
    return method


def is_part(name: str) -> bool:
    """Is it a tensor beside a weight's codes?"""
    return name.endswith(PARTS)


def files_in(folder: Path, stem: str, variant: str | None = None) -> list[Path]:
    """The .safetensors files of a model's folder whose names begin with `stem`, in order; none where there are none."""
    return files_by(lambda name: path if (path := folder / name).is_file() else None, stem, variant)


def files_by(resolve: Callable[[str], Path | None], stem: str, variant: str | None = None) -> list[Path]:
    """The .safetensors files of a model, by what says where one of its files lies; none where one is missing."""
    word = "" if variant is None else f".{variant}"
    index = resolve(f"{stem}.safetensors.index{word}.json")
    if index is None:
        single = resolve(f"{stem}{word}.safetensors")
        return [] if single is None else [single]
    names: Mapping[str, str] = json.loads(index.read_bytes())["weight_map"]
    found = [resolve(name) for name in sorted(set(names.values()))]
    return [] if None in found else [one for one in found if one is not None]


def file_of(base: str, name: str) -> Path | None:
    """Where a file of a folder or hub model lies; None if the model has none of this name."""
    from transformers.utils.hub import cached_file

    found = cached_file(
        str(Path(base).expanduser()) if Path(base).expanduser().is_dir() else base,
        name,
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        _raise_exceptions_for_gated_repo=False,
    )
    return None if found is None else Path(str(found))


def tensors_in(files: Iterable[Path | str]) -> dict[str, Read]:
    """Name of a tensor -> what reads it, alone."""
    from safetensors import safe_open

    found: dict[str, Read] = {}
    for path in files:
        with safe_open(path, framework="pt") as file:
            found |= dict.fromkeys(file.keys(), partial(read_tensor, path))
    return found


def read_tensor(path: Path | str, name: str) -> Tensor:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        return file.get_tensor(name)


def weights_in(names: Iterable[str]) -> list[str]:
    """The weights in 4 bits among names of tensors."""
    return sorted(name.removesuffix(STATE).removesuffix(OTHER) for name in names if name.endswith((STATE, OTHER)))


def facts_of_weight(name: str, read: Mapping[str, Read]) -> tuple[Sequence[int], torch.dtype]:
    """Rows and columns of a stored weight, and the type that it had before; ValueError for one that is no NF4."""
    if f"{name}{OTHER}" in read:
        raise ValueError(f"{name} is in FP4, and NF4 is read: take another folder of the model")
    try:
        said = json.loads(bytes(read[name + STATE](name + STATE).tolist()))
        shape, block, nested = [int(size) for size in said["shape"]], said["blocksize"], said.get("nested_blocksize", SCALES)
        if len(shape) != 2 or min(shape) < 1:
            raise ValueError("no matrix")
        dtype = getattr(torch, said["dtype"])
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise ValueError("no type of weights")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{name}{STATE} does not describe a weight in 4 bits: {REMEDY}") from error
    if block != BLOCK or nested != SCALES:
        raise ValueError(
            f"{name} has a scale for {block} weights and {nested} scales, and {BLOCK} and {SCALES} are read: take another"
        )
    return shape, dtype


def read_codes(name: str, read: Mapping[str, Read]) -> Codes:
    """The codes of the stored weight `name`, exactly as they are.

    Raises ValueError that names the tensor for one that lacks parts, whose sizes do not go together, whose values are not those
    of NF4, or whose scales are NaN, infinite, negative or larger than any weight.
    """
    (rows, columns), _ = facts_of_weight(name, read)

    def part(suffix: str) -> Tensor:
        if name + suffix not in read:
            raise ValueError(f"{name}{suffix} is missing, without which {name} means nothing: {REMEDY}")
        return read[name + suffix](name + suffix)

    blocks = -(-rows * columns // BLOCK)
    codes, scales, own = part("").flatten(), part(".absmax").flatten(), part(".quant_map")
    double = f"{name}.nested_absmax" in read
    units, offset = scales.new_zeros(0, dtype=torch.float32), torch.tensor(0.0, dtype=torch.float32, device="cpu")
    if double:
        mean = json.loads(bytes(part(STATE).tolist())).get("nested_offset")
        if not isinstance(mean, int | float):
            raise ValueError(f"{name}{STATE} says no nested_offset, without which its scales mean nothing: {REMEDY}")
        units, offset = part(".nested_absmax").flatten(), torch.tensor(float(mean), dtype=torch.float32, device="cpu")
    sizes = (codes.numel(), scales.numel(), units.numel())
    wanted = (-(-rows * columns // 2), blocks, -(-blocks // SCALES) * double)
    if sizes != wanted or codes.dtype != torch.uint8 or scales.dtype != (torch.uint8 if double else torch.float32):
        raise ValueError(
            f"{name} has codes, scales and units of sizes {sizes}, where {rows} x {columns} weights need {wanted}: {REMEDY}"
        )
    tables = [(own, nf4())] + ([(part(".nested_quant_map"), dynamic())] if double else [])
    if any(found.shape != ours.shape or not torch.allclose(found, ours, rtol=0, atol=ROUNDED) for found, ours in tables):
        raise ValueError(f"{name} has codes that stand for other values than those of NF4: take another folder of the model")
    if not all(bool(one.isfinite().all()) for one in (scales, units, offset)):
        raise ValueError(f"{name} has scales that are NaN or infinite: {REMEDY}")
    lowest, largest = torch.cat([units if double else scales, offset[None]]).aminmax()
    if lowest < 0 or largest > LARGEST:
        raise ValueError(
            f"{name} has scales from {lowest:g} to {largest:g}, and those of weights are from 0 to {LARGEST:g}: {REMEDY}"
        )
    return Codes(codes, scales, units, offset)


def tensors_of(name: str, codes: Codes, shape: Sequence[int], dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors that stand for a weight of `dtype` in files."""
    double = not codes.scales.is_floating_point()
    said: dict[str, object] = {
        "quant_type": "nf4",
        "blocksize": BLOCK,
        "dtype": str(dtype).removeprefix("torch."),
        "shape": list(shape),
    }
    found = {name: codes.codes[:, None], f"{name}.absmax": codes.scales, f"{name}.quant_map": nf4().clone()}
    if double:
        said |= {"nested_blocksize": SCALES, "nested_dtype": "float32", "nested_offset": float(codes.offset)}
        found |= {f"{name}.nested_absmax": codes.units, f"{name}.nested_quant_map": dynamic().clone()}
    return {**found, name + STATE: torch.tensor(list(json.dumps(said).encode()), dtype=torch.uint8)}
