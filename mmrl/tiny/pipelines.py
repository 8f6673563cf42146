"""Flow-matching pipelines of the real classes with some 0.1 M random weights, saved to a folder.

`build("sd3", folder)` needs no download. Tokenizers know single characters. Images are small multiples of 4 pixels: the
autoencoders halve them once (sd3, flux) or twice (qwen_image), and two latents make a token.
"""

import string
from collections.abc import Callable
from pathlib import Path

import torch

from mmrl.tiny.byte_tokens import STOP, TEXT, HubObject, Kwargs
from mmrl.tiny.tokenizer import qwen_tokenizer
from mmrl.tiny.vlms import QWEN_TOKENS, VISION, draw_weights

CLIP_TOKENS = 32
"""Prompts of the CLIP encoders end here."""
LATENTS = 4
"""Channels."""
QWEN_TEMPLATE = (
    "system\nDescribe the image by detailing the color, shape, size, texture, quantity, text, spatial relationships of the "
    "objects and background:\nuser\n"
)
"""The text that Qwen-Image writes before a prompt and cuts off again by its 34 tokens: here, too, every word must be one."""
HEADS: Kwargs = {"attention_head_dim": 16, "num_attention_heads": 2}


def build(family: str, folder: Path, seed: int = 0) -> Path:
    """Save a pipeline of one family to `folder` and return it.

    Raises:
        ValueError: no such family.
    """
    if family not in PIPELINES:
        raise ValueError(f"no tiny pipeline of family {family!r}: choose one of {', '.join(PIPELINES)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pipeline = PIPELINES[family]()
        draw_weights(pipeline.transformer)
        calm(pipeline.transformer)
    pipeline.save_pretrained(folder)
    return folder


def diffusers_object(name: str, **settings: object) -> HubObject:
    """An object of a class of diffusers."""
    import diffusers

    return getattr(diffusers, name)(**settings)


@torch.no_grad()
def calm(transformer: HubObject) -> None:
    """Shrink weights, so that velocities have size 1 and do not blow small differences of their input up."""
    transformer.proj_out.weight *= 0.5
    for name, weight in transformer.named_parameters():
        if ("norm" in name or "_mod" in name) and weight.ndim > 1:
            weight *= 0.3


def sd3() -> HubObject:
    """A Stable Diffusion 3 with two CLIP encoders and no T5."""
    from transformers import CLIPTextModelWithProjection

    first, second = clip_tokenizer(), clip_tokenizer()
    transformer = diffusers_object(
        "SD3Transformer2DModel",
        sample_size=8,
        patch_size=2,
        in_channels=LATENTS,
        out_channels=LATENTS,
        num_layers=2,
        joint_attention_dim=64,
        caption_projection_dim=32,
        pooled_projection_dim=64,
        pos_embed_max_size=16,
        **HEADS,
    )
    return diffusers_object(
        "StableDiffusion3Pipeline",
        transformer=transformer,
        scheduler=scheduler(shift=3.0),
        vae=autoencoder(),
        text_encoder=clip(CLIPTextModelWithProjection, first),
        tokenizer=first,
        text_encoder_2=clip(CLIPTextModelWithProjection, second),
        tokenizer_2=second,
        # Absent parts must be named, here and when the folder is read.
        text_encoder_3=None,
        tokenizer_3=None,
    )


def flux() -> HubObject:
    """A FLUX with the guidance as an input, as in FLUX.1-dev."""
    from transformers import CLIPTextModel, T5Config, T5EncoderModel

    first, second = clip_tokenizer(), t5_tokenizer()
    transformer = diffusers_object(
        "FluxTransformer2DModel",
        patch_size=1,
        in_channels=4 * LATENTS,
        num_layers=1,
        num_single_layers=1,
        joint_attention_dim=32,
        pooled_projection_dim=32,
        guidance_embeds=True,
        axes_dims_rope=(4, 4, 8),
        **HEADS,
    )
    t5 = T5Config(vocab_size=len(second), d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)
    return diffusers_object(
        "FluxPipeline",
        transformer=transformer,
        scheduler=scheduler(use_dynamic_shifting=True),
        vae=autoencoder(),
        text_encoder=clip(CLIPTextModel, first),
        tokenizer=first,
        text_encoder_2=T5EncoderModel(t5),
        tokenizer_2=second,
    )


def qwen_image() -> HubObject:
    """A Qwen-Image: Qwen2.5-VL reads the prompt, the autoencoder is a video's, and steps end at sigma 0.02."""

    tokenizer = qwen_tokenizer([QWEN_TEMPLATE], num_tokens=500)
    vae = diffusers_object(
        "AutoencoderKLQwenImage",
        base_dim=8,
        z_dim=LATENTS,
        dim_mult=[1, 2, 2],
        num_res_blocks=1,
        temperal_downsample=[False, True],
        latents_mean=[0.1, -0.1, 0.2, 0.0],
        latents_std=[0.9, 1.1, 1.0, 1.2],
    )
    transformer = diffusers_object(
        "QwenImageTransformer2DModel",
        patch_size=2,
        in_channels=4 * LATENTS,
        out_channels=LATENTS,
        num_layers=2,
        joint_attention_dim=32,
        axes_dims_rope=(4, 6, 6),
        **HEADS,
    )
    return diffusers_object(
        "QwenImagePipeline",
        transformer=transformer,
        scheduler=scheduler(use_dynamic_shifting=True, shift_terminal=0.02),
        vae=vae,
        text_encoder=qwen_encoder(tokenizer),
        tokenizer=tokenizer,
    )


def scheduler(**settings: object) -> HubObject:
    return diffusers_object("FlowMatchEulerDiscreteScheduler", **settings)


def autoencoder() -> HubObject:
    """An autoencoder that halves both sides once."""

    return diffusers_object(
        "AutoencoderKL",
        sample_size=16,
        block_out_channels=(8, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=LATENTS,
        norm_num_groups=4,
        scaling_factor=1.5,
        shift_factor=0.06,
        use_quant_conv=False,
        use_post_quant_conv=False,
    )


def letters() -> list[str]:
    """A printable stand-in for every byte."""
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def clip_tokenizer() -> HubObject:
    from transformers import CLIPTokenizer

    words = [*letters(), *(letter + "</w>" for letter in letters()), "<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={word: i for i, word in enumerate(words)}, merges=[], model_max_length=CLIP_TOKENS)


def clip(kind: Callable[..., HubObject], tokenizer: HubObject) -> HubObject:
    from transformers import CLIPTextConfig

    return kind(
        CLIPTextConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=CLIP_TOKENS,
            projection_dim=32,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )


def t5_tokenizer() -> HubObject:
    from transformers import T5Tokenizer

    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    plain = [(letter, -3.0) for letter in string.ascii_letters + string.digits + string.punctuation]
    return T5Tokenizer(vocab=[*special, *plain, *((f"<extra_id_{i}>", 0.0) for i in reversed(range(100)))])


def qwen_encoder(tokenizer: HubObject) -> HubObject:
    from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    ids: Kwargs = {
        "bos_token_id": None,
        "eos_token_id": tokenizer.convert_tokens_to_ids(STOP),
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = Qwen2_5_VLConfig(
        text_config={**TEXT, **ids, "vocab_size": len(tokenizer), "rope_parameters": rope},
        vision_config={**VISION, "depth": 1, "num_heads": 2, "out_hidden_size": 32, "fullatt_block_indexes": [0]},
        **{f"{name}_id": tokenizer.convert_tokens_to_ids(token) for name, token in QWEN_TOKENS.items()},
    )
    return Qwen2_5_VLForConditionalGeneration(config)


PIPELINES: dict[str, Callable[[], HubObject]] = {"sd3": sd3, "flux": flux, "qwen_image": qwen_image}
