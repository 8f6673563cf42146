"""From a folder or hub name to a model that is ready to train: dropout off, adapters on, frozen parts frozen, or in 4 bits."""

import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mmrl.policies.shared.lora import (
    ADAPTER,
    LoraSettings,
    casting_layers,
    check_adapter_weights,
    is_own,
    load_adapter,
    lora_config,
    refuse_dropout,
    refuse_other_base,
    saved_weights,
    switch_casts,
)
from mmrl.policies.shared.published import refuse_variant, variants_in
from mmrl.policies.shared.quantized.kept import CodesRecipe
from mmrl.policies.shared.quantized.layer import rest_on_host
from mmrl.policies.shared.quantized.load import find_stored_layers, load_in_codes, plain_config, recipe_of
from mmrl.policies.shared.quantized.table import NF4, file_of, files_by, files_in, method_of
from mmrl.policies.shared.teachers import adapter_of, beside_the_trained
from mmrl.policies.shared.weights import whole
from mmrl.policies.text.families import Family, belongs, family_of, hears_alone, is_text_only, model_class, writing_part
from mmrl.policies.text.families.base import extractor_of
from mmrl.policies.text.families.types import refusal_of
from mmrl.policies.text.read.packable import prepare_packing, refuse_unable, shares_prompts
from mmrl.policies.text.read.score import add_head, save_with_head
from mmrl.policies.text.settings import QuantizedSettings, TextPolicyConfig, TextTeacher
from mmrl.runtime.near import near
from mmrl.runtime.net.offline import check_hub, is_offline, offline_note
from mmrl.runtime.pretrained import load_whole, readable, refuse_absurd_sizes

log = logging.getLogger("mmrl")
HEAD, THINKER = "score_head.", "_thinker"
"""Of names: tensors of a reward's head; types of models that are the part of a folder that writes."""


@dataclass(frozen=True)
class Loaded:
    """A model with everything that belongs to it."""

    model: Any
    processor: Any
    family: Family
    adapter: Any = None
    """peft's wrapper around the model, when it has adapters."""
    eos_token_ids: tuple[int, ...] = ()
    packs: bool = False
    """Can its language model read packed rows?"""
    codes: bool = False
    """Are its completions codes of pictures, in a vocabulary of their own, and not the tokenizer's tokens?"""


def load(config: TextPolicyConfig, kind: Callable[[Any], Family] = family_of, frozen: bool = False) -> Loaded:
    """Load model and processor; `kind` says the family of the model's own config, `frozen`: it is only read, without adapter.

    Raises:
        FileNotFoundError: no such folder or hub model.
        ValueError: a model that cannot write or chat, trains nothing, is broken, not whole, or cannot read rows packed as wanted.
    """
    model_config = load_config(config)
    family = kind(model_config)
    remote: dict[str, object] = {"trust_remote_code": config.trust_remote_code}
    processor = read_processor(config, family)
    half = config.dtype == "bfloat16" and (frozen or config.lora is not None)
    if config.attn_implementation:
        remote["attn_implementation"] = config.attn_implementation
    if config.variant is not None:
        remote["variant"] = config.variant
    dtype = torch.bfloat16 if half else torch.float32
    if not frozen and config.lora is not None and config.lora.adapter is not None:
        refuse_other_base(without_weights(model_config, config), config.lora.adapter)
    if config.weights == "nf4" or method_of(model_config) is not None:
        refuse_other_codes(model_config, config)
        model: Any = load_quantized(config, model_config, family, dtype, remote)
    else:
        model = load_weights(config.model, model_config, dtype=dtype, **remote)
    switch_off_dropout(model)
    check_head(model, family)
    if config.quantized.embeddings == "host":
        rest_on_host(model, config.model)
    packs = prepare_packing(model, config)
    if config.decode == "auto" and config.compile and not frozen:
        log.info("policy.decode: auto takes %s", "shared, compiled" if shares_prompts(model, config) else "plain")
    adapter = add_adapter(model, family, config.lora) if config.lora and not frozen else None
    if any(one.adapter for one in config.teachers):
        add_teachers(adapter, config.teachers)
    switch_casts(casting_layers(model.modules()), on=config.dtype == "float32")
    add_head(model, config.scores, weights_folder(config.model))
    settle(model, family, config, frozen)
    if config.lora is not None and config.lora.adapter is None and config.lora.targets != "auto":
        say_where(model, family, config.lora)
    return Loaded(model.eval(), processor, family, adapter, stop_tokens(model, processor.tokenizer), packs)


