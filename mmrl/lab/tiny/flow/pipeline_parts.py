"""Parts that tiny pipelines share: tokenizers, text encoders, autoencoders and schedulers of the real classes."""

import string
from collections.abc import Callable, Sequence

from mmrl.lab.tiny.byte_tokens import STOP, TEXT, HubObject, Kwargs, letters
from mmrl.lab.tiny.text.vlms import VISION
from mmrl.lab.tiny.tokenizer import qwen_ids

CLIP_TOKENS = 32
"""Prompts of the CLIP encoders end here."""
LATENTS = 4
"""Channels."""
HEADS: Kwargs = {"attention_head_dim": 16, "num_attention_heads": 2}
QWEN_TEMPLATE = (
    "system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial relationships of the "
    "objects and background:\nuser\n"
)
"""The text that Qwen-Image writes before a prompt and cuts off again by its 34 tokens: here, too, every word must be one."""


def diffusers_object(name: str, **settings: object) -> HubObject:
    """An object of a class of diffusers."""
    import diffusers

    return getattr(diffusers, name)(**settings)


def scheduler(**settings: object) -> HubObject:
    return diffusers_object("FlowMatchEulerDiscreteScheduler", **settings)


def autoencoder() -> HubObject:
    """An autoencoder that halves both sides once."""
    return halving_autoencoder("AutoencoderKL", sample_size=16, scaling_factor=1.5, shift_factor=0.06)


def halving_autoencoder(name: str, times: int = 1, **settings: object) -> HubObject:
    """The same, `times` times, of a class like AutoencoderKL."""
    return diffusers_object(
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


def clip_autoencoder() -> HubObject:
    """Qwen-Image's autoencoder, which is a video's and halves both sides twice."""
    return diffusers_object(
        "AutoencoderKLQwenImage",
        base_dim=8,
        z_dim=LATENTS,
        dim_mult=[1, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[0.1, -0.1, 0.2, 0.0],
        latents_std=[0.9, 1.1, 1.0, 1.2],
    )


def clip_tokenizer() -> HubObject:
    from transformers import CLIPTokenizer

    words = [*letters(), *(letter + "</w>" for letter in letters()), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[], model_max_length=CLIP_TOKENS)


def add_words(tokenizer: HubObject, words: Sequence[str]) -> HubObject:
    """Let each of these words be one token, and return the tokenizer."""
    from tokenizers import AddedToken

    tokenizer.add_tokens([AddedToken(word, single_word=True, normalized=False) for word in words])
    return tokenizer


def clip(
    kind: Callable[..., HubObject], tokenizer: HubObject, width: int = 32, heads: int = 4, tokens: int = CLIP_TOKENS
) -> HubObject:
    """A text encoder of CLIP, `kind` with or without its projection, for prompts of n tokens."""
    from transformers import CLIPTextConfig

    return kind(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=width,
            intermediate_size=2 * width,
            num_hidden_layers=2,
            num_attention_heads=heads,
            max_position_embeddings=tokens,
            projection_dim=width,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def clip_reader(number: str = "", projects: bool = True) -> Kwargs:
    """A text encoder of CLIP and its tokenizer, as a pipeline names its parts."""
    from transformers import CLIPTextModel, CLIPTextModelWithProjection

    tokenizer = clip_tokenizer()
    encoder = clip(CLIPTextModelWithProjection if projects else CLIPTextModel, tokenizer)
    return {f"text_encoder{number}": encoder, f"tokenizer{number}": tokenizer}


def t5_tokenizer() -> HubObject:
    from transformers import T5Tokenizer

    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    plain = [(letter, -3.0) for letter in string.ascii_letters + string.digits + string.punctuation]
    return T5Tokenizer(vocab=[*special, *plain, *((f"<extra_id_{i}>", 0.0) for i in reversed(range(100)))])


def t5_reader(number: str = "") -> Kwargs:
    """A T5 and its tokenizer, as a pipeline names its parts."""
    from transformers import T5Config, T5EncoderModel

    tokenizer = t5_tokenizer()
    config = T5Config(vocab_size=len(tokenizer), d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    return {f"text_encoder{number}": T5EncoderModel(config), f"tokenizer{number}": tokenizer}


def mrope(*sections: int) -> Kwargs:
    """Places in time, rows and columns, as the text of a Qwen-VL turns by them."""
    return {"rope_type": "default", "rope_theta": 1e4, "mrope_section": list(sections)}


def qwen_encoder(tokenizer: HubObject) -> HubObject:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    ids: Kwargs = {
        "bos_token_id": None,
        "eos_token_id": tokenizer.convert_tokens_to_ids(STOP),
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = Qwen2_5_VLConfig(
        text_config={**TEXT, **ids, "vocab_size": len(tokenizer), "rope_parameters": mrope(1, 1, 2)},
        vision_config={**VISION, "depth": 1, "num_heads": 2, "out_hidden_size": 32, "fullatt_block_indexes": [0]},
        **qwen_ids(tokenizer),
    )
    return Qwen2_5_VLForConditionalGeneration(config)
