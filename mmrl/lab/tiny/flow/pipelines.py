"""Flow-matching pipelines of the real classes with some 0.1 M random weights, saved to a folder.

`build("sd3", folder)` needs no download. Tokenizers know single characters. Images are small multiples of 4 pixels: the
autoencoders halve them once (sd3, flux) or twice (qwen_image), and two latents make a token.
"""

from collections.abc import Callable
from pathlib import Path

import torch

from mmrl.lab.tiny.byte_tokens import HubObject, Kwargs, hub, model_of, processor_of, rope
from mmrl.lab.tiny.flow.clip_pipelines import CLIP_PIPELINES
from mmrl.lab.tiny.flow.pipeline_parts import (
    HIDDEN,
    QWEN_TEMPLATE,
    autoencoder,
    chat_tokenizer,
    clip_reader,
    gemma2,
    halving_autoencoder,
    network,
    qwen3,
    qwen_encoder,
    scheduler,
    t5_reader,
)
from mmrl.lab.tiny.flow.sound import SOUND_PIPELINES
from mmrl.lab.tiny.text.vlms import draw_weights, qwen3_vl
from mmrl.lab.tiny.tokenizer import qwen_tokenizer

QWEN_EDIT_TEMPLATE = (
    "system\nDescribe the key features of the input image (color, shape, size, texture, objects, background), then explain how "
    "the user's text instruction should alter or modify the image. Generate a new image that meets the user's requirements while "
    "maintaining consistency with the original input where appropriate.\nPicture 1: "
)
"""The text of Qwen-Image-Edit before a prompt, of which it cuts 64 tokens off, and what stands before a picture."""


def build(family: str, folder: Path, seed: int = 0) -> Path:
    """Save a pipeline of one family to `folder` and return it; raises ValueError for an unknown family."""
    if family not in PIPELINES:
        raise ValueError(f"no tiny pipeline of family {family!r}: choose one of {', '.join(PIPELINES)}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pipeline = PIPELINES[family]()
        for name in ("transformer", "transformer_2", "unet"):
            if getattr(pipeline, name, None) is not None:
                draw_weights(getattr(pipeline, name))
                calm(getattr(pipeline, name))
    pipeline.save_pretrained(folder)
    return folder


@torch.no_grad()
def calm(network: HubObject) -> None:
    """Shrink weights, so that velocities have size 1 and do not blow small differences of their input up."""
    for name, weight in network.named_parameters():
        if name.startswith(("proj_out.", "conv_out.")) or "final_layer" in name:
            weight *= 0.5 if weight.ndim > 1 else 1.0
        elif ("norm" in name or "_mod" in name) and weight.ndim > 1:
            weight *= 0.3
        elif "pad_token" in name:
            weight.fill_(0.5)


def sd3() -> HubObject:
    """A Stable Diffusion 3 with two CLIP encoders and no T5."""
    return hub(
        "StableDiffusion3Pipeline",
        transformer=network("SD3Transformer2DModel"),
        scheduler=scheduler(shift=3.0),
        vae=autoencoder(),
        **clip_reader(),
        **clip_reader("_2"),
        # Absent parts must be named, here and when the folder is read.
        text_encoder_3=None,
        tokenizer_3=None,
    )


def flux() -> HubObject:
    """A FLUX with the guidance as an input, as in FLUX.1-dev."""
    return hub(
        "FluxPipeline",
        transformer=network("FluxTransformer2DModel"),
        scheduler=scheduler(use_dynamic_shifting=True),
        vae=autoencoder(),
        **clip_reader(projects=False),
        **t5_reader("_2"),
    )


def qwen_image() -> HubObject:
    """A Qwen-Image: Qwen2.5-VL reads the prompt, the autoencoder is a video's, and steps end at sigma 0.02."""
    tokenizer, vae = qwen_tokenizer([QWEN_TEMPLATE], num_tokens=500), network("AutoencoderKLQwenImage")
    return hub(
        "QwenImagePipeline",
        transformer=network("QwenImageTransformer2DModel"),
        scheduler=scheduler(use_dynamic_shifting=True, shift_terminal=0.02),
        vae=vae,
        text_encoder=qwen_encoder(tokenizer),
        tokenizer=tokenizer,
    )


def qwen_edit_of(qwen_image: HubObject, zero_cond_t: bool = False) -> HubObject:
    """A Qwen-Image-Edit-2509 of a Qwen-Image's parts; with `zero_cond_t`, which keeps pictures at time 0, a -2511."""
    tokenizer = qwen_tokenizer([QWEN_EDIT_TEMPLATE], num_tokens=900)
    size = {"shortest_edge": 28 * 28, "longest_edge": 112 * 112}
    sees: Kwargs = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2, "size": size}
    transformer = qwen_image.transformer
    return hub(
        "QwenImageEditPlusPipeline",
        transformer=type(transformer).from_config(transformer.config, zero_cond_t=zero_cond_t),
        scheduler=qwen_image.scheduler,
        vae=qwen_image.vae,
        text_encoder=qwen_encoder(tokenizer),
        tokenizer=tokenizer,
        processor=processor_of("Qwen2_5_VL", tokenizer, sees, sees="Qwen2VL"),
    )


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


PIPELINES: dict[str, Callable[[], HubObject]] = {
    "sd3": sd3,
    "flux": flux,
    "kontext": lambda: hub("FluxKontextPipeline", **flux().components),
    "qwen_image": qwen_image,
    "qwen_edit": lambda: qwen_edit_of(qwen_image()),
    "qwen_edit_2511": lambda: qwen_edit_of(qwen_image(), zero_cond_t=True),
    "z_image": z_image,
    "flux2": flux2,
    "flux2_klein": flux2_klein,
    "krea2": krea2,
    "qwen_image21": qwen_image21,
    "chroma": chroma,
    "lumina2": lumina2,
    "sd15": sd15,
    "sdxl": sdxl,
    **CLIP_PIPELINES,
    **SOUND_PIPELINES,
}
