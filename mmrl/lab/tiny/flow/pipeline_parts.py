"""Parts that tiny pipelines share: tokenizers, text encoders, autoencoders and schedulers of the real classes."""

import string
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from mmrl.lab.tiny.byte_tokens import VISION, HubObject, Kwargs, byte_tokenizer, hub, letters, model_of, own_ids, rope, token_ids
from mmrl.lab.tiny.tokenizer import CHAT_TEMPLATE, qwen_ids, qwen_tokenizer

CLIP_TOKENS = 32
"""Prompts of the CLIP encoders end here."""
LATENTS = 4
"""Channels."""
HIDDEN = 16
"""Of the language models that read prompts."""
QWEN_TEMPLATE = (
    "system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial relationships of the "
    "objects and background:\nuser\n"
)
"""The text that Qwen-Image writes before a prompt and cuts off again by its 34 tokens: here, too, every word must be one."""


@cache
def networks() -> Mapping[str, Kwargs]:
    """networks.toml: class of diffusers -> its settings here."""
    return tomllib.loads(Path(__file__).with_name("networks.toml").read_text(encoding="utf-8"))


def network(name: str, **others: object) -> HubObject:
    """An object of a class of diffusers with the settings of networks.toml, and others."""
    return hub(name, **networks()[name], **others)


def scheduler(**settings: object) -> HubObject:
    return hub("FlowMatchEulerDiscreteScheduler", **settings)


def autoencoder() -> HubObject:
    """An autoencoder that halves both sides once."""
    return halving_autoencoder("AutoencoderKL", sample_size=16, scaling_factor=1.5, shift_factor=0.06)


def halving_autoencoder(name: str, times: int = 1, **settings: object) -> HubObject:
    """The same, `times` times, of a class like AutoencoderKL."""
    return hub(
        name,
        block_out_channels=(8,) * (times + 1),
        down_block_types=("DownEncoderBlock2D",) * (times + 1),
        up_block_types=("UpDecoderBlock2D",) * (times + 1),
        latent_channels=LATENTS,
        norm_num_groups=4,
        use_quant_conv=False,
        use_post_quant_conv=False,
        **settings,
    )


def clip_tokenizer() -> HubObject:
    words = [*letters(), *(letter + "</w>" for letter in letters()), "<|startoftext|>", "<|endoftext|>"]
    return hub("CLIPTokenizer", vocab={word: i for i, word in enumerate(words)}, merges=[], model_max_length=CLIP_TOKENS)


def add_words(tokenizer: HubObject, words: Sequence[str]) -> HubObject:
    """Let each of these words be one token, and return the tokenizer."""
    from tokenizers import AddedToken

    tokenizer.add_tokens([AddedToken(word, single_word=True, normalized=False) for word in words])
    return tokenizer


def read(tokenizer: HubObject, texts: Sequence[str], length: int | None = None) -> HubObject:
    """Texts as pipelines have them tokenized: each filled up, or cut, to one length (None: the tokenizer's own)."""
    most = tokenizer.model_max_length if length is None else length
    return tokenizer(list(texts), padding="max_length", max_length=most, truncation=True, return_tensors="pt")


def clip(kind: str, tokenizer: HubObject, width: int = 32, heads: int = 4, tokens: int = CLIP_TOKENS) -> HubObject:
    """A text encoder of CLIP, of the class `kind` with or without its projection, for prompts of n tokens."""
    sizes: Kwargs = {"hidden_size": width, "intermediate_size": 2 * width, "projection_dim": width, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": heads, "max_position_embeddings": tokens}
    return hub(kind, hub("CLIPTextConfig", **own_ids(tokenizer), **sizes))


def clip_reader(number: str = "", projects: bool = True) -> Kwargs:
    """A text encoder of CLIP and its tokenizer, as a pipeline names its parts."""
    tokenizer = clip_tokenizer()
    encoder = clip("CLIPTextModelWithProjection" if projects else "CLIPTextModel", tokenizer)
    return {f"text_encoder{number}": encoder, f"tokenizer{number}": tokenizer}


def t5_tokenizer() -> HubObject:
    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    plain = [(letter, -3.0) for letter in string.ascii_letters + string.digits + string.punctuation]
    return hub("T5Tokenizer", vocab=[*special, *plain, *((f"<extra_id_{i}>", 0.0) for i in reversed(range(100)))])


def t5_reader(number: str = "") -> Kwargs:
    """A T5 and its tokenizer, as a pipeline names its parts."""
    tokenizer = t5_tokenizer()
    return {f"text_encoder{number}": t5(tokenizer), f"tokenizer{number}": tokenizer}


def t5(tokenizer: HubObject, kind: str = "T5", width: int = 32, head: int = 8, layers: int = 2, heads: int = 4) -> HubObject:
    """A text encoder of T5 or UMT5."""
    sizes: Kwargs = {"d_model": width, "d_kv": head, "d_ff": 2 * width, "num_layers": layers, "num_heads": heads}
    return hub(f"{kind}EncoderModel", hub(f"{kind}Config", vocab_size=len(tokenizer), **sizes))


def qwen_encoder(tokenizer: HubObject) -> HubObject:
    return model_of(
        "Qwen2_5_VL",
        text_config=token_ids(tokenizer, bos_token_id=None, rope_parameters=rope(1, 1, 2)),
        vision_config={**VISION, "depth": 1, "num_heads": 2, "out_hidden_size": 32, "fullatt_block_indexes": [0]},
        **qwen_ids(tokenizer),
    )


def chat_tokenizer(*texts: str) -> HubObject:
    """A tokenizer that writes Qwen's turns and pads on the right, as Qwen3's own does."""
    tokenizer = qwen_tokenizer(["user\n", *texts], 500)
    tokenizer.chat_template, tokenizer.padding_side = CHAT_TEMPLATE, "right"
    return tokenizer


def qwen3(tokenizer: HubObject, layers: int) -> Kwargs:
    return {
        "hidden_size": HIDDEN,
        "intermediate_size": HIDDEN,
        "num_hidden_layers": layers,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": 512,
    }


def gemma2(**settings: object) -> Kwargs:
    """A Gemma-2 that reads bytes and its tokenizer, as a pipeline names its parts."""
    tokenizer = byte_tokenizer({})
    tokenizer.padding_side = "right"
    text: Kwargs = {**qwen3(tokenizer, 2), "hidden_size": 8, "head_dim": 16, **settings}
    return {"text_encoder": hub("Gemma2Model", hub("Gemma2Config", **text)), "tokenizer": tokenizer}
