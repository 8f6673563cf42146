"""Models of transformers loaded tensor by tensor into 4 bits: the memory holds one weight in full, never the model."""

from collections.abc import Callable, Collection
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.policies.shared.quantized.layer import SCALES_OF, Nf4Linear, put_layers
from mmrl.policies.shared.quantized.table import quantize

NAME = "mmrl_nf4"


def nf4_settings(names: Collection[str]) -> object:
    """The `quantization_config` with which transformers loads these linear layers of a model into 4 bits."""
    return settings_class()(sorted(names))


@cache
def settings_class() -> Callable[[list[str]], object]:
    """The class of settings, after transformers was given it and the quantizer that it stands for."""
    from transformers.core_model_loading import ConversionOps
    from transformers.quantizers.auto import register_quantization_config, register_quantizer
    from transformers.quantizers.base import HfQuantizer
    from transformers.utils.quantization_config import QuantizationConfigMixin

    class Settings(QuantizationConfigMixin):
        def __init__(self, names: list[str]) -> None:
            super().__init__(quant_method=NAME)  # type: ignore[arg-type] - names that were registered are words
            self.names = names

    class TakeCodes(ConversionOps):
        def convert(self, input_dict: dict[str, Any], *_: object, **__: object) -> dict[str, Any]:
            return {key: value for name, weight in input_dict.items() for key, value in codes_by_name(name, weight).items()}

    class Quantizer(HfQuantizer):
        requires_calibration = False

        def _process_model_before_weight_loading(self, model: nn.Module, **_: object) -> None:
            settings = self.quantization_config
            assert isinstance(settings, Settings)
            put_layers(model, settings.names)

        def param_needs_quantization(self, model: nn.Module, param_name: str, **more: object) -> bool:
            place, _, own = param_name.rpartition(".")
            return own == "weight" and isinstance(model.get_submodule(place), Nf4Linear)

        def get_quantize_ops(self) -> TakeCodes:
            return TakeCodes()

        def is_serializable(self) -> None:
            """It is not."""

        @property
        def is_trainable(self) -> None:
            """Asked by trainers of transformers alone."""

    register_quantization_config(NAME)(Settings)
    register_quantizer(NAME)(Quantizer)
    return Settings


def codes_by_name(name: str, weight: Tensor | list[Tensor]) -> dict[str, Tensor]:
    """The codes and scales that a layer keeps of its stored weight, by their names in the model."""
    codes = quantize(weight[0] if isinstance(weight, list) else weight)
    place = name.rpartition(".")[0]
    return {
        name: nn.Parameter(codes.codes, requires_grad=False),
        **{f"{place}.{one}": getattr(codes, one) for one in SCALES_OF},
    }


def cast_rest(model: nn.Module, dtype: torch.dtype) -> None:
    """Bring the weights that are not in 4 bits from the type they are stored in to another."""
    stored = getattr(model, "dtype", dtype)
    for weight in model.parameters():
        if weight.is_floating_point() and weight.dtype == stored:
            weight.data = weight.data.to(dtype)
