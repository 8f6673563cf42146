"""A family made of the config files of its model alone, so that what does not fit is refused before weights are loaded."""

from collections.abc import Mapping
from importlib import import_module
from inspect import Parameter, signature
from types import SimpleNamespace
from typing import Any

from mmrl.policies.flow.families.base import FlowFamily, Index, Pipeline
from mmrl.policies.flow.families.known import FAMILIES
from mmrl.policies.flow.settings import FlowPolicyConfig


def make_family(kind: type[FlowFamily], pipeline: Pipeline, config: FlowPolicyConfig) -> FlowFamily:
    """The family of a pipeline. Raises ValueError for settings, such as a picture size, that the model cannot take."""
    tokens = kind.usual_prompt_tokens if config.max_prompt_tokens is None else config.max_prompt_tokens
    return kind(pipeline, config.height, config.width, tokens, config)


def sketch_of(kind: type[FlowFamily], index: Index, config: FlowPolicyConfig) -> FlowFamily | None:
    """The family of a pipeline without weights; None where that takes more than config files. ValueError for wrong settings."""
    kind.refuse(index, config)
    present = [name for name in kind.networks if index.get(name, [None, None]) != [None, None]]
    try:
        configs = {name: config_with_defaults(config.model, index, name) for name in ("vae", "scheduler", *present)}
        parts = {name: SimpleNamespace(config=own) for name, own in configs.items()}
        facts = SimpleNamespace(_name_or_path=config.model, **facts_of(index))
        pipeline = SimpleNamespace(**parts, config=facts, vae_scale_factor=scale_of(configs["vae"]))
        return make_family(kind, pipeline, config)
    except (OSError, ImportError):
        # A part without its config, or of a class that is not there: loading says which.
        return None
    except (AttributeError, KeyError):
        if kind in FAMILIES.values():
            raise
        # A class of one's own may look at more of its pipeline than there is here.
        return None


def config_with_defaults(model: str, index: Index, name: str) -> Any:
    """The config of a part that diffusers wrote, with the defaults of its class. Raises OSError where one of them is missing."""
    library, class_name = index[name]
    cls = getattr(import_module(library), class_name, None)
    if cls is None:
        raise OSError(f"{library} has no class {class_name}")
    defaults = {
        known.name: known.default for known in signature(cls.__init__).parameters.values() if known.default is not Parameter.empty
    }
    frozen = import_module("diffusers.configuration_utils").FrozenDict
    return frozen({**defaults, **cls.load_config(model, subfolder=name)})


def facts_of(index: Index) -> dict[str, object]:
    """The plain values in a model_index.json, such as boundary_ratio."""
    return {name: value for name, value in index.items() if not isinstance(value, list) and not name.startswith("_")}


def scale_of(vae: Mapping[str, Any]) -> int:
    """Pixels per latent along one side, as the pipelines have it, of an autoencoder with this config."""
    for name in ("block_out_channels", "encoder_block_out_channels"):
        if channels := vae.get(name):
            return 2 ** (len(channels) - 1)
    return 2 ** len(vae["temperal_downsample"])
