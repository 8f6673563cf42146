"""Models of transformers loaded tensor by tensor into 4 bits: the memory holds one weight in full, never the model."""

from collections.abc import Collection
from typing import Any

import torch
from torch import nn
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from mmrl.policies.shared.quantized.layer import SCALES_OF, Nf4Linear, put_layers
from mmrl.policies.shared.quantized.table import quantize

NAME = "mmrl_nf4"


class Nf4Settings(QuantizationConfigMixin):
    """What transformers hands to `Nf4Quantizer`."""

    def __init__(self, names: Collection[str]) -> None:
        """`names`: the linear layers that are to rest in 4 bits."""
        super().__init__(quant_method=NAME)  # type: ignore[arg-type] - names that were registered are words
        self.names = sorted(names)


class TakeCodes(ConversionOps):
    """A stored weight to the codes and scales that its layer keeps."""

    def convert(self, input_dict: dict[str, Any], *_: object, **__: object) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in input_dict.items():
            codes = quantize(value[0] if isinstance(value, list) else value)
            found[name] = nn.Parameter(codes.codes, requires_grad=False)
            found |= {f"{name.rpartition('.')[0]}.{one}": getattr(codes, one) for one in SCALES_OF}
        return found


class Nf4Quantizer(HfQuantizer):
    """Asked by transformers while it loads: which layers are replaced before, and what becomes of their weights."""

    requires_calibration = False

    def _process_model_before_weight_loading(self, model: nn.Module, **_: object) -> None:
        settings = self.quantization_config
        assert isinstance(settings, Nf4Settings)
        put_layers(model, settings.names)

    def param_needs_quantization(self, model: nn.Module, param_name: str, **more: object) -> bool:
        place, _, own = param_name.rpartition(".")
        return own == "weight" and isinstance(model.get_submodule(place), Nf4Linear)

    def get_quantize_ops(self) -> TakeCodes:
        return TakeCodes()

    def is_serializable(self) -> Any:
        return False

    @property
    def is_trainable(self) -> Any:
        return True


register_quantization_config(NAME)(Nf4Settings)
register_quantizer(NAME)(Nf4Quantizer)


def cast_rest(model: nn.Module, dtype: torch.dtype) -> None:
    """Bring the weights that are not in 4 bits from the type they are stored in to another."""
    stored = getattr(model, "dtype", dtype)
    for weight in model.parameters():
        if weight.is_floating_point() and weight.dtype == stored:
            weight.data = weight.data.to(dtype)
