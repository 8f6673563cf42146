"""From a folder or hub name to a pipeline that is ready to train, and back to files that diffusers loads."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from inspect import Parameter, signature
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mmrl.policies.flow.adapters import adapter_file, add_adapter, add_teachers
from mmrl.policies.flow.families.base import FlowFamily, Index, Pipeline, networks_of
from mmrl.policies.flow.families.known import family_of, own_family
from mmrl.policies.flow.in_4_bits import holds_codes, load_part, parts_in_4_bits
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.flow.single_file import SingleFile, is_single, pipeline_of
from mmrl.policies.flow.write.sketch import is_number, make_family, sketch_of
from mmrl.policies.shared.chat_templates import refuse_endless
from mmrl.policies.shared.lora import LoraSettings, casting_layers, refuse_other_layers, switch_casts
from mmrl.policies.shared.published import refuse_variant, variants_in
from mmrl.policies.shared.weights import whole
from mmrl.runtime.near import near
from mmrl.runtime.net.offline import check_hub, offline_note
from mmrl.runtime.pretrained import REMEDY, load_whole, readable, without_reports

LIBRARIES = ("diffusers", "transformers")
"""The libraries that the parts of a pipeline may come from."""
DECODERS = ("vae", "audio_vae", "vocoder")
"""The parts that turn latents into pictures, clips and sounds."""
OWN_PARTS = "diffusers.pipelines."
"""Where diffusers keeps parts that belong to one pipeline; a model_index.json has the last word alone."""


def load(config: FlowPolicyConfig, own: type[FlowFamily] | None = None) -> FlowFamily:
    """The pipeline, with what trains trainable and everything else frozen.

    `own` is a family of the user's; None: the one that policy.family names, or mmrl's for the pipeline.

    Raises:
        FileNotFoundError: no such folder, hub model or adapter.
        ValueError: a pipeline that is not known here, broken or not whole, or a picture size it cannot draw.
    """
    check_attention_backend(config.attention_backend)
    described, index, kind = describe(config, own)
    if sketch_of(kind, index, described) is not None and config.lora is not None and config.lora.adapter is not None:
        refuse_other_adapter(config.lora.adapter, described.model, index, kind)
    pipeline = load_pipeline(config, index, kind.networks)
    if is_single(config):
        SingleFile(config).refuse_other_prediction(pipeline.scheduler.config)
    for part in parts_of(pipeline):
        part.requires_grad_(False)
        part.eval()
    add_trainable(pipeline, kind, config.lora)
    add_teachers(pipeline, kind, config.teachers)
    for network in networks_of(pipeline, kind).values():
        switch_casts(casting_layers(network.modules()), on=config.dtype == "float32")
        if config.attention_backend is not None:
            set_attention_backend(network, config.attention_backend)
    save_memory(pipeline, kind, config)
    return make_family(kind, pipeline, config)


def refuse_other_adapter(place: str, model: str, index: Index, kind: type[FlowFamily]) -> None:
    """Raise for an adapter that is not there, or whose layers are those of another model; no weights are loaded for it."""
    for name in kind.present(index):
        cls, first = getattr(import_module(index[name][0]), index[name][1]), kind.networks[0]
        with torch.device("meta"):
            network = cls.from_config(cls.load_config(model, subfolder=name))
        refuse_other_layers(network, adapter_file(place, "" if name == first else name), f"{first}.", place)


def describe(config: FlowPolicyConfig, own: type[FlowFamily] | None = None) -> tuple[FlowPolicyConfig, Index, type[FlowFamily]]:
    """The settings with the pipeline that configs are read from as model, its index, and its family: `own`, or as `load`."""
    own, config = own or own_family(config), pipeline_of(config)
    index = load_index(config.model, own)
    return config, index, family_of(index, config.model, own)


def save_memory(pipeline: Pipeline, kind: type[FlowFamily], config: FlowPolicyConfig) -> None:
    """Let networks compute activations twice, and the autoencoder decode in pieces, where the run asks for it."""
    for network in networks_of(pipeline, kind).values() if config.gradient_checkpointing else ():
        network.enable_gradient_checkpointing()
    if config.vae_slicing:
        pipeline.vae.enable_slicing()
    if config.vae_tiling:
        pipeline.vae.enable_tiling()


def load_pipeline(config: FlowPolicyConfig, index: Index, trained: Sequence[str] = ("transformer",)) -> Pipeline:
    """The pipeline of diffusers, its networks loaded one by one: from_pretrained of a pipeline fills gaps with random weights."""
    absent = absent_parts(index)
    half, vae = getattr(torch, config.dtype), getattr(torch, config.vae_dtype)
    dtypes = {**dict.fromkeys(DECODERS, vae), **dict.fromkeys(trained, torch.float32 if config.lora is None else half)}
    kind = getattr(import_module("diffusers"), index["_class_name"])
    place = f"policy.model {config.model!r}"
    with readable(place, config.model):
        parts = {name: part for name, part in index.items() if isinstance(part, list) and name not in absent}
        classes = {name: getattr(import_module(library), word) for name, (library, word) in parts.items()}
    wanted = {name: (part, dtypes.get(name, half)) for name, part in classes.items() if issubclass(part, nn.Module)}
    networks: dict[str, nn.Module] = {}
    if is_single(config):
        file = SingleFile(config)
        inside = file.parts({name: part for name, (part, _) in wanted.items()}, trained)
        folder = file.folder(wanted.keys() - inside)
        networks = {name: file.load(name, *wanted.pop(name), folder) for name in inside}
        place = f"the pipeline {file.base!r} of {place}"
    else:
        folder = pipeline_folder(config.model, index, config.variant)
    networks |= load_parts(config, folder, wanted, trained, place)
    with readable(place, folder), without_reports():
        pipeline = kind.from_pretrained(folder, **networks, **absent)
    for name, part in pipeline.components.items():
        refuse_endless(getattr(part, "chat_template", None), f"{place} ({name})")
    return pipeline


def load_parts(
    config: FlowPolicyConfig, folder: Path, wanted: Mapping[str, tuple[Any, torch.dtype]], trained: Sequence[str], place: str
) -> dict[str, nn.Module]:
    """The networks of a pipeline's folder, by name, in their types; those without files of the variant from their plain ones."""
    variant, variants = config.variant, {name: variants_in(folder / name) for name in wanted}
    refuse_variant(variants, variant, place)
    networks: dict[str, nn.Module] = {}
    in_codes = {name: holds_codes(folder / name, config, trained) for name in wanted}
    small = parts_in_4_bits(config, wanted, trained)
    for name, (part, dtype) in wanted.items():
        if in_codes[name] or name in small:
            own = variant if variant in variants[name] else None
            networks[name] = load_part(config, part, folder / name, dtype, own, in_codes[name])
            continue
        # transformers has its own word for the type
        options: dict[str, object] = {"torch_dtype" if hasattr(part, "load_config") else "dtype": dtype}
        options |= {"variant": variant} if variant in variants[name] else {}
        networks[name] = load_whole(part.from_pretrained, str(folder / name), f"{place} ({name})", **options)
    return networks


