"""The model that a server of [policy.engine] reads, beside which the policy's adapters are put."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mmrl.policies.shared.quantized.stored import method_of
from mmrl.policies.text.families import family_of, model_class
from mmrl.policies.text.in_4_bits import layers_to_quantize, place_of, recipe_for, refuse_idle_codes, refuse_other_codes
from mmrl.policies.text.loading import load_config
from mmrl.policies.text.settings import TextPolicyConfig


def server_model(config: TextPolicyConfig, make: bool = True) -> str:
    """The folder or hub name; beside 4 bits a folder in mmrl's cache of the numbers that the codes stand for, as vLLM reads none.

    Its name has a hash of the model's files and of what was rounded, so that a server which has another is seen.
    Without `make` it is named only. Raises ValueError where the model's files do not allow it, or the cache cannot take it.
    """
    if config.weights == "float" and not Path(config.model).is_dir():
        return config.model
    model_config = load_config(config)
    refuse_other_codes(model_config, config)
    if method_of(model_config) is not None:
        refuse_idle_codes(config)
    if config.weights == "float":
        return config.model
    place = place_of(config)
    with torch.device("meta"):
        model: Any = model_class(model_config).from_config(model_config, trust_remote_code=config.trust_remote_code)
    recipe = recipe_for(config, model, layers_to_quantize(model, family_of(model_config), config.quantized.parts))
    if recipe is None:
        raise ValueError(
            f"{place} has files or code of its own that do not allow to write what 4 bits stand for, which the server of "
            "[policy.engine] would read: remove one of the two"
        )
    recipe = replace(recipe, whole=getattr(torch, config.dtype))
    try:
        return str(recipe.make() if make else recipe.entry())
    except OSError as error:
        raise ValueError(
            f"the server of [policy.engine] reads what the 4 bits of {place} stand for, and mmrl's cache cannot take it "
            f"({error}): make room, or set MMRL_CACHE to a folder elsewhere"
        ) from None
