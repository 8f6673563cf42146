"""Weights in 4 bits as bitsandbytes stores them in files: codes, scales, the values they stand for, and a description in JSON.

A weight `a.weight` has tensors `a.weight`, `a.weight.absmax`, `a.weight.quant_map`, `a.weight.quant_state.bitsandbytes__nf4`, and
where its scales are codes, too, `a.weight.nested_absmax` and `a.weight.nested_quant_map`.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from mmrl.policies.shared.quantized.table import BLOCK, SCALES, Codes, dynamic, nf4
from mmrl.runtime.pretrained import REMEDY

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