def read_processor(config: TextPolicyConfig, family: Family) -> Any:
    """The processor with the policy's limits, looked at; errors as in `load`."""
    with refusing_code(config.model), readable(f"policy.model {config.model!r}", config.model):
        processor = family.processor(config.model, config.trust_remote_code)
    check_processor(processor, config.model, family)
    if config.min_pixels is not None or config.max_pixels is not None:
        family.limit_pixels(processor, config.min_pixels, config.max_pixels)
    return processor


def check_processor(processor: Any, model: str, family: Family) -> None:
    """Raise ValueError for a processor that cannot show pictures or sounds, or a model that cannot chat."""
    blind = "image" in family.sees and getattr(processor, "image_processor", None) is None
    deaf = family.sees == ("audio",) and extractor_of(processor) is None
    if not blind and not deaf and getattr(processor, "chat_template", None):
        return
    kind = "vision-language model" if "image" in family.sees else "model"
    lacking = "image processor" if blind else "feature extractor of sounds" if deaf else "chat template"
    raise ValueError(f"policy.model {model!r} has no {lacking}: use an instruction-tuned {kind}")


def without_weights(model_config: object, config: TextPolicyConfig, **settings: object) -> Any:
    """The model on the meta device; as where it is loaded, code of its own may look at numbers that it spaces evenly."""
    from transformers.initialization import meta_device_safe_creation_ops

    with torch.device("meta"), meta_device_safe_creation_ops():
        return model_class(model_config).from_config(model_config, trust_remote_code=config.trust_remote_code, **settings)


def load_weights(model: str, model_config: object, **settings: object) -> nn.Module:
    """The model with all its weights; ValueError for a checkpoint that is broken or not whole."""
    if getattr(model_config, "model_type", "").endswith(THINKER):
        settings.setdefault("config", model_config)
    load = model_class(model_config).from_pretrained
    return load_whole(load, model, f"policy.model {model!r}", ignore_mismatched_sizes=True, **settings)


def refuse_no_model(folder: Path, name: str) -> None:
    """Raise FileNotFoundError for a path that leads nowhere, or to a folder without a model's config.json."""
    if name.endswith((".safetensors", ".gguf", ".bin", ".pt", ".pth", ".ckpt")):
        raise ValueError(
            f"policy.model {name!r} is one file, which generators alone come in (policy.kind = 'flow'): give the folder of a "
            "model that writes, with config.json, weights and tokenizer"
        )
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise FileNotFoundError(
                f"policy.model: the folder {name!r} holds no config.json: give the folder of a model as transformers saves it, "
                "with its weights and processor"
            )
    elif name.startswith((".", "/", "~")):
        raise FileNotFoundError(f"policy.model: there is no folder {name!r}{near(name)}: check the path")


def load_config(config: TextPolicyConfig) -> Any:
    """The model's own config, after checking that it is one of a model that writes."""
    name, place = config.model, f"policy.model {config.model!r}"
    refuse_no_model(Path(name).expanduser(), name)
    from transformers import AutoConfig, PretrainedConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    if config.trust_remote_code:
        log.warning("policy.trust_remote_code is true: Python files of %s run with your rights", name)
    check_hub(name)
    try:
        with readable(place, name):
            written, _ = PretrainedConfig.get_config_dict(name)
        refuse_absurd_sizes(written, place)
        with refusing_code(name), readable(place, name):
            found = AutoConfig.from_pretrained(name, trust_remote_code=config.trust_remote_code)
    except OSError as error:
        raise FileNotFoundError(
            f"policy.model {name!r} is neither a folder with a model{near(name)} nor one the Hugging Face hub gave us: "
            f"check the name, or download it first ({str(error).splitlines()[0]}){offline_note()}"
        ) from None
    found = writing_part(found)
    refuse_variant({"": variants_in(weights_folder(name))}, config.variant, place)
    remote = "AutoModelForImageTextToText" in (getattr(found, "auto_map", None) or {})
    if type(found) not in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING and not remote and not (is_text_only(found) or hears_alone(found)):
        raise ValueError(
            f"policy.model {name!r} is of type {found.model_type}, which does not write text: use a vision-language model or a "
            "language model"
        )
    kind = found.model_type
    refuse_unable(found, config)
    if not remote and (refusal := refusal_of(kind, found.is_encoder_decoder)) is not None:
        raise ValueError(f"policy.model {name!r} is of type {kind}, which {refusal}: `mmrl ls families --all` lists what trains")
    return found


