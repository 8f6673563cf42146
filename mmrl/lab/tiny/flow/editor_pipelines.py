"""Editors of random weights, made of the parts of the generators that they descend from."""

from mmrl.lab.tiny.byte_tokens import HubObject, Kwargs
from mmrl.lab.tiny.flow.pipeline_parts import diffusers_object, qwen_encoder
from mmrl.lab.tiny.tokenizer import qwen_tokenizer

QWEN_EDIT_TEMPLATE = (
    "system\nDescribe the key features of the input image (color, shape, size, texture, objects, background), then explain how "
    "the user's text instruction should alter or modify the image. Generate a new image that meets the user's requirements while "
    "maintaining consistency with the original input where appropriate.\nPicture 1: "
)
"""The text of Qwen-Image-Edit before a prompt, of which it cuts 64 tokens off, and what stands before a picture."""


def kontext_of(flux: HubObject) -> HubObject:
    """A FLUX.1-Kontext of a FLUX.1's parts."""
    return diffusers_object("FluxKontextPipeline", **flux.components)


def qwen_edit_of(qwen_image: HubObject, zero_cond_t: bool = False) -> HubObject:
    """A Qwen-Image-Edit-2509 of a Qwen-Image's parts; with `zero_cond_t`, which keeps pictures at time 0, a -2511."""
    from transformers import Qwen2_5_VLProcessor, Qwen2VLImageProcessor, Qwen2VLVideoProcessor

    tokenizer = qwen_tokenizer([QWEN_EDIT_TEMPLATE], num_tokens=900)
    size = {"shortest_edge": 28 * 28, "longest_edge": 112 * 112}
    sees: Kwargs = {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 2, "size": size}
    processor = Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessor(**sees), tokenizer=tokenizer, video_processor=Qwen2VLVideoProcessor(**sees)
    )
    transformer = qwen_image.transformer
    return diffusers_object(
        "QwenImageEditPlusPipeline",
        transformer=type(transformer).from_config(transformer.config, zero_cond_t=zero_cond_t),
        scheduler=qwen_image.scheduler,
        vae=qwen_image.vae,
        text_encoder=qwen_encoder(tokenizer),
        tokenizer=tokenizer,
        processor=processor,
    )
