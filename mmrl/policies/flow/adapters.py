"""LoRA adapters of a pipeline's networks: new ones, saved ones, files that diffusers loads, and those of teachers."""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from mmrl.policies.flow.families.base import FlowFamily, Pipeline, networks_of
from mmrl.policies.flow.host import FlowHost
from mmrl.policies.flow.settings import TeacherSettings
from mmrl.policies.flow.trace import FlowTrace
from mmrl.policies.shared.lora import (
    ADAPTER,
    KEY,
    PEFT_CONFIG,
    LoraSettings,
    adapter_layers,
    check_adapter_folder,
    check_adapter_weights,
    lora_config,
    refuse_dropout,
    warn_of_idle_settings,
    with_adapter,
)
from mmrl.policies.shared.teachers import TEACHER, adapter_of, beside_the_trained
from mmrl.policies.shared.weights import whole
from mmrl.runtime.pretrained import readable, refuse_other_keys

WEIGHTS = "pytorch_lora_weights.safetensors"
"""How diffusers names an adapter's file."""
KOHYA = ("lora_unet_", "lora_transformer_", "lora_te")
"""What names of weights begin with as kohya's scripts write them."""


def add_adapter(pipeline: Pipeline, family: type[FlowFamily], lora: LoraSettings, name: str) -> None:
    """Put LoRA layers into the pipeline's network `name`, new ones or those in `lora.adapter`; only they train.

    Raises FileNotFoundError for an adapter that is not there, ValueError for one that is broken, not whole or of another model.
    """
    network = adaptable(getattr(pipeline, name))
    if lora.adapter is not None:
        load_adapter(pipeline, family, lora.adapter, name)
        warn_of_idle_settings(lora, network.peft_config[ADAPTER])
    else:
        targets = family.lora_targets if lora.targets == "auto" else lora.targets
        network.add_adapter(lora_config(lora, targets, network, start="gaussian"))
    for key, weight in network.named_parameters():
        if "lora_" in key:
            weight.data = weight.data.float()
            weight.requires_grad_(True)
    network.eval()


def adaptable(network: Any) -> Any:
    """The network, whose class is given diffusers' methods of adapters where it lacks them, as Stable Audio 3's does."""
    if not hasattr(network, "add_adapter"):
        from diffusers.loaders.peft import PeftAdapterMixin

        kind = type(network)
        network.__class__ = type(kind.__name__, (kind, PeftAdapterMixin), {"__module__": kind.__module__})
    return network


def load_adapter(
    pipeline: Pipeline, family: type[FlowFamily], place: str, name: str, adapter: str = ADAPTER, key: str = KEY
) -> None:
    """Load the adapter of one network, by the pipeline's own loader where it has one; all but the first have their own folder."""
    network = getattr(pipeline, name)
    file = adapter_file(place, "" if name == family.networks[0] else name, key)
    by_pipeline, about = hasattr(pipeline, "load_lora_weights"), f"{key} {place!r}"
    try:
        with readable(about, file):
            saved, more = weights_in(pipeline, family, file) if by_pipeline else (load_file(file), [])
        if more:
            raise ValueError(
                f"{about} has {len(more)} weights for other parts of the pipeline than {name} ({more[0]}), which do not train "
                "and would not be saved: leave them out of the file, or merge it into the pipeline (fuse_lora), and name that as "
                "policy.model"
            )
        with readable(about, file):
            if by_pipeline:
                further = {} if name == family.networks[0] else {f"load_into_{name}": True}
                pipeline.load_lora_weights(str(file), adapter_name=adapter, **further)
            else:
                network.load_lora_adapter(str(file), prefix=None, adapter_name=adapter, use_safetensors=True)
        check_adapter(network, saved, place, adapter, key)
    except ValueError as error:
        if not any(own.startswith(KOHYA) for own in names_in(file)):
            raise
        raise ValueError(
            f"{about} has kohya's names, of which diffusers reads those of Stable Diffusion and some others: give the "
            f"adapter as pipeline.save_lora_weights writes it ({error})"
        ) from error


