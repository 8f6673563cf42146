"""Tiny pipelines of the newer families, and of Stable Diffusion 1.5 and XL; see pipelines.py."""

from collections.abc import Callable

from mmrl.lab.tiny.byte_tokens import HubObject, Kwargs, byte_tokenizer, hub, model_of, rope
from mmrl.lab.tiny.flow.pipeline_parts import (
    QWEN_TEMPLATE,
    autoencoder,
    clip_reader,
    halving_autoencoder,
    network,
    scheduler,
    t5_reader,
)
from mmrl.lab.tiny.text.vlms import draw_weights, qwen3_vl
from mmrl.lab.tiny.tokenizer import CHAT_TEMPLATE, qwen_tokenizer

HIDDEN = 16
"""Of the language models that read prompts."""


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


def z_image() -> HubObject:
    """A Z-Image with Qwen3."""
    tokenizer = chat_tokenizer()
    return hub(
        "ZImagePipeline",
        transformer=network("ZImageTransformer2DModel"),
        vae=autoencoder(),
        scheduler=scheduler(shift=3.0),
        text_encoder=hub("Qwen3Model", hub("Qwen3Config", **qwen3(tokenizer, 2))),
        tokenizer=tokenizer,
    )


def flux2_parts(embeds_guidance: bool) -> Kwargs:
    """Transformer, autoencoder and scheduler of a FLUX.2."""
    transformer = network("Flux2Transformer2DModel", guidance_embeds=embeds_guidance)
    vae = halving_autoencoder("AutoencoderKLFlux2", sample_size=32, layers_per_block=1)
    vae.bn.running_mean.normal_(0, 0.3)
    vae.bn.running_var.uniform_(0.5, 2)
    return {"transformer": transformer, "vae": vae, "scheduler": scheduler(use_dynamic_shifting=True)}


def flux2() -> HubObject:
    """A FLUX.2-dev: 30 layers of a Mistral-3, of which three are read, and the guidance as an input."""
    from diffusers.pipelines.flux2.system_messages import SYSTEM_MESSAGE

    tokenizer = chat_tokenizer(SYSTEM_MESSAGE, "system\n")
    tokenizer.padding_side = "left"
    text = {**qwen3(tokenizer, 30), "model_type": "mistral"}
    vision: Kwargs = {"model_type": "pixtral", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 4}
    vision |= {"intermediate_size": 32, "image_size": 30, "patch_size": 6}
    encoder = model_of("Mistral3", text_config=text, vision_config=vision, image_token_index=1)
    return hub("Flux2Pipeline", text_encoder=encoder, tokenizer=tokenizer, **flux2_parts(True))


def flux2_klein(is_distilled: bool = False) -> HubObject:
    """A FLUX.2-klein with 27 layers of a Qwen3."""
    tokenizer = chat_tokenizer()
    encoder = hub("Qwen3ForCausalLM", hub("Qwen3Config", **qwen3(tokenizer, 27)))
    parts = flux2_parts(False)
    return hub("Flux2KleinPipeline", text_encoder=encoder, tokenizer=tokenizer, is_distilled=is_distilled, **parts)


def krea2(is_distilled: bool = False) -> HubObject:
    """A Krea 2 with three layers of a Qwen3-VL."""
    tokenizer = chat_tokenizer(QWEN_TEMPLATE, "assistant\n")
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": HIDDEN}
    config = hub(
        "Qwen3VLConfig",
        text_config={**qwen3(tokenizer, 2), "rope_parameters": rope(2, 1, 1), "pad_token_id": tokenizer.pad_token_id},
        vision_config={**vision, "deepstack_visual_indexes": [0]},
    )
    return hub(
        "Krea2Pipeline",
        transformer=network("Krea2Transformer2DModel"),
        vae=network("AutoencoderKLQwenImage"),
        text_encoder=hub("Qwen3VLModel", config),
        tokenizer=tokenizer,
        text_encoder_select_layers=(0, 1, 2),
        is_distilled=is_distilled,
        scheduler=scheduler(use_dynamic_shifting=True, max_image_seq_len=6400),
    )


def qwen_image21() -> HubObject:
    """A Qwen-Image-2.1, whose autoencoder halves both sides four times and keeps an alpha channel."""
    text, processor = qwen3_vl()
    draw_weights(text)
    processor.image_processor.size["shortest_edge"] = 32 * 32
    return hub(
        "QwenImage21Pipeline",
        transformer=network("QwenImage21Transformer2DModel"),
        vae=network("AutoencoderKLQwenImage21"),
        text_encoder=text,
        processor=processor,
        scheduler=scheduler(use_dynamic_shifting=True, max_shift=0.9, max_image_seq_len=8192, shift_terminal=0.02),
    )


def chroma() -> HubObject:
    """A Chroma with a T5."""
    return hub(
        "ChromaPipeline",
        transformer=network("ChromaTransformer2DModel"),
        vae=autoencoder(),
        scheduler=scheduler(),
        **t5_reader(),
    )


def lumina2() -> HubObject:
    """A Lumina-Image 2, whose pipeline expects an autoencoder that halves both sides three times."""
    return hub(
        "Lumina2Pipeline",
        transformer=network("Lumina2Transformer2DModel"),
        vae=halving_autoencoder("AutoencoderKL", 3, sample_size=16, scaling_factor=1.5, shift_factor=0.06),
        scheduler=scheduler(shift=6.0),
        **gemma2(),
    )


def unet(width: int, **settings: object) -> HubObject:
    return network("UNet2DConditionModel", cross_attention_dim=width, **settings)


def sd15() -> HubObject:
    """A Stable Diffusion 1.5 without a safety checker."""
    return hub(
        "StableDiffusionPipeline",
        unet=unet(32),
        vae=autoencoder(),
        scheduler=network("DDIMScheduler"),
        **clip_reader(projects=False),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def sdxl() -> HubObject:
    """A Stable Diffusion XL."""
    added: Kwargs = {
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 6 * 8 + 32,
    }
    return hub(
        "StableDiffusionXLPipeline",
        unet=unet(64, **added),
        vae=autoencoder(),
        scheduler=network("DDIMScheduler"),
        **clip_reader(projects=False),
        **clip_reader("_2"),
        add_watermarker=False,
    )


LATE_PIPELINES: dict[str, Callable[[], HubObject]] = {
    "z_image": z_image,
    "flux2": flux2,
    "flux2_klein": flux2_klein,
    "krea2": krea2,
    "qwen_image21": qwen_image21,
    "chroma": chroma,
    "lumina2": lumina2,
    "sd15": sd15,
    "sdxl": sdxl,
}
