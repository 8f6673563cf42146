"""Flow-matching pipelines of the real classes with some 0.1 M random weights, saved to a folder.

`build("sd3", folder)` needs no download. Tokenizers know single characters. Images are small multiples of 4 pixels: the
autoencoders halve them once (sd3, flux) or twice (qwen_image), and two latents make a token.
"""

from collections.abc import Callable
from pathlib import Path

import torch

from mmrl.lab.tiny.byte_tokens import HubObject, Kwargs, hub, processor_of
from mmrl.lab.tiny.flow.clip_pipelines import CLIP_PIPELINES
from mmrl.lab.tiny.flow.late_pipelines import LATE_PIPELINES
from mmrl.lab.tiny.flow.pipeline_parts import (
    QWEN_TEMPLATE,
    autoencoder,
    clip_reader,
    network,
    qwen_encoder,
    scheduler,
    t5_reader,
)
from mmrl.lab.tiny.flow.sound import SOUND_PIPELINES
from mmrl.lab.tiny.text.vlms import draw_weights
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


PIPELINES: dict[str, Callable[[], HubObject]] = {
    "sd3": sd3,
    "flux": flux,
    "kontext": lambda: hub("FluxKontextPipeline", **flux().components),
    "qwen_image": qwen_image,
    "qwen_edit": lambda: qwen_edit_of(qwen_image()),
    "qwen_edit_2511": lambda: qwen_edit_of(qwen_image(), zero_cond_t=True),
    **LATE_PIPELINES,
    **CLIP_PIPELINES,
    **SOUND_PIPELINES,
}