@contextmanager
def refusing_code(model: str) -> Iterator[None]:
    """Name the setting that is needed for a model whose repository holds its own code."""
    try:
        yield
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ValueError(
            f"policy.model {model!r} comes with Python files of its own, which are not run: read them, and set "
            "policy.trust_remote_code = true if you trust them, or use a model that transformers knows"
        ) from None


def switch_off_dropout(model: nn.Module) -> None:
    """Training mode then computes what evaluation mode computes, and a reading equals the rollout it reads."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if ("dropout" in name or name in ("drop_prob", "layerdrop")) and isinstance(value, float):
                setattr(module, name, 0.0)


@torch.no_grad()
def check_head(model: Any, family: Family) -> None:
    """Raise ValueError where the model's logits are not those of the family's `head` after the last hidden state."""
    if not hasattr(model, "model"):
        raise ValueError(
            f"{model.config.model_type} keeps its layers elsewhere than other language models of transformers: use a newer one, "
            "such as Qwen, Llama, Gemma, Mistral, SmolLM or Phi"
        )
    ids = torch.arange(4)[None]
    plain = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    logits = model.eval()(**plain).logits[0]
    ours = family.head(model.get_output_embeddings()(model.model(**plain).last_hidden_state[0]))
    if not torch.allclose(logits, ours, atol=1e-4):
        raise ValueError(
            f"{model.config.model_type} changes its logits after the head, which mmrl does not know how to repeat: "
            "add a family for it in mmrl/policies/text/families"
        )


def add_adapter(model: Any, family: Family, lora: LoraSettings) -> Any:
    """Put LoRA layers into the model and freeze the rest; returns peft's wrapper."""
    from peft import get_peft_model

    if lora.adapter is not None:
        return load_adapter(model, lora)
    if lora.targets != "auto":
        return get_peft_model(model, lora_config(lora, lora.targets, model))
    linear = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)]
    inside = [name for name in linear if name.removeprefix("model.").startswith(family.language)]
    if not inside:
        raise ValueError(
            f"{model.config.model_type}: no linear layers found under {' or '.join(family.language)}: name policy.lora.targets"
        )
    # a pattern, short enough for the adapter's config file
    stem, lasts = rf"model\.(?:{'|'.join(family.language)})\.", {name.rpartition(".")[2] for name in inside}
    wanted = lora_config(lora, rf"{stem}.*\.(?:{'|'.join(sorted(lasts))})", model)
    if any(name.rpartition(".")[2] in lasts for name in linear if name not in inside):
        # of models with experts peft keeps the last names of a pattern alone
        wanted.exclude_modules = rf"(?!{stem}).*"
    return get_peft_model(model, wanted)


def add_teachers(adapter: Any, teachers: Sequence[TextTeacher]) -> None:
    """Load the adapters of teachers into peft's wrapper of the one that trains.

    Raises FileNotFoundError for one that is not there, ValueError for one that is broken, not whole or of another model.
    """
    from peft import get_peft_model_state_dict

    with beside_the_trained(adapter):
        for number, one in enumerate(teachers):
            if one.adapter is not None:
                key, name = f"policy.teachers.{number}.adapter", adapter_of(number)
                saved = saved_weights(adapter.base_model.model, one.adapter, key)
                if whole := [name for name in saved if "lora_" not in name]:
                    raise ValueError(
                        f"{key} {one.adapter!r} holds modules that trained whole ({whole[0]}), and a teacher lends its layers of "
                        "low rank alone: merge it in peft (merge_and_unload, save_pretrained), and name that as model"
                    )
                with readable(f"{key} {one.adapter!r}", one.adapter):
                    adapter.load_adapter(one.adapter, adapter_name=name)
                refuse_dropout(one.adapter, adapter.peft_config[name], key)
                own = get_peft_model_state_dict(adapter, adapter_name=name, save_embedding_layers=False)
                check_adapter_weights(one.adapter, saved, own, key)


def say_where(model: Any, family: Family, lora: LoraSettings) -> None:
    """Warn where targets of a name also put adapters that train outside the language model."""
    found = [name for name, weight in model.named_parameters() if ".lora_A." in name and weight.requires_grad]
    parts = Counter(
        next((part for part in ("vision", "projector", "language") if belongs(name, family, part)), "other parts")
        for name in found
    )
    inside = parts.pop("language", 0)
    if parts:
        others = ", ".join(f"{count} in {part}" for part, count in parts.items())
        log.warning(
            f"policy.lora.targets = {list(lora.targets)} put adapters on {inside} layers of the language model and on {others}, "
            'and all of these train: targets = "auto" adapts the language model alone'
        )


