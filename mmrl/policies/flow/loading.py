"""From a folder or hub name to a pipeline that is ready to train, and back to files that diffusers loads."""

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.core.offline import check_hub, offline_note
from mmrl.core.pretrained import load_whole, readable, refuse_other_keys
from mmrl.policies.flow.families.base import FlowFamily
from mmrl.policies.flow.families.flux import Flux
from mmrl.policies.flow.families.qwen_image import QwenImage
from mmrl.policies.flow.families.sd3 import StableDiffusion3
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.shared.lora import (
    ADAPTER,
    LoraSettings,
    casting_layers,
    check_adapter_folder,
    check_adapter_weights,
    lora_config,
    refuse_dropout,
    switch_casts,
    warn_of_idle_settings,
)
from mmrl.policies.shared.weights import whole

FAMILIES: dict[str, type[FlowFamily]] = {
    "StableDiffusion3Pipeline": StableDiffusion3,
    "FluxPipeline": Flux,
    "QwenImagePipeline": QwenImage,
}
"""Class of a diffusers pipeline -> its family."""
Index = dict[str, Any]
"""A pipeline's model_index.json."""
LIBRARIES = ("diffusers", "transformers")
"""The libraries that the parts of a pipeline may come from."""
SCHEDULER = "FlowMatchEulerDiscreteScheduler"


def load(config: FlowPolicyConfig) -> FlowFamily:
    """The pipeline, with what trains trainable and everything else frozen.

    Raises:
        FileNotFoundError: no such folder, hub model or adapter.
        ValueError: a pipeline that is no flow-matching one known here, whose checkpoint is broken or not whole, or a picture
            size it cannot draw.
    """
    check_attention_backend(config.attention_backend)
    index = load_index(config.model)
    kind = FAMILIES[index["_class_name"]]
    pipeline = load_pipeline(config, index)
    for part in parts_of(pipeline):
        part.requires_grad_(False)
        part.eval()
    add_trainable(pipeline, kind, config.lora)
    switch_casts(casting_layers(pipeline.transformer.modules()), on=config.dtype == "float32")
    if config.gradient_checkpointing:
        pipeline.transformer.enable_gradient_checkpointing()
    if config.attention_backend is not None:
        set_attention_backend(pipeline, config.attention_backend)
    if config.vae_slicing:
        pipeline.vae.enable_slicing()
    if config.vae_tiling:
        pipeline.vae.enable_tiling()
    tokens = kind.usual_prompt_tokens if config.max_prompt_tokens is None else config.max_prompt_tokens
    return kind(pipeline, config.height, config.width, tokens)


def load_pipeline(config: FlowPolicyConfig, index: Index) -> Any:
    """The pipeline of diffusers, its networks loaded one by one: from_pretrained of a pipeline fills gaps with random weights."""
    absent = absent_parts(index)
    half = torch.bfloat16 if config.dtype == "bfloat16" else torch.float32
    vae = torch.bfloat16 if config.vae_dtype == "bfloat16" else torch.float32
    dtypes = {"vae": vae, "transformer": torch.float32 if config.lora is None else half}
    kind = getattr(import_module("diffusers"), index["_class_name"])
    folder = pipeline_folder(config.model, index)
    place = f"policy.model {config.model!r}"
    networks: dict[str, nn.Module] = {}
    with readable(place, folder):
        parts = {name: part for name, part in index.items() if isinstance(part, list) and name not in absent}
        classes = {name: getattr(import_module(library), word) for name, (library, word) in parts.items()}
    for name in [name for name, part in classes.items() if issubclass(part, nn.Module)]:
        dtype = {"dtype" if parts[name][0] == "transformers" else "torch_dtype": dtypes.get(name, half)}
        networks[name] = load_whole(classes[name].from_pretrained, str(folder / name), f"{place} ({name})", **dtype)
    with readable(place, folder):
        return kind.from_pretrained(folder, **networks, **absent)


def check_attention_backend(name: str | None) -> None:
    """Raise ValueError for a kernel of attention that diffusers does not know."""
    if name is None:
        return
    known = [one.value for one in import_module("diffusers.models.attention_dispatch").AttentionBackendName]
    if name not in known:
        shown = ", ".join(sorted(one for one in known if not one.startswith("_")))
        raise ValueError(f"policy.attention_backend {name!r} is not known to diffusers: leave it out, or choose one of {shown}")


def set_attention_backend(pipeline: Any, name: str) -> None:
    """Let the transformer's attention use a kernel by diffusers' name.

    Raises:
        ValueError: its package is missing, or diffusers lets nobody choose for this transformer.
    """
    transformer, place = pipeline.transformer, f"policy.attention_backend {name!r}"
    if not any(hasattr(getattr(part, "processor", None), "_attention_backend") for part in transformer.modules()):
        raise ValueError(
            f"{place} would change nothing: diffusers lets nobody choose the attention of {type(transformer).__name__}, which "
            "takes torch's own: leave it out"
        )
    try:
        transformer.set_attention_backend(name)
    except (ImportError, RuntimeError, ValueError) as error:
        raise ValueError(f"{place} cannot be had here ({str(error).splitlines()[0]}): install it, or leave it out") from None


def absent_parts(index: Index) -> dict[str, None]:
    """Parts that the pipeline was saved without: diffusers leaves them out only where they are named again."""
    return {name: None for name, part in index.items() if isinstance(part, list) and part == [None, None]}


def pipeline_folder(model: str, index: Index) -> Path:
    """Where the files of a pipeline lie on this machine; a hub model is downloaded first."""
    folder = Path(model).expanduser()
    kind = getattr(import_module("diffusers"), index["_class_name"])
    return folder if folder.is_dir() else Path(kind.download(model, **absent_parts(index)))


