"""A tokenizer of bytes, and what the configs of tiny language models share."""

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
HubObject = Any
"""A model, tokenizer, processor or pipeline of transformers or diffusers, whose attributes are made while running."""
Built = tuple[HubObject, HubObject]
"""A model and its processor."""


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
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=STOP,
        bos_token=bos,
        padding_side="left",
        extra_special_tokens=named,
    )


def token_ids(tokenizer: HubObject, **others: object) -> Kwargs:
    """The ids every text config needs: library defaults lie outside a small vocabulary."""
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    return {**TEXT, "vocab_size": len(tokenizer), **ids, **others}