def freeze(model: Any, family: Family, parts: tuple[str, ...]) -> None:
    """Switch off the gradient of parts of the model; raises ValueError for an absent part, or where nothing is left to train."""
    for part in parts:
        frozen = [weight for name, weight in model.named_parameters() if belongs(name, family, part)]
        if not frozen:
            raise ValueError(f"policy.freeze: the model has no weights in {part!r}")
        for weight in frozen:
            weight.requires_grad_(False)
    if not any(weight.requires_grad for weight in model.parameters()):
        raise ValueError(f"policy.freeze = {list(parts)} leaves nothing to train: remove one of them")


def settle(model: Any, family: Family, config: TextPolicyConfig, frozen: bool) -> None:
    """Say what trains, and whether layers are computed again in the backward pass; raises what `freeze` does."""
    if frozen:
        model.requires_grad_(False)
    else:
        freeze(model, family, config.freeze)
    if config.gradient_checkpointing:
        # Renamed within transformers 5.
        renamed = hasattr(model, "activation_checkpointing_enable")
        getattr(model, "activation_checkpointing_enable" if renamed else "gradient_checkpointing_enable")(
            {"use_reentrant": False}
        )


def stop_tokens(model: Any, tokenizer: Any) -> tuple[int, ...]:
    """Every token that ends a completion: the generation config's and the tokenizer's own, the latter first."""
    stops = model.generation_config.eos_token_id
    ids: Iterator[int | None] = iter([tokenizer.eos_token_id, *(stops if isinstance(stops, list) else [stops])])
    found = tuple(dict.fromkeys(id for id in ids if id is not None))
    if not found:
        raise ValueError(f"{model.config.model_type}: neither tokenizer nor generation config names a token that ends an answer")
    return found


def banned_tokens(loaded: Loaded) -> frozenset[int]:
    """Tokens a completion must not hold: those of media, padding, beginning of text, and ids the tokenizer cannot write."""
    if loaded.codes:
        return frozenset()
    tokenizer = loaded.processor.tokenizer
    empty = range(len(tokenizer), loaded.model.get_output_embeddings().weight.shape[0])
    odd = {tokenizer.pad_token_id, tokenizer.bos_token_id} - {None}
    return (loaded.family.media_token_ids(tokenizer) | odd | set(empty)) - set(loaded.eos_token_ids)


def writer_of(model: Any, adapter: Any | None) -> Callable[[Path], None]:
    """Gather what a folder of the model holds, or of its adapter alone, and return what writes it. Every process must call it."""
    held = model.state_dict(keep_vars=True)
    scoring = {name.removeprefix(HEAD): whole(held.pop(name)) for name in list(held) if name.startswith(HEAD)}
    if adapter is None:
        write = partial(model.save_pretrained, state_dict={name: whole(weight) for name, weight in held.items()})
    else:
        # A frozen part of an adapter belongs to it too; the model's own weights need no copy.
        own = {name: weight for name, weight in held.items() if is_own(name) or weight.requires_grad}
        weights = {f"base_model.model.{name}": whole(weight) for name, weight in own.items()}
        write = partial(adapter.save_pretrained, state_dict=weights, save_embedding_layers=False, selected_adapters=[ADAPTER])
    return partial(save_with_head, write, model.score_head.axes, scoring) if scoring else write


def server_model(config: TextPolicyConfig, make: bool = True) -> str:
    """The folder or hub name; beside 4 bits a folder in mmrl's cache of the numbers that the codes stand for, as vLLM reads none.

    Its name has a hash of the model's files and of what was rounded, so that a server which has another is seen.
    Without `make` it is named only. Raises ValueError where the model's files do not allow it, or the cache cannot take it.
    """
    if config.weights == "float" and not Path(config.model).is_dir():
        return config.model
    model_config = load_config(config)
    refuse_other_codes(model_config, config)
    if method_of(model_config) is not None:
        refuse_idle_codes(config)
    if config.weights == "float":
        return config.model
    place = place_of(config)
    model = without_weights(model_config, config)
    recipe = recipe_for(config, model, layers_to_quantize(model, family_of(model_config), config.quantized.parts))
    if recipe is None:
        raise ValueError(
            f"{place} has files or code of its own that do not allow to write what 4 bits stand for, which the server of "
            "[policy.engine] would read: remove one of the two"
        )
    recipe = replace(recipe, whole=getattr(torch, config.dtype))
    try:
        return str(recipe.make() if make else recipe.entry())
    except OSError as error:
        raise ValueError(
            f"the server of [policy.engine] reads what the 4 bits of {place} stand for, and mmrl's cache cannot take it "
            f"({error}): make room, or set MMRL_CACHE to a folder elsewhere"
        ) from None


