"""A family made of the config files of its model alone, so that what does not fit is refused before weights are loaded."""

import math
from collections.abc import Mapping
from importlib import import_module
from inspect import Parameter, signature
from types import SimpleNamespace
from typing import Any, get_args, get_type_hints

from mmrl.policies.flow.families.base import FlowFamily, Index, Pipeline
from mmrl.policies.flow.families.clips import ratio
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.runtime.pretrained import REMEDY, numbers_in, readable, refuse_absurd_sizes

OF_A_BROKEN_CONFIG = (AttributeError, KeyError, TypeError, IndexError, ArithmeticError)
"""What arithmetic on a malformed config raises."""


def make_family(kind: type[FlowFamily], pipeline: Pipeline, config: FlowPolicyConfig) -> FlowFamily:
    """The family of a pipeline. Raises ValueError for settings, such as a picture size, that the model cannot take."""
    tokens = kind.usual_prompt_tokens if config.max_prompt_tokens is None else config.max_prompt_tokens
    return kind(pipeline, config.height, config.width, tokens, config)


def sketch_of(kind: type[FlowFamily], index: Index, config: FlowPolicyConfig) -> FlowFamily | None:
    """The family of a pipeline without weights, which knows its sizes; None where that takes more than config files.

    Raises:
        ValueError: settings, such as a picture size, that the model cannot take, or a config of a part that is damaged.
    """
    kind.refuse(index, config)
    try:
        names = ("vae", "scheduler", *kind.told_by, *kind.present(index))
        configs = {name: config_with_defaults(config.model, index, name) for name in names}
    except (OSError, ImportError):
        # A part without its config, or of a class that is not there: loading says which.
        return None
    try:
        # a scheduler's class says how it spaces its steps
        parts = {name: type(str(index[name][1]), (SimpleNamespace,), {})(config=own) for name, own in configs.items()}
        facts = SimpleNamespace(_name_or_path=config.model, **facts_of(index))
        pipeline = SimpleNamespace(**parts, config=facts, vae_scale_factor=scale_of(configs["vae"]))
        return make_family(kind, pipeline, config)
    except OF_A_BROKEN_CONFIG as error:
        if kind.__module__.startswith("mmrl."):
            raise ValueError(
                f"policy.model {config.model!r}: the configs of its parts do not make a {kind.__name__}: {REMEDY} "
                f"({type(error).__name__}: {error})"
            ) from error
        if isinstance(error, AttributeError | KeyError):
            # A user's own class may look at parts of its pipeline that are not here.
            return None
        raise


def config_with_defaults(model: str, index: Index, name: str) -> Any:
    """The config of a part that diffusers wrote, with the defaults of its class.

    Raises:
        OSError: one of them is missing.
        ValueError: a value that the class does not take.
    """
    library, class_name = index[name]
    cls = getattr(import_module(library), class_name, None)
    if cls is None:
        raise OSError(f"{library} has no class {class_name}")
    known = signature(cls.__init__).parameters.values()
    defaults = {one.name: one.default for one in known if one.default is not Parameter.empty}
    place = f"policy.model {model!r} ({name})"
    with readable(place, model):
        written: dict[str, Any] = dict(cls.load_config(model, subfolder=name))
    refuse_absurd_sizes(written, place)
    hints = get_type_hints(cls.__init__)
    for key, default in defaults.items():
        may_be_none = default is None or type(None) in get_args(hints.get(key))
        like = 1 if default is None and set(get_args(hints.get(key))) == {int, type(None)} else default
        if key in written and not (written[key] is None and may_be_none) and not is_like(like, written[key], key):
            raise ValueError(f"{place}: {key} in its config is {written[key]!r}, where its class has {default!r}: {REMEDY}")
    return import_module("diffusers.configuration_utils").FrozenDict({**defaults, **written})


def is_like(default: object, value: Any, key: str) -> bool:
    """May a class whose parameter has this default take this value? Counts and factors stay above 0, counts may be lists."""
    if isinstance(default, str):
        return isinstance(value, str | list | tuple)
    if isinstance(default, tuple | list) and default:
        return isinstance(value, list | tuple) and len(value) > 0 and (is_number(value) or not is_number(default))
    if not is_number(default) or (value == default and not isinstance(value, bool)):
        return True
    if isinstance(value, list | tuple) and (isinstance(default, float) or (isinstance(default, int) and not value)):
        return False
    may_be_0 = default == 0 or (isinstance(default, float) and "factor" not in key) or "layers" in key or "padding" in key
    return is_number(value) and all(math.isfinite(one) and (one > 0 or may_be_0) for one in numbers_in(value))


def is_number(value: object) -> bool:
    """Is it a number, or a list of nothing else?"""
    if isinstance(value, list | tuple):
        return all(map(is_number, value))
    return isinstance(value, int | float) and not isinstance(value, bool)


def facts_of(index: Index) -> dict[str, object]:
    """The plain values in a model_index.json, such as boundary_ratio."""
    return {name: value for name, value in index.items() if not isinstance(value, list) and not name.startswith("_")}


def scale_of(vae: Mapping[str, Any]) -> int:
    """Pixels per latent along one side, as the pipelines have it, of an autoencoder with this config; for sounds 1."""
    if "decoder_spatio_temporal_scaling" in vae:
        return ratio(vae, "spatial")
    for name in ("block_out_channels", "encoder_block_out_channels"):
        if channels := vae.get(name):
            return 2 ** (len(channels) - 1)
    return 1 if "sampling_rate" in vae else 2 ** len(vae["temperal_downsample"])
