"""A tokenizer of bytes, and what tiny models share: classes of libraries by name, processors, and parts of configs."""

from collections.abc import Sequence
from typing import Any

Kwargs = dict[str, Any]
STOP, PAD, TURN = "<|im_end|>", "<|endoftext|>", "<|im_start|>"
TEXT: Kwargs = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
}
VISION: Kwargs = {"hidden_size": 32, "intermediate_size": 64}
TOWER: Kwargs = {**VISION, "num_hidden_layers": 2, "num_attention_heads": 2}
SMALL: Kwargs = {"shortest_edge": 56 * 56, "longest_edge": 112 * 112}
LINEAR: Kwargs = {f"linear_{name}_head_dim": 8 for name in ("key", "value")}
LINEAR |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "layer_types": ["linear_attention", "full_attention"]}
"""Layers of Qwen3.5, one in two of which carries a state."""
EXPERTS: Kwargs = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
EXPERTS |= {"first_k_dense_replace": 1, "moe_intermediate_size": 32}
HubObject = Any
"""A model, tokenizer, processor or pipeline of transformers or diffusers, whose attributes are made while running."""
Built = tuple[HubObject, HubObject]
"""A model and its processor."""


def hub(name: str, *parts: object, **settings: object) -> HubObject:
    """An object of a class of transformers, or else of diffusers: `hub("Qwen3Config", head_dim=8)`."""
    import transformers

    if hasattr(transformers, name):
        return getattr(transformers, name)(*parts, **settings)
    import diffusers

    return getattr(diffusers, name)(*parts, **settings)


def model_of(kind: str, **settings: object) -> HubObject:
    """A model of the classes that begin with `kind`, of a config with these settings."""
    return hub(f"{kind}ForConditionalGeneration", hub(f"{kind}Config", **settings))


def processor_of(
    kind: str,
    tokenizer: HubObject,
    seen: Kwargs,
    clips: Kwargs | None = None,
    sees: str = "",
    watches: str = "",
    **settings: object,
) -> HubObject:
    """A processor of the classes that begin with `kind`.

    Args:
        seen: settings of pictures.
        clips: those of clips, where they are others.
        sees: how the class that reads pictures begins, and that which reads clips unless `watches` says otherwise.
    """
    return hub(
        f"{kind}Processor",
        image_processor=hub(f"{sees or kind}ImageProcessor", **seen),
        tokenizer=tokenizer,
        video_processor=hub(f"{watches or sees or kind}VideoProcessor", **(seen if clips is None else clips)),
        **settings,
    )


def letters() -> list[str]:
    """A printable stand-in for every byte."""
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def byte_tokenizer(named: dict[str, str], others: Sequence[str] = (), bos: str | None = None) -> HubObject:
    """A tokenizer of bytes and special tokens; `named` become attributes such as `image_token`, which processors read."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters())}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([PAD, TURN, STOP, *([bos] if bos else []), *others, *named.values()])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token=PAD, eos_token=STOP, bos_token=bos, padding_side="left", extra_special_tokens=named
    )


def own_ids(tokenizer: HubObject) -> Kwargs:
    """The size of the vocabulary and the ids that every text config needs: library defaults lie outside a small one."""
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    return {"vocab_size": len(tokenizer), **{name: getattr(tokenizer, name) for name in names}}


def token_ids(tokenizer: HubObject, **others: object) -> Kwargs:
    """A small text config."""
    return {**TEXT, **own_ids(tokenizer), **others}


def ids_of(tokenizer: HubObject, **tokens: str) -> Kwargs:
    """Name in a config -> the id of a token."""
    return {name: tokenizer.convert_tokens_to_ids(token) for name, token in tokens.items()}


def rope(*sections: int, **others: object) -> Kwargs:
    """Rotary positions, of time, rows and columns where there are sections; a dict of its own, since configs write into it."""
    return {"rope_type": "default", "rope_theta": 1e4, **({"mrope_section": list(sections)} if sections else {}), **others}