EXPERTS = 3
"""Dimensions of the weights of a layer of experts, which are one tensor."""


def load_quantized(
    config: TextPolicyConfig, model_config: object, family: Family, dtype: torch.dtype, settings: Mapping[str, object]
) -> nn.Module:
    """The model with the layers of `policy.quantized` in 4 bits, made from the numbers as stored, and the rest in `dtype`.

    Codes are made once and kept in mmrl's cache, where the model's files allow that.
    """
    stored = method_of(model_config) is not None
    if stored:
        refuse_idle_codes(config)
    plain = plain_config(model_config)
    model = without_weights(plain, config)
    if config.quantized.embeddings == "host":
        rest_on_host(model, config.model)
    names = [] if stored else layers_to_quantize(model, family, config.quantized.parts)
    recipe, load = None if stored else recipe_for(config, model, names), model_class(plain).from_pretrained
    given = {"config": plain, "ignore_mismatched_sizes": True, **settings}
    model = load_in_codes(load, (config.model, place_of(config)), names, config.quantized, recipe, dtype, **given)
    # Adapters name their base by it.
    model.name_or_path = model.config.name_or_path = config.model
    return model


def place_of(config: TextPolicyConfig) -> str:
    return f"policy.model {config.model!r}"


def recipe_for(config: TextPolicyConfig, model: Any, layers: Collection[str]) -> CodesRecipe | None:
    """The recipe for these layers of a model on the meta device; None where its files, or code of its own, do not allow it."""
    if config.trust_remote_code:
        return None
    with readable(place_of(config), config.model):
        files = files_by(partial(file_of, config.model), "model", config.variant)
    return recipe_of(model, layers, files, config.quantized.double, place_of(config))


def layers_in_4_bits(model: Any, config: TextPolicyConfig, family: Family, stored: bool) -> dict[str, bool]:
    """The layers of a model without values that rest in 4 bits -> are their scales codes, too?

    stored: as the model's files say, where they are on this machine.
    """
    if stored and (files := files_in(weights_folder(config.model), "model", config.variant)):
        return find_stored_layers(model, files)
    parts = QuantizedSettings().parts if stored else config.quantized.parts
    return dict.fromkeys(layers_to_quantize(model, family, parts), config.quantized.double)


def layers_to_quantize(model: Any, family: Family, parts: Collection[str]) -> list[str]:
    """The linear layers of these parts, but for the head.

    Raises ValueError for a part without any, and for a model most of whose weights lie in no linear layer.
    """
    head, found = model.get_output_embeddings(), list[str]()
    for part in parts:
        inside = [
            name
            for name, module in model.named_modules()
            if type(module) is nn.Linear and module is not head and belongs(name, family, part)
        ]
        if not inside:
            raise ValueError(f"policy.quantized.parts holds {part!r}, where {model.config.model_type} has no linear layers")
        found += inside
    size = sum(model.get_submodule(name).weight.numel() for name in found)
    named = [(name, weight) for name, weight in model.named_parameters() if weight.ndim == EXPERTS]
    other = sum(weight.numel() for name, weight in named if any(belongs(name, family, part) for part in parts))
    if other > size:
        kind, share = model.config.model_type, other / (other + size)
        raise ValueError(
            f'policy.weights is "nf4", which reaches linear layers, and {share:.0%} of what {kind} would quantize lies in '
            "experts that are one tensor: take a dense model, or leave policy.weights out"
        )
    return found


def refuse_other_codes(model_config: object, config: TextPolicyConfig) -> None:
    """Raise ValueError for a checkpoint that is quantized otherwise than in NF4."""
    method = method_of(model_config)
    if method not in (None, NF4):
        raise ValueError(f"{place_of(config)} is quantized already, by {method}: take the original, or one in bitsandbytes' NF4")


def refuse_idle_codes(config: TextPolicyConfig) -> None:
    """Raise ValueError for a checkpoint in 4 bits whose weights would have to train, or that a server would read."""
    place = place_of(config)
    if config.lora is None:
        raise ValueError(f"{place} is stored in 4 bits, which do not train: add [policy.lora], whose adapters train beside them")
    if config.engine is not None:
        raise ValueError(f"{place} is stored in 4 bits, which vLLM cannot read: remove [policy.engine], or take the original")


def weights_folder(model: str) -> Path:
    """The folder of a model's files; of one on the hub, the folder of what was downloaded so far."""
    folder = Path(model).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(model, "config.json") if is_offline() else None
    return Path(found).parent if isinstance(found, str) else folder
