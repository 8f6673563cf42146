"""Models loaded tensor by tensor into 4 bits: the memory holds one weight in full, never the model.

Those of transformers are loaded by transformers, networks of diffusers from their files.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.shared.quantized.kept import CodesRecipe, description
from mmrl.policies.shared.quantized.layer import SCALES_OF, Nf4Linear, nf4_layers, put_layers, set_kernels
from mmrl.policies.shared.quantized.table import (
    NETWORK,
    PARTS,
    Codes,
    Read,
    facts_of_weight,
    files_in,
    is_part,
    quantize,
    read_codes,
    tensors_in,
    weights_in,
)
from mmrl.runtime.pretrained import REMEDY, load_whole, refuse_non_finite, refuse_other_keys

Found = Tensor | list[Tensor]
"""As transformers hands over what it found under a name."""
NAME = "mmrl_nf4"
SERIALIZED = {"weight": ["weight", *(f"weight{part}" for part in PARTS)]}
"""What transformers finds of a weight in files -> the weight."""


@cache
def settings_class() -> Callable[[list[str], bool, bool], object]:
    """The class of `quantization_config`, after transformers was given it and the quantizer that it stands for.

    Of it: linear layers to load into 4 bits, whether their scales are codes, and whether the files hold codes already.
    """
    from transformers.quantizers.auto import register_quantization_config, register_quantizer
    from transformers.quantizers.base import HfQuantizer
    from transformers.utils.quantization_config import QuantizationConfigMixin

    class Settings(QuantizationConfigMixin):
        def __init__(self, names: list[str], double: bool, stored: bool) -> None:
            super().__init__(quant_method=NAME)  # type: ignore[arg-type] - names that were registered are words
            self.names, self.double, self.stored = names, double, stored

    take_codes, take_stored = operations()

    class Quantizer(HfQuantizer):
        requires_calibration = False
        serialized_names = SERIALIZED

        def __init__(self, quantization_config: Settings, **settings: object) -> None:
            super().__init__(quantization_config, **settings)
            self.pre_quantized = quantization_config.stored

        def get_load_operations(self) -> dict[str, object]:
            return {"deserialize": take_stored}

        def _process_model_before_weight_loading(
            self, model: nn.Module, checkpoint_files: Sequence[str] = (), **_: object
        ) -> None:
            settings = self.quantization_config
            assert isinstance(settings, Settings)
            if settings.stored:
                put_stored(model, find_stored_layers(model, checkpoint_files))
            else:
                put_layers(model, settings.names, settings.double)

        def param_needs_quantization(self, model: nn.Module, param_name: str, **more: object) -> bool:
            place, _, own = param_name.rpartition(".")
            return own == "weight" and isinstance(model.get_submodule(place), Nf4Linear)

        def get_quantize_ops(self) -> object:
            assert isinstance(self.quantization_config, Settings)
            return take_codes(self.quantization_config.double)

        def is_serializable(self) -> None:
            """It is not."""

        @property
        def is_trainable(self) -> None:
            """Asked by trainers of transformers alone."""

    register_quantization_config(NAME)(Settings)
    register_quantizer(NAME)(Quantizer)
    return Settings


@cache
def operations() -> tuple[Callable[[bool], object], Callable[[object], object]]:
    """The two things that transformers may do with a weight as it loads: make its codes, or take those in the files."""
    from transformers.core_model_loading import ConversionOps

    class TakeCodes(ConversionOps):
        def __init__(self, double: bool) -> None:
            self.double = double

        def convert(self, input_dict: dict[str, Found], *_: object, **__: object) -> Any:
            return {
                key: value
                for name, weight in input_dict.items()
                for key, value in with_scales(name, quantize(first(weight), self.double)).items()
            }

    class TakeStored(ConversionOps):
        def __init__(self, hf_quantizer: object) -> None:
            # transformers leaves the types of tensors alone where an operation has this
            self.hf_quantizer = hf_quantizer

        def convert(self, input_dict: dict[str, Found], *_: object, full_layer_name: str, **__: object) -> Any:
            if len(input_dict) == 1:
                return input_dict
            read = {
                f"{full_layer_name}{key.removeprefix('weight')}": lambda _, found=found: first(found)
                for key, found in input_dict.items()
            }
            return with_scales(full_layer_name, read_codes(full_layer_name, read))

    return TakeCodes, TakeStored


def first(weight: Found) -> Tensor:
    """The one tensor."""
    return weight[0] if isinstance(weight, list) else weight


def with_scales(name: str, codes: Codes) -> dict[str, Tensor]:
    """Codes and scales by their names in the model."""
    place = name.rpartition(".")[0]
    held = nn.Parameter(codes.codes.view(torch.int8), requires_grad=False)
    return {name: held, **{f"{place}.{one}": getattr(codes, one) for one in SCALES_OF}}


def plain_config(config: Any) -> Any:
    """A model's config of transformers without what it says about how its files are quantized."""
    for one in (config, config.get_text_config(decoder=True)):
        if getattr(one, "quantization_config", None) is not None:
            del one.quantization_config
    return config