def load_index(model: str) -> Index:
    """The parts that the pipeline is made of, after checking that it is one that can be trained here."""
    if model.startswith((".", "/", "~")) and not Path(model).expanduser().is_dir():
        raise FileNotFoundError(f"policy.model: there is no folder {model!r}: check the path")
    check_hub(model)
    try:
        index: Index = dict(import_module("diffusers").DiffusionPipeline.load_config(model))
    except OSError as error:
        raise FileNotFoundError(
            f"policy.model {model!r} is neither a folder with a pipeline nor one the Hugging Face hub gave us: "
            f"check the name, or download it first ({str(error).splitlines()[0]}){offline_note()}"
        ) from None
    name = str(index.get("_class_name"))
    if name not in FAMILIES:
        why = "is built on a UNet, not on flow matching" if "unet" in index else "is not known here"
        raise ValueError(f"policy.model {model!r} is a {name}, which {why}: use one of {', '.join(sorted(FAMILIES))}")
    named = [part[0] for part in index.values() if isinstance(part, list) and part and isinstance(part[0], str)]
    foreign = [library for library in named if library not in LIBRARIES]
    if foreign:
        raise ValueError(
            f"policy.model {model!r} names {foreign[0]!r} in its model_index.json: Python files of a model are not run, and "
            "parts come from diffusers and transformers alone"
        )
    scheduler = index["scheduler"][1]
    if scheduler != SCHEDULER:
        raise ValueError(
            f"policy.model {model!r} comes with the scheduler {scheduler}, but its steps are taken here along the straight paths "
            f"of flow matching: use a model with {SCHEDULER}"
        )
    return index


def parts_of(pipeline: Any) -> list[nn.Module]:
    """The networks of a pipeline."""
    return [part for part in pipeline.components.values() if isinstance(part, nn.Module)]


def add_trainable(pipeline: Any, family: type[FlowFamily], lora: LoraSettings | None) -> None:
    """Let all weights of the transformer train, or those of an adapter, in float32."""
    transformer = pipeline.transformer
    if lora is None:
        transformer.requires_grad_(True)
    else:
        add_adapter(pipeline, family, lora)
    last = f"transformer_blocks.{len(transformer.transformer_blocks) - 1}."
    for end in family.dead_ends:
        transformer.get_submodule(last + end).requires_grad_(False)


def add_adapter(pipeline: Any, family: type[FlowFamily], lora: LoraSettings) -> None:
    """Put LoRA layers into the transformer, new ones or those in `lora.adapter`; only they train."""
    transformer = pipeline.transformer
    if lora.adapter is not None:
        check_adapter_folder(lora.adapter)
        with readable(f"policy.lora.adapter {lora.adapter!r}", lora.adapter):
            pipeline.load_lora_weights(lora.adapter, adapter_name=ADAPTER)
        others = tuple(f"{name}." for name in pipeline.components if name != "transformer")
        saved = {name: value for name, value in pipeline.lora_state_dict(lora.adapter).items() if not name.startswith(others)}
        check_adapter(transformer, {name.removeprefix("transformer."): value for name, value in saved.items()}, lora.adapter)
        warn_of_idle_settings(lora, transformer.peft_config[ADAPTER])
    else:
        targets = family.lora_targets if lora.targets == "auto" else lora.targets
        transformer.add_adapter(lora_config(lora, targets, start="gaussian"))
    for name, weight in transformer.named_parameters():
        if "lora_" in name:
            weight.data = weight.data.float()
            weight.requires_grad_(True)
    transformer.eval()


def check_adapter(transformer: nn.Module, saved: Mapping[str, Tensor], folder: str) -> None:
    """Raise ValueError unless the adapter was made without dropout and all its weights were `saved` in `folder`."""
    from peft.tuners.tuners_utils import check_target_module_exists
    from peft.utils import get_peft_model_state_dict

    adapter = getattr(transformer, "peft_config", {}).get(ADAPTER)
    if adapter is None:
        raise ValueError(
            f"policy.lora.adapter {folder!r} holds no weights for the transformer: name the adapter of an image generator"
        )
    refuse_dropout(folder, adapter)
    check_adapter_weights(folder, saved, get_peft_model_state_dict(transformer, adapter_name=ADAPTER))
    plain = [name for name, module in transformer.named_modules() if not hasattr(module, "lora_A")]
    bare = [name for name in plain if check_target_module_exists(adapter, name)]
    refuse_other_keys(bare, (), (), f"policy.lora.adapter {folder!r}", "LoRA adapter of this model")


def save_adapter(pipeline: Any, transformer: Any, folder: Path, is_main: bool) -> None:
    """Write the adapter as pipeline.load_lora_weights takes it. Every process must call it."""
    from peft.utils import get_peft_model_state_dict

    weights = {name: whole(weight) for name, weight in transformer.state_dict(keep_vars=True).items() if "lora_" in name}
    if is_main:
        # Without the metadata diffusers takes alpha for the rank, and the adapter is loaded with another strength.
        type(pipeline).save_lora_weights(
            folder,
            transformer_lora_layers=get_peft_model_state_dict(transformer, state_dict=weights),
            transformer_lora_adapter_metadata=transformer.peft_config[ADAPTER].to_dict(),
        )


def save_pipeline(pipeline: Any, transformer: Any, folder: Path, is_main: bool) -> None:
    """Write the whole pipeline as from_pretrained takes it. Every process must call it."""
    weights = {name: whole(weight) for name, weight in transformer.state_dict(keep_vars=True).items()}
    if is_main:
        with torch.device("meta"):
            plain = type(transformer).from_config(transformer.config)
        plain.load_state_dict(weights, assign=True)
        type(pipeline)(**{**pipeline.components, "transformer": plain}).save_pretrained(folder)
