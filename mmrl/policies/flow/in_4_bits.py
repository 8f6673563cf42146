"""Parts of a pipeline whose linear layers rest in 4 bits: which they are, and how they are loaded."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.shared.quantized.layer import Nf4Linear, set_kernels
from mmrl.policies.shared.quantized.load import linear_names, load_in_codes, load_network, plain_config, recipe_of
from mmrl.policies.shared.quantized.table import NETWORK, NF4, files_in, method_of

READER = "model"
"""How transformers names the files of weights."""


def parts_in_4_bits(config: FlowPolicyConfig, parts: Mapping[str, object], trained: Collection[str]) -> list[str]:
    """The pipeline's own names of the parts that `policy.quantized` names; ValueError for text encoders that it does not have."""
    if config.weights == "float":
        return []
    encoders = [name for name in parts if name.startswith("text_encoder") and parts[name] != [None, None]]
    if "text_encoders" in config.quantized.parts and not encoders:
        raise ValueError(
            f"policy.quantized.parts holds 'text_encoders', and policy.model {config.model!r} has none: leave it out"
        )
    found = [*trained] if "transformer" in config.quantized.parts else []
    return [name for name in (*found, *(encoders if "text_encoders" in config.quantized.parts else ())) if name in parts]


def holds_codes(folder: Path, config: FlowPolicyConfig, trained: Collection[str]) -> bool:
    """Are the weights of the part in this folder stored in 4 bits?

    Raises ValueError for other kinds of quantized weights, and for codes of a network that would have to train.
    """
    file = folder / "config.json"
    method = method_of(json.loads(file.read_text())) if file.is_file() else None
    place = f"policy.model {config.model!r} ({folder.name})"
    if method not in (None, NF4):
        raise ValueError(f"{place} is quantized already, by {method}: take the original, or one in bitsandbytes' NF4")
    if method and folder.name in trained and config.lora is None:
        raise ValueError(f"{place} is stored in 4 bits, which do not train: add [policy.lora], whose adapters train beside them")
    return method is not None


def load_part(
    config: FlowPolicyConfig, kind: Any, folder: Path, dtype: torch.dtype, variant: str | None, stored: bool
) -> nn.Module:
    """A part with its linear layers in 4 bits, and the rest in `dtype`; raises as `load_whole`."""
    place, double = f"policy.model {config.model!r} ({folder.name})", config.quantized.double
    is_network = hasattr(kind, "load_config")
    files = files_in(folder, NETWORK if is_network else READER, variant)
    if not files:
        raise ValueError(f"{place} has no .safetensors files, from which alone weights in 4 bits are made: save it again")
    if is_network:
        network = load_network(kind, folder, files, dtype, double, place)
        set_kernels(network, config.quantized.kernels)
        return network
    reader_config = plain_config(kind.config_class.from_pretrained(folder))
    with torch.device("meta"):
        reader = kind(reader_config)
    names = [] if stored else linear_names(reader)
    recipe = None if stored else recipe_of(reader, names, files, double, place)
    settings: dict[str, object] = {"config": reader_config, **({} if variant is None else {"variant": variant})}
    return load_in_codes(kind.from_pretrained, (str(folder), place), names, config.quantized, recipe, dtype, **settings)


def reader_bytes(reader: nn.Module, each: int, double: bool | None) -> int:
    """Bytes of a text encoder on the meta device, `each` a weight; double: linear layers rest in 4 bits, None: they do not."""
    whole = each * sum(weight.numel() for weight in reader.parameters())
    if double is None:
        return whole
    linear = [layer for layer in map(reader.get_submodule, linear_names(reader)) if isinstance(layer, nn.Linear)]
    return whole + sum(Nf4Linear(layer, double).num_bytes - each * layer.weight.numel() for layer in linear)