def find_stored_layers(model: Any, files: Iterable[Path | str]) -> dict[str, bool]:
    """The layers of a model of transformers that its files hold in 4 bits -> are their scales codes, too?

    Every weight's scales are looked at: ValueError names the tensor that is not as it should be.
    """
    read, found = tensors_in(files), dict[str, bool]()
    for name, (key, _) in names_in(model, weights_in(read)).items():
        refuse_other_shape(name, read, model, key)
        found[key.removesuffix(".weight")] = not read_codes(name, read).scales.is_floating_point()
    return found


def refuse_other_shape(name: str, read: Mapping[str, Read], model: nn.Module, key: str) -> None:
    """Raise ValueError for a stored weight of another shape than the model's: its codes may be as many, in another order."""
    shape, _ = facts_of_weight(name, read)
    layer = dict(model.named_modules()).get(key.removesuffix(".weight"))
    if isinstance(layer, nn.Linear) and tuple(shape) != (layer.out_features, layer.in_features):
        raise ValueError(
            f"{name} is stored as {shape[0]} x {shape[1]} weights in 4 bits, and the model's is {layer.out_features} x "
            f"{layer.in_features}: {REMEDY}"
        )


def names_in(model: Any, names: Iterable[str]) -> dict[str, tuple[str, bool]]:
    """Name of a weight in files -> its name in a model of transformers, and whether it is only renamed."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    changes = get_model_conversion_mapping(model)
    renamings = [change for change in changes if isinstance(change, WeightRenaming)]
    converters = [change for change in changes if isinstance(change, WeightConverter)]
    own, found = model.state_dict(), dict[str, tuple[str, bool]]()
    for name in names:
        key, converter = rename_source_key(name, renamings, converters, model.base_model_prefix, own)
        found[name] = key, converter is None
    return found


def checkpoint_names(model: Any, names: Iterable[str]) -> dict[str, str]:
    """Name of a weight in the model -> its name in the files, where transformers only renames it."""
    return {key: name for name, (key, is_renamed) in names_in(model, names).items() if is_renamed}


def recipe_of(model: Any, layers: Collection[str], files: Sequence[Path], double: bool, place: str) -> CodesRecipe | None:
    """The recipe for a folder of a model of transformers, given on the meta device, with these layers in 4 bits.

    None where its files do not allow it: pickles, or weights that are joined as they load.
    """
    if not files or not isinstance(model.config.dtype, torch.dtype):
        return None
    names = checkpoint_names(model, tensors_in(files))
    small = {names.get(f"{layer}.weight") for layer in layers}
    known = {name for name in small if name is not None}
    return CodesRecipe(files, known, double, description(double, model, layers), place) if len(known) == len(layers) else None


def put_stored(model: nn.Module, layers: dict[str, bool]) -> None:
    """Put layers without values where a model's files hold codes; ValueError where the model has no linear layer."""
    for name in layers:
        if not isinstance(dict(model.named_modules()).get(name), nn.Linear):
            raise ValueError(
                f"{name}.weight is stored in 4 bits, and the model has no linear layer {name}: take another folder of it"
            )
    for double in (True, False):
        put_layers(model, [name for name, own in layers.items() if own == double], double)


def linear_names(model: nn.Module) -> list[str]:
    """The linear layers of a network, but for its head and for those that its class keeps in float32."""
    find: Callable[[], object] | None = getattr(model, "get_output_embeddings", None)
    head = None if find is None else find()
    kept = getattr(model, "_keep_in_fp32_modules", None) or () if hasattr(model, "load_config") else ()
    linear = (name for name, module in model.named_modules() if type(module) is nn.Linear and module is not head)
    return [name for name in linear if not set(kept) & set(name.split("."))]