def adapter_file(place: str, folder: str = "", key: str = KEY) -> Path:
    """The .safetensors file of an adapter of diffusers: `place` itself, or the one in it, or in its folder for a second network.

    Raises FileNotFoundError where there is none, ValueError where there are several, or files of another library.
    """
    top = Path(place).expanduser()
    if not top.is_file():
        check_adapter_folder(place, key)
    where = top / folder
    if folder and not where.is_dir():
        raise FileNotFoundError(
            f"{key} {place!r} has no folder {folder!r}, where the adapter of the model's second network lies: name "
            "a folder that mmrl saved for this model"
        )
    found = [where] if where.is_file() else sorted(where.glob(WEIGHTS)) or sorted(where.glob("*.safetensors"))
    if found and (found[0].parent / PEFT_CONFIG).is_file():
        raise ValueError(
            f"{key} {place!r} is of peft, and generators take diffusers' adapters: leave --form peft out of mmrl export"
        )
    if len(found) != 1 or found[0].suffix != ".safetensors":
        raise ValueError(f"{key} {place!r} holds {len(found)} .safetensors files, and an adapter is one: name that file")
    return found[0]


def names_in(file: Path) -> list[str]:
    """The names of the weights in a file; none of a broken one."""
    with suppress(SafetensorError), safe_open(file, "pt") as saved:
        return list(saved.keys())
    return []


def weights_in(pipeline: Pipeline, family: type[FlowFamily], file: Path) -> tuple[dict[str, Tensor], list[str]]:
    """The weights in a file that diffusers' loaders read, by their names in the network; the names of those for other parts."""
    from diffusers.utils.state_dict_utils import convert_unet_state_dict_to_peft

    prefix = family.networks[0]
    others = tuple(f"{name}." for name in pipeline.components if name != prefix)
    read: Any = pipeline.lora_state_dict(str(file))
    # Stable Diffusion's loader returns the scales of foreign files along with the weights.
    weights: dict[str, Tensor] = read[0] if isinstance(read, tuple) else read
    more = sorted(name for name in weights if name.startswith(others))
    own = {name.removeprefix(f"{prefix}."): value for name, value in weights.items() if name not in more}
    return own if any("lora_A" in name for name in own) else convert_unet_state_dict_to_peft(own), more


def check_adapter(network: nn.Module, saved: Mapping[str, Tensor], folder: str, name: str, key: str) -> None:
    """Raise ValueError unless the adapter was made without dropout and all its weights were `saved` in `folder`."""
    from peft.tuners.tuners_utils import check_target_module_exists
    from peft.utils import get_peft_model_state_dict

    adapter = getattr(network, "peft_config", {}).get(name)
    if adapter is None:
        raise ValueError(f"{key} {folder!r} holds no weights for the transformer: name the adapter of an image generator")
    refuse_dropout(folder, adapter, key)
    check_adapter_weights(folder, saved, get_peft_model_state_dict(network, adapter_name=name), key)
    plain = [place for place, module in network.named_modules() if not hasattr(module, "lora_A")]
    bare = [place for place in plain if check_target_module_exists(adapter, place)]
    refuse_other_keys(bare, (), (), f"{key} {folder!r}", "LoRA adapter of this model")


def save_adapter(pipeline: Pipeline, networks: Mapping[str, nn.Module], folder: Path, is_main: bool) -> None:
    """Write adapters as diffusers loads them: load_lora_weights, or a network's load_lora_adapter. Every process must call it."""
    from peft.utils import get_peft_model_state_dict

    first = next(iter(networks))
    for name, network in networks.items():
        weights = {key: whole(weight) for key, weight in network.state_dict(keep_vars=True).items() if "lora_" in key}
        if is_main:
            peft: Any = network
            own = fold_scale(network, get_peft_model_state_dict(peft, state_dict=weights))
            write(pipeline, first, folder if name == first else folder / name, own, settings_of(peft.peft_config[ADAPTER]))


