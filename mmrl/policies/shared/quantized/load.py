"""Models of transformers loaded tensor by tensor into 4 bits: the memory holds one weight in full, never the model."""

from collections.abc import Callable, Collection
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.auto import register_quantization_config, register_quantizer
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from mmrl.policies.shared.quantized.layer import SCALES_OF, Nf4Linear, nf4_layers, put_layers
from mmrl.policies.shared.quantized.table import quantize

NAME = "mmrl_nf4"
Choose = Callable[[nn.Module], Collection[str]]
"""The names of a model's linear layers that are to rest in 4 bits."""


@register_quantization_config(NAME)
class Nf4Settings(QuantizationConfigMixin):
    """What transformers hands to `Nf4Quantizer`."""

    def __init__(self, choose: Choose) -> None:
        super().__init__(quant_method=NAME)  # type: ignore[arg-type] - names that were registered are words
        self.choose = choose


class TakeCodes(ConversionOps):
    """A stored weight to the codes and scales that its layer keeps."""

    def convert(self, input_dict: dict[str, Any], *_: object, **__: object) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for name, value in input_dict.items():
            codes = quantize(value[0] if isinstance(value, list) else value)
            found[name] = nn.Parameter(codes.codes, requires_grad=False)
            found |= {f"{name.rpartition('.')[0]}.{one}": getattr(codes, one) for one in SCALES_OF}
        return found


@register_quantizer(NAME)
class Nf4Quantizer(HfQuantizer):
    """Asked by transformers while it loads: which layers are replaced before, and what becomes of their weights."""

    requires_calibration = False

    def _process_model_before_weight_loading(self, model: nn.Module, **_: object) -> None:
        put_layers(model, sorted(self.quantization_config.choose(model)))

    def param_needs_quantization(self, model: nn.Module, param_name: str, **_: object) -> bool:
        place, _, own = param_name.rpartition(".")
        return own == "weight" and isinstance(model.get_submodule(place), Nf4Linear)

    def get_quantize_ops(self) -> TakeCodes:
        return TakeCodes()

    def is_serializable(self) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return True


def cast_rest(model: nn.Module, dtype: torch.dtype) -> None:
    """Bring the weights that are not in 4 bits from the type they are stored in to another."""
    stored = getattr(model, "dtype", dtype)
    for weight in model.parameters():
        if weight.is_floating_point() and weight.dtype == stored:
            weight.data = weight.data.to(dtype)


def digest(model: nn.Module) -> str:
    """A hash of all codes and scales of a model, by which a run knows its base again."""
    found = sha256()
    for name, layer in nf4_layers(model):
        codes = layer.codes
        for part in (codes.codes, codes.scales, codes.units, codes.offset):
            found.update(name.encode())
            found.update(part.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()
