"""A generator's exported adapter as files that other programs read: diffusers, peft, or kohya's scripts and what reads theirs."""

import json
import re
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from mmrl.policies.flow.adapters import WEIGHTS
from mmrl.policies.flow.loading import describe
from mmrl.policies.flow.settings import FlowPolicyConfig

Form = Literal["diffusers", "peft", "kohya"]
LOAD = re.compile(r'^pipeline\.load_lora_weights\("(THIS_FOLDER\S*?)".*\)$')
"""How a card loads an adapter in the form diffusers, and in kohya's."""


def check_form(form: Form, policy: object, is_adapter: bool) -> None:
    """Raise ValueError where there is no adapter to write in another form, or the form does not know this kind of model."""
    if form == "diffusers":
        return
    if not is_adapter:
        raise ValueError(f"--form {form} is about adapters, and this export is a whole model: leave --form out")
    if not isinstance(policy, FlowPolicyConfig):
        raise ValueError(f"--form {form} is about image generators; adapters of text models are peft's anyway: leave --form out")
    _, index, kind = describe(policy)
    if not hasattr(getattr(import_module("diffusers"), index["_class_name"]), "load_lora_weights"):
        raise ValueError(
            f"--form {form} rewrites adapters that a pipeline loads, and {policy.model!r} leaves that to its transformer: leave "
            "--form out"
        )
    if form == "kohya" and kind.networks != ("unet",):
        raise ValueError(
            f"--form kohya writes the names of Stable Diffusion's UNet, which {policy.model!r} lacks: leave --form out, for "
            "ComfyUI and others read the adapters of newer models in the form diffusers"
        )


def rewrite(folder: Path, form: Form) -> None:
    """Replace each adapter file of diffusers in `folder`, and in the folder of a second network, by one in `form`."""
    for file in [*folder.glob(WEIGHTS), *folder.glob(f"*/{WEIGHTS}")]:
        weights, settings = read(file)
        network = next(iter(weights)).partition(".")[0]
        plain = {key.removeprefix(f"{network}."): weight for key, weight in weights.items()}
        if form == "peft":
            write_peft(file.parent, plain, {key.removeprefix(f"{network}."): value for key, value in settings.items()})
            file.unlink()
        elif form == "kohya":
            write_kohya(file, plain)


def read(file: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Weights and peft's settings, by names that begin with the network's."""
    from diffusers.loaders.lora_base import LORA_ADAPTER_METADATA_KEY
    from safetensors import safe_open
    from safetensors.torch import load_file

    with safe_open(file, "pt") as opened:
        return load_file(file), json.loads(opened.metadata()[LORA_ADAPTER_METADATA_KEY])


def write_peft(folder: Path, weights: Mapping[str, Tensor], settings: Mapping[str, Any]) -> None:
    """adapter_model.safetensors and adapter_config.json."""
    from peft import LoraConfig
    from safetensors.torch import save_file

    known = set(LoraConfig.__dataclass_fields__)
    LoraConfig(**{key: value for key, value in settings.items() if key in known}).save_pretrained(str(folder))
    save_file({f"base_model.model.{key}": weight for key, weight in weights.items()}, folder / "adapter_model.safetensors")


def write_kohya(file: Path, weights: Mapping[str, Tensor]) -> None:
    """The same file with kohya's names, and an alpha beside each layer."""
    from diffusers.utils.state_dict_utils import convert_state_dict_to_kohya
    from safetensors.torch import save_file

    found = convert_state_dict_to_kohya({f"unet.{key}": weight for key, weight in weights.items()})
    save_file({key: weight.contiguous() for key, weight in found.items()}, file, {"format": "pt"})


def in_form(code: Sequence[str], form: Form, folder: Path) -> list[str]:
    """A card's Python with the adapter in `folder`, which is still diffusers', loaded as it is loaded in this form."""
    if form != "peft":
        return list(code)
    first = next(iter(read(folder / WEIGHTS)[0])).partition(".")[0]

    def lines(text: str) -> list[str]:
        found = LOAD.match(text)
        if found is None:
            return [text]
        network = f"pipeline.{found[1].partition('/')[2] or first}"
        return ["from peft import PeftModel", f'{network} = PeftModel.from_pretrained({network}, "{found[1]}")']

    return [line for text in code for line in lines(text)]
