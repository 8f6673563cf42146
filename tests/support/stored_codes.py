"""Folders of models as other people quantize them: codes in bitsandbytes' layout in place of some weights."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file, save_file
from torch import Tensor

from mmrl.policies.shared.quantized.table import quantize, tensors_of


def store_codes(folder: str | Path, target: Path, pattern: str, double: bool = True) -> Path:
    """A copy of a model's folder whose weights of these names are stored in 4 bits."""
    shutil.copytree(folder, target)

    def put(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        out: dict[str, Tensor] = {}
        for name, weight in weights.items():
            small = re.search(pattern, name) and weight.ndim == 2
            out |= tensors_of(name, quantize(weight, double), weight.shape, weight.dtype) if small else {name: weight}
        return out

    change_weights(target, put)
    config = json.loads((target / "config.json").read_text())
    said = {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": double,
    }
    (target / "config.json").write_text(json.dumps({**config, "quantization_config": said}))
    return target


def change_weights(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    """Write the one file of weights in a folder again."""
    [file] = folder.glob("*.safetensors")
    save_file(change(load_file(file)), file, {"format": "pt"})