@torch.no_grad()
def load_network(kind: Any, folder: Path, files: Iterable[Path], dtype: torch.dtype, double: bool, place: str) -> nn.Module:
    """A network of diffusers whose linear layers rest in 4 bits, the others in `dtype`: one tensor is read at a time.

    Codes in the files are taken as they are. Raises ValueError where tensors are missing, not known, misshapen or not finite.
    """
    from accelerate import init_empty_weights

    config = dict(kind.load_config(folder))
    config.pop("quantization_config", None)
    with init_empty_weights():
        model = kind.from_config(config)
    read = tensors_in(files)
    if not weights_in(read):
        names = [f"{name}.weight" for name in linear_names(model)]
        recipe = CodesRecipe([*files], {name for name in names if name in read}, double, description(double), place, NETWORK)
        kept = recipe.folder()
        read = read if kept is None else tensors_in(files_in(kept, NETWORK))
    for name in weights_in(read):
        refuse_other_shape(name, read, model, name)
    in_codes = {name.removesuffix(".weight"): f"{name}.nested_absmax" in read for name in weights_in(read)}
    put_stored(model, in_codes or dict.fromkeys(linear_names(model), double))
    own, wide = dict(model.named_parameters()) | dict(model.named_buffers()), set(kind._keep_in_fp32_modules or ())
    layers = {f"{name}.weight": module for name, module in model.named_modules() if isinstance(module, Nf4Linear)}
    beside = {f"{name.removesuffix('weight')}{one}" for name in layers for one in SCALES_OF}
    found = {name for name in read if not is_part(name)}
    wanted = model.state_dict().keys() - beside
    odd, wrong = found - wanted, list[str]()
    for name in sorted(found & wanted):
        if name in layers and in_codes:
            layers[name].take(read_codes(name, read))
            continue
        value = read[name](name)
        shape = (layers[name].out_features, layers[name].in_features) if name in layers else own[name].shape
        if tuple(value.shape) != tuple(shape):
            wrong.append(name)
            continue
        refuse_non_finite([(name, value)], place)
        if name in layers:
            layers[name].take(quantize(value, double))
        else:
            put(model, name, value.to(torch.float32 if wide & set(name.split(".")) else dtype))
    refuse_other_keys(wanted - found, odd, wrong, place, kind.__name__)
    model.register_to_config(_name_or_path=str(folder))
    return model.eval()


def put(model: nn.Module, name: str, value: Tensor) -> None:
    """Give a network a weight or a table."""
    parent, _, own = name.rpartition(".")
    module = model.get_submodule(parent)
    if own in module._parameters:
        value = nn.Parameter(value, requires_grad=False)
    setattr(module, own, value)


@dataclass(frozen=True)
class Quantized:
    """Which weights rest in 4 bits with `policy.weights = "nf4"`, and how."""

    parts: tuple[str, ...]
    double: bool = True
    """Scales of 64 weights rest in 8 bits: 0.516 bytes a weight. False: in float32, 0.5625 bytes a weight."""
    kernels: Literal["equal", "fast"] = "equal"
    """equal: one way to compute for sampling and reading. fast: bitsandbytes' own on a GPU (`pip install "mmrl[quantized]"`),
    which differ with the number of rows: old log-probabilities are read again, and ratios corrected, as with policy.engine."""


def load_in_codes(
    load: Callable[..., Any],
    source: tuple[str, str],
    names: Collection[str],
    quantized: Quantized,
    recipe: CodesRecipe | None,
    dtype: torch.dtype,
    **settings: object,
) -> Any:
    """A model of transformers with these linear layers in 4 bits, or without `names` those that its files hold as codes.

    Args:
        source: the model's folder or hub name, and its place in errors.
        recipe: of codes that are made once and kept in mmrl's cache; None: they are made now, or are in the files.
        dtype: of what does not rest in 4 bits.
    """
    kept, (folder, place) = None if recipe is None else recipe.folder(), source
    if kept is not None:
        settings.pop("variant", None)
    how = settings_class()([] if kept else sorted(names), quantized.double, not names or kept is not None)
    model = load_whole(load, str(kept or folder), place, quantization_config=how, dtype="auto", **settings)
    refuse_non_finite(((f"{name}.weight", layer.offset) for name, layer in nf4_layers(model)), place)
    stored = model.dtype
    for weight in model.parameters():
        if weight.is_floating_point() and weight.dtype == stored:
            weight.data = weight.data.to(dtype)
    set_kernels(model, quantized.kernels)
    return model


def refuse_idle(weights: str, quantized: Quantized, usual: Quantized, lora: LoraSettings | None) -> None:
    """Raise ValueError for [policy.quantized] beside weights as they are, without a part, and for 4 bits without adapters."""
    if weights == "float":
        if quantized != usual:
            raise ValueError('policy.quantized acts with policy.weights = "nf4" alone: set that, or remove the table')
        return
    if not quantized.parts:
        raise ValueError(f"policy.quantized.parts is empty: name {' or '.join(usual.parts)}, or leave policy.weights out")
    if lora is None:
        raise ValueError(
            'policy.weights is "nf4", and weights in 4 bits do not train: add [policy.lora], whose adapters train beside them'
        )