def fold_scale(network: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights with each layer's scale in its B, so that programs that know of no scale apply the adapter in full."""

    def scale(key: str) -> float:
        layer: Any = network.get_submodule(key.rpartition(".lora_B")[0])
        return float(layer.scaling[ADAPTER])

    return {key: weight * scale(key) if ".lora_B" in key else weight for key, weight in weights.items()}


def settings_of(config: Any) -> dict[str, object]:
    """peft's settings of an adapter whose scale is folded into its weights."""
    return {**config.to_dict(), "lora_alpha": config.r, "alpha_pattern": dict(config.rank_pattern), "use_rslora": False}


def write(pipeline: Pipeline, name: str, folder: Path, weights: Mapping[str, Tensor], settings: Mapping[str, object]) -> None:
    """Write the adapter of the network `name`, with peft's settings of it."""
    if hasattr(pipeline, "save_lora_weights"):
        given = {f"{name}_lora_layers": weights, f"{name}_lora_adapter_metadata": settings}
        type(pipeline).save_lora_weights(folder, **given)
        return
    from diffusers.loaders.lora_base import LoraBaseMixin

    folder.mkdir(parents=True, exist_ok=True)  # where a file stands, diffusers would only log it
    whole_layers = {key: value.contiguous() for key, value in weights.items()}
    plain = {key: sorted(value) if isinstance(value, set) else value for key, value in settings.items()}
    writer: Any = LoraBaseMixin
    writer.write_lora_layers(whole_layers, str(folder), True, WEIGHTS, None, True, plain)


Read = Callable[[Bool[Tensor, "n t"], float | None], dict[str, Tensor]]
"""Quantities of the actions in a mask, under the adapter that is active, with a guidance."""


def add_teachers(pipeline: Pipeline, family: type[FlowFamily], teachers: Sequence[TeacherSettings]) -> None:
    """Load the adapters of teachers, in float32 and frozen, beside the one that trains, which stays the active one.

    Raises FileNotFoundError for an adapter that is not there, ValueError for one that is broken, not whole or of another model.
    """
    if not teachers:
        return
    for name, network in networks_of(pipeline, family).items():
        with beside_the_trained(network):
            for number, one in enumerate(teachers):
                load_adapter(pipeline, family, one.adapter, name, adapter_of(number), f"policy.teachers.{number}.adapter")


def teacher_bytes(teachers: Sequence[TeacherSettings], networks: Sequence[str]) -> int:
    """Bytes that the adapters of teachers take in memory, read from their files' headers; `networks` are those that train.

    Raises FileNotFoundError for an adapter that is not there.
    """
    total = 0
    for number, one in enumerate(teachers):
        key = f"policy.teachers.{number}.adapter"
        for file in (adapter_file(one.adapter, "" if name == networks[0] else name, key) for name in networks):
            with readable(f"{key} {one.adapter!r}", str(file)), safe_open(file, "pt") as saved:
                shapes = [saved.get_slice(name).get_shape() for name in saved.keys()]  # noqa: SIM118 - it is no mapping
            total += 4 * sum(map(math.prod, shapes))
    return total


def read_teachers(
    host: FlowHost, trace: FlowTrace, mask: Bool[Tensor, "n t"], guidance: float | None, read: Read
) -> dict[str, Tensor]:
    """Quantities under the teacher of every row, with its own guidance or else this one; without a gradient.

    Each teacher is for the prompts that name it (DiffusionOPD, arXiv:2605.15055).

    Raises ValueError for rows without a teacher.
    """
    if bool((mask.any(1) & (trace.teachers < 0)).any()):
        raise ValueError(f"rows are read under the model {TEACHER!r}, and prompts of theirs name none of policy.teachers")
    layers, found = adapter_layers(host.net.modules()), dict[str, Tensor]()
    for number, one in enumerate(host.config.teachers):
        # Every process reads under every teacher, whether or not it has rows of it.
        with with_adapter(layers, adapter_of(number)), torch.no_grad():
            own = read(mask & (trace.teachers == number)[:, None], guidance if one.guidance is None else one.guidance)
        found = {name: found[name] + value if name in found else value for name, value in own.items()}
    return found