def check_attention_backend(name: str | None) -> None:
    """Raise ValueError for a kernel of attention that diffusers does not know."""
    if name is None:
        return
    known = [one.value for one in import_module("diffusers.models.attention_dispatch").AttentionBackendName]
    if name not in known:
        shown = ", ".join(sorted(one for one in known if not one.startswith("_")))
        raise ValueError(f"policy.attention_backend {name!r} is not known to diffusers: leave it out, or choose one of {shown}")


def set_attention_backend(network: Any, name: str) -> None:
    """Let a network's attention use a kernel by diffusers' name; raises ValueError where that cannot be had."""
    place = f"policy.attention_backend {name!r}"
    if not any(hasattr(getattr(part, "processor", None), "_attention_backend") for part in network.modules()):
        raise ValueError(
            f"{place} would change nothing: diffusers has no choice of attention for {type(network).__name__}, which "
            "takes torch's own: leave it out"
        )
    try:
        network.set_attention_backend(name)
    except (ImportError, RuntimeError, ValueError) as error:
        raise ValueError(f"{place} cannot be had here ({str(error).splitlines()[0]}): install it, or leave it out") from None


def absent_parts(index: Index) -> dict[str, None]:
    """Parts that the pipeline was saved without: diffusers leaves them out only where they are named again."""
    return {name: None for name, part in index.items() if isinstance(part, list) and part == [None, None]}


def pipeline_folder(model: str, index: Index, variant: str | None = None) -> Path:
    """Where the files of a pipeline lie on this machine; a hub model is downloaded first, its weights in a variant."""
    folder = Path(model).expanduser()
    kind = getattr(import_module("diffusers"), index["_class_name"])
    if folder.is_dir():
        return folder
    with readable(f"policy.model {model!r}", model):
        return Path(kind.download(model, variant=variant, **absent_parts(index)))


