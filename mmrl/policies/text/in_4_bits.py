"""A model that writes whose linear layers rest in 4 bits: which they are, and how they are loaded."""

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mmrl.policies.shared.quantized.kept import CodesRecipe
from mmrl.policies.shared.quantized.layer import rest_on_host
from mmrl.policies.shared.quantized.load import find_stored_layers, load_in_codes, plain_config, recipe_of
from mmrl.policies.shared.quantized.stored import NF4, file_of, files_by, files_in, method_of
from mmrl.policies.text.families import Family, belongs, model_class
from mmrl.policies.text.settings import QuantizedSettings, TextPolicyConfig
from mmrl.runtime.net.offline import is_offline
from mmrl.runtime.pretrained import readable

EXPERTS = 3
"""Dimensions of the weights of a layer of experts, which are one tensor."""


def load_quantized(
    config: TextPolicyConfig, model_config: object, family: Family, dtype: torch.dtype, settings: Mapping[str, object]
) -> nn.Module:
    """The model with the layers of `policy.quantized` in 4 bits, made from the numbers as stored, and the rest in `dtype`.

    Codes are made once and kept in mmrl's cache, where the model's files allow that.
    """
    stored = method_of(model_config) is not None
    if stored:
        refuse_idle_codes(config)
    plain = plain_config(model_config)
    with torch.device("meta"):
        code: dict[str, object] = {"trust_remote_code": config.trust_remote_code}
        model: Any = model_class(plain).from_config(plain, **code)
    if config.quantized.embeddings == "host":
        rest_on_host(model, config.model)
    names = [] if stored else layers_to_quantize(model, family, config.quantized.parts)
    recipe, load = None if stored else recipe_for(config, model, names), model_class(plain).from_pretrained
    given = {"config": plain, "ignore_mismatched_sizes": True, **settings}
    model = load_in_codes(load, (config.model, place_of(config)), names, config.quantized, recipe, dtype, **given)
    # Adapters name their base by it.
    model.name_or_path = model.config.name_or_path = config.model
    return model


def place_of(config: TextPolicyConfig) -> str:
    return f"policy.model {config.model!r}"


def recipe_for(config: TextPolicyConfig, model: Any, layers: Collection[str]) -> CodesRecipe | None:
    """The recipe for these layers of a model on the meta device; None where its files, or code of its own, do not allow it."""
    if config.trust_remote_code:
        return None
    with readable(place_of(config), config.model):
        files = files_by(partial(file_of, config.model), "model", config.variant)
    return recipe_of(model, layers, files, config.quantized.double, place_of(config))


def layers_in_4_bits(model: Any, config: TextPolicyConfig, family: Family, stored: bool) -> dict[str, bool]:
    """The layers of a model without values that rest in 4 bits -> are their scales codes, too?

    stored: as the model's files say, where they are on this machine.
    """
    if stored and (files := files_in(weights_folder(config.model), "model", config.variant)):
        return find_stored_layers(model, files)
    parts = QuantizedSettings().parts if stored else config.quantized.parts
    return dict.fromkeys(layers_to_quantize(model, family, parts), config.quantized.double)


def layers_to_quantize(model: Any, family: Family, parts: Collection[str]) -> list[str]:
    """The linear layers of these parts, but for the head.

    Raises ValueError for a part without any, and for a model most of whose weights lie in no linear layer.
    """
    head, found = model.get_output_embeddings(), list[str]()
    for part in parts:
        inside = [
            name
            for name, module in model.named_modules()
            if type(module) is nn.Linear and module is not head and belongs(name, family, part)
        ]
        if not inside:
            raise ValueError(f"policy.quantized.parts holds {part!r}, where {model.config.model_type} has no linear layers")
        found += inside
    size = sum(model.get_submodule(name).weight.numel() for name in found)
    named = [(name, weight) for name, weight in model.named_parameters() if weight.ndim == EXPERTS]
    other = sum(weight.numel() for name, weight in named if any(belongs(name, family, part) for part in parts))
    if other > size:
        kind, share = model.config.model_type, other / (other + size)
        raise ValueError(
            f'policy.weights is "nf4", which reaches linear layers, and {share:.0%} of what {kind} would quantize lies in '
            "experts that are one tensor: take a dense model, or leave policy.weights out"
        )
    return found


def refuse_other_codes(model_config: object, config: TextPolicyConfig) -> None:
    """Raise ValueError for a checkpoint that is quantized otherwise than in NF4."""
    method = method_of(model_config)
    if method not in (None, NF4):
        raise ValueError(f"{place_of(config)} is quantized already, by {method}: take the original, or one in bitsandbytes' NF4")


def refuse_idle_codes(config: TextPolicyConfig) -> None:
    """Raise ValueError for a checkpoint in 4 bits whose weights would have to train, or that a server would read."""
    place = place_of(config)
    if config.lora is None:
        raise ValueError(f"{place} is stored in 4 bits, which do not train: add [policy.lora], whose adapters train beside them")
    if config.engine is not None:
        raise ValueError(f"{place} is stored in 4 bits, which vLLM cannot read: remove [policy.engine], or take the original")


def weights_folder(model: str) -> Path:
    """The folder of a model's files; of one on the hub, the folder of what was downloaded so far."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model, "config.json") if is_offline() else None
    return Path(found).parent if isinstance(found, str) else folder