def load_index(model: str, own: type[FlowFamily] | None = None) -> Index:
    """The parts that the pipeline is made of, after checking that it can be trained here, by mmrl's family or a user's `own`."""
    if model.startswith((".", "/", "~")) and not Path(model).expanduser().is_dir():
        raise FileNotFoundError(f"policy.model: there is no folder {model!r}{near(model)}: check the path")
    check_hub(model)
    place = f"policy.model {model!r}"
    try:
        with readable(place, model):
            index: Index = dict(import_module("diffusers").DiffusionPipeline.load_config(model))
    except OSError as error:
        raise FileNotFoundError(
            f"{place} is neither a folder with a pipeline{near(model)} nor one the Hugging Face hub gave us: "
            f"check the name, or download it first ({str(error).splitlines()[0]}){offline_note()}"
        ) from None
    family = family_of(index, model, own)
    for name, part in index.items():
        match part:
            case [str(library), kind] if library.isidentifier() and find_spec(OWN_PARTS + library) is not None:
                index[name] = [OWN_PARTS + library, kind]
            case _:
                pass
    index |= {name: [None, None] for name in family.left_out if name in index}
    # Lists of numbers, such as the layers that Krea 2 reads, are no parts.
    index |= {name: tuple(part) for name, part in index.items() if isinstance(part, list) and part and is_number(part)}
    refuse_odd_parts(index, family, place)
    library, name = index["scheduler"]
    with readable(f"{place} (scheduler)", model):
        scheduler = getattr(import_module(library), name).load_config(model, subfolder="scheduler")
    family.refuse_scheduler(name, scheduler)
    return index


def refuse_odd_parts(index: Index, family: type[FlowFamily], place: str) -> None:
    """Raise ValueError for a model_index.json that names no class for a part, or one from elsewhere."""
    kind = getattr(import_module("diffusers"), str(index.get("_class_name")), None)
    if kind is None:
        raise ValueError(
            f"{place} is of class {index.get('_class_name')}, which this diffusers does not have: install a newer one"
        )
    taken = signature(kind.__init__).parameters.values()
    needed = {one.name for one in taken if one.default is Parameter.empty} - {"self", *kind._optional_components}
    for name, part in index.items():
        is_part = isinstance(part, list) or name in needed or name in family.networks
        match part:
            case [str(library), str()] if library not in LIBRARIES and not library.startswith(OWN_PARTS):
                raise ValueError(
                    f"{place} names {library!r} in its model_index.json: Python files of a model are not run, and "
                    "parts come from diffusers and transformers alone"
                )
            case [str(), str()] | [None, None]:
                pass
            case _ if is_part:
                raise ValueError(f"{place} names no class for its part {name!r} in model_index.json ({str(part)[:80]}): {REMEDY}")
            case _:
                pass


def parts_of(pipeline: Pipeline) -> list[nn.Module]:
    """The networks of a pipeline."""
    return [part for part in pipeline.components.values() if isinstance(part, nn.Module)]


def add_trainable(pipeline: Pipeline, family: type[FlowFamily], lora: LoraSettings | None) -> None:
    """Let all weights of the networks train, or those of an adapter in each, in float32."""
    for name, network in networks_of(pipeline, family).items():
        if lora is None:
            network.requires_grad_(True)
        else:
            add_adapter(pipeline, family, lora, name)
        for end in family.idle_modules:
            for block in network.transformer_blocks:
                block.get_submodule(end).requires_grad_(False)
        if family.dead_ends:
            last = f"transformer_blocks.{len(network.transformer_blocks) - 1}."
            for end in family.dead_ends:
                network.get_submodule(last + end).requires_grad_(False)


def save_pipeline(pipeline: Pipeline, networks: Mapping[str, nn.Module], folder: Path, is_main: bool) -> None:
    """Write the whole pipeline as from_pretrained takes it. Every process must call it."""
    weights = {name: whole_weights(network) for name, network in networks.items()}
    if is_main:
        plain = {name: network_of(networks[name], own) for name, own in weights.items()}
        type(pipeline)(**{**facts_of(pipeline), **pipeline.components, **plain}).save_pretrained(folder)


def facts_of(pipeline: Pipeline) -> dict[str, object]:
    """The plain values that a pipeline was made with, such as boundary_ratio: without them it draws differently."""
    taken = signature(type(pipeline).__init__).parameters
    return {name: value for name, value in pipeline.config.items() if name in taken and name not in pipeline.components}


def whole_weights(network: nn.Module) -> dict[str, Tensor]:
    """All weights of a network, gathered where they are sharded. Every process must call it."""
    return {name: whole(weight) for name, weight in network.state_dict(keep_vars=True).items()}


def network_of(like: Any, weights: Mapping[str, Tensor]) -> nn.Module:
    """A network of the same class and config with these weights."""
    with torch.device("meta"):
        plain = type(like).from_config(like.config)
    plain.load_state_dict(weights, assign=True)
    return plain
