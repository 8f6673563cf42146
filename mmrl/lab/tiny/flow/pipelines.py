"""Flow-matching pipelines of the real classes with some 0.1 M random weights, saved to a folder.

`build("sd3", folder)` needs no download. Tokenizers know single characters. Images are small multiples of 4 pixels: the
autoencoders halve them once (sd3, flux) or twice (qwen_image), and two latents make a token. Clips of HunyuanVideo and LTX-2 are
multiples of 4 pixels and 2k + 1 frames. Those of Wan and SANA-Video: multiples of 16 pixels (32 for `wan_5b`) and 4k + 1 frames:
the autoencoder halves both sides three times and time twice.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import torch

from mmrl.lab.tiny.byte_tokens import HubObject, Kwargs, hub, model_of, processor_of, rope
from mmrl.lab.tiny.flow.pipeline_parts import (
    HIDDEN,
    LATENTS,
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
    t5,
    t5_reader,
    t5_tokenizer,
)
from mmrl.lab.tiny.flow.sound_generator import stable_audio3
from mmrl.lab.tiny.text.vlms import by_name, draw_weights, gemma3, qwen3_vl
from mmrl.lab.tiny.tokenizer import qwen_tokenizer

BOUNDARY = 0.6
"""The share of the way, from the noise, below which the second expert works; 0.875 in Wan 2.2 A14B."""
FROM_FRAME, CHANNELS = "WanImageToVideoPipeline", 2 * LATENTS + 4
"""The class of pipelines from a first frame, and what their networks take: latents, those of the frame, and a mask."""
PLACES = 4096
"""Of the texts of Sana, which an instruction stands before."""
ROPE: Kwargs = {"rope_type": "split", "rope_double_precision": False}


def wan(kind: str = "WanPipeline", **parts: object) -> HubObject:
    """A Wan 2.1 of text to video; `parts` take the place of the usual ones."""
    tokenizer = t5_tokenizer()
    usual: Kwargs = {
        "tokenizer": tokenizer,
        "text_encoder": t5(tokenizer, "UMT5"),
        "vae": parts.get("vae") or network("AutoencoderKLWan"),
        "scheduler": scheduler(shift=3.0),
        "transformer": wan_network(),
        "transformer_2": None,
    }
    return hub(kind, **(usual | parts))


def wan_network(channels: int = LATENTS, **settings: object) -> HubObject:
    return network("WanTransformer3DModel", in_channels=channels, **settings)


def wan_a14b() -> HubObject:
    """A Wan 2.2 A14B: one expert for the noisy part of the way, another one for the rest."""
    return wan(transformer_2=wan_network(), boundary_ratio=BOUNDARY)


def wan_5b() -> HubObject:
    """A Wan 2.2 5B: every token has a time, and the autoencoder takes patches of 2 x 2 pixels."""
    patches: Kwargs = {"in_channels": 12, "out_channels": 12, "patch_size": 2, "scale_factor_spatial": 16}
    return wan(vae=network("AutoencoderKLWan", **patches), expand_timesteps=True)


def wan_i2v() -> HubObject:
    """A Wan 2.1 from a first frame, which its network sees as channels and through CLIP."""
    sees: Kwargs = {"size": {"shortest_edge": 28}, "crop_size": {"height": 28, "width": 28}}
    sizes: Kwargs = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2}
    return wan(
        FROM_FRAME,
        transformer=wan_network(CHANNELS, image_dim=32, added_kv_proj_dim=24),
        image_encoder=hub("CLIPVisionModel", hub("CLIPVisionConfig", **sizes, image_size=28, patch_size=14)),
        image_processor=hub("CLIPImageProcessor", **sees),
    )


def wan_i2v_a14b() -> HubObject:
    """A Wan 2.2 A14B from a first frame: two experts, without CLIP."""
    experts: Kwargs = {"transformer": wan_network(CHANNELS), "transformer_2": wan_network(CHANNELS)}
    return wan(FROM_FRAME, **experts, boundary_ratio=BOUNDARY, image_encoder=None, image_processor=None)


def sana() -> HubObject:
    """A Sana with the DPM-Solver that it is published with."""
    parts: Kwargs = {"transformer": network("SanaTransformer2DModel"), "vae": network("AutoencoderDC")}
    return hub("SanaPipeline", scheduler=solver(), **parts, **gemma2(max_position_embeddings=PLACES))


def sana_video(kind: str = "SanaVideoPipeline", table: Callable[[], HubObject] | None = None) -> HubObject:
    """A SANA-Video, two blocks of linear attention over Wan's latents."""
    transformer, reader = network("SanaVideoTransformer3DModel"), gemma2(max_position_embeddings=PLACES)
    return hub(kind, vae=network("AutoencoderKLWan"), transformer=transformer, scheduler=(table or solver)(), **reader)


def solver() -> HubObject:
    return network("DPMSolverMultistepScheduler")


def hunyuan15(kind: str = "HunyuanVideo15Pipeline", task: str = "t2v", **parts: object) -> HubObject:
    """Its guider keeps guidance 3; `parts` are further ones."""
    from diffusers.pipelines.hunyuan_video1_5.pipeline_hunyuan_video1_5 import HunyuanVideo15Pipeline
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLTextModel

    reads = inspect.signature(HunyuanVideo15Pipeline._get_mllm_prompt_embeds).parameters
    tokenizer = chat_tokenizer("system\n", reads["system_message"].default)
    ids: Kwargs = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    text = {**qwen3(tokenizer, 3), **ids, "rope_parameters": rope(1, 1, 2), "max_position_embeddings": 2048}
    byt5 = hub("T5Config", d_model=32, d_kv=4, d_ff=16, num_layers=2, num_heads=2, vocab_size=384, feed_forward_proj="gated-gelu")
    return hub(
        kind,
        transformer=network("HunyuanVideo15Transformer3DModel", task_type=task),
        vae=network("AutoencoderKLHunyuanVideo15"),
        scheduler=scheduler(shift=7.0),
        text_encoder=Qwen2_5_VLTextModel(Qwen2_5_VLTextConfig(**text)),
        tokenizer=tokenizer,
        text_encoder_2=hub("T5EncoderModel", byt5),
        tokenizer_2=hub("ByT5Tokenizer"),
        guider=hub("ClassifierFreeGuidance", guidance_scale=3.0),
        **parts,
    )


def hunyuan15_i2v() -> HubObject:
    """One that goes on from a first frame, which a SigLIP sees as 2 x 2 tokens."""
    sizes: Kwargs = {"hidden_size": 12, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    siglip = hub("SiglipVisionModel", hub("SiglipVisionConfig", **sizes, image_size=28, patch_size=14))
    sees = hub("SiglipImageProcessor", size={"height": 28, "width": 28})
    return hunyuan15("HunyuanVideo15ImageToVideoPipeline", "i2v", image_encoder=siglip, feature_extractor=sees)


def ltx2(newer: bool = False, kind: str = "LTX2Pipeline") -> HubObject:
    """An LTX-2: prompts may have any number of tokens, as the connectors have no registers; those of 2.3 (`newer`) have one."""
    reader, processor = gemma3()
    draw_weights(reader)
    width, layers = reader.config.text_config.hidden_size, reader.config.text_config.num_hidden_layers
    shift: Kwargs = {"base_shift": 0.95, "max_shift": 2.05, "base_image_seq_len": 1024, "max_image_seq_len": 4096}
    return hub(
        kind,
        scheduler=scheduler(use_dynamic_shifting=True, shift_terminal=0.1, **shift),
        vae=ltx2_autoencoder(),
        audio_vae=network("AutoencoderKLLTX2Audio"),
        text_encoder=reader,
        tokenizer=processor.tokenizer,
        connectors=connectors(width, layers, newer),
        transformer=ltx2_network(width, newer),
        vocoder=vocoder(newer),
    )


def connectors(width: int, layers: int, newer: bool) -> HubObject:
    """Two, which read the embeddings and all layers of a text encoder of this width; those of 2.3 are as wide as their media."""
    from diffusers.pipelines.ltx2.connectors import LTX2TextConnectors

    each: Kwargs = {"num_attention_heads": 4, "num_layers": 1, "num_learnable_registers": 1 if newer else None}
    own: Kwargs = {"per_modality_projections": True, "video_gated_attn": True, "audio_gated_attn": True, "proj_bias": True}
    clip, sound = (16, 8) if newer else (width, width)
    return LTX2TextConnectors(
        caption_channels=width,
        text_proj_in_factor=layers + 1,
        connector_rope_base_seq_len=32,
        video_connector_attention_head_dim=clip // 4,
        audio_connector_attention_head_dim=sound // 4,
        video_hidden_dim=clip,
        audio_hidden_dim=sound,
        **{f"{part}_connector_{name}": value for part in ("video", "audio") for name, value in each.items()},
        **(own if newer else {}),
        **ROPE,
    )


def ltx2_network(width: int, newer: bool) -> HubObject:
    """Two blocks; that of 2.3 reads the connectors as they are, where the other one projects captions of this width."""
    switches = ("cross_attn_mod", "audio_cross_attn_mod", "gated_attn", "audio_gated_attn", "perturbed_attn")
    own: Kwargs = {"use_prompt_embeddings": False, **dict.fromkeys(switches, True)}
    return network("LTX2VideoTransformer3DModel", caption_channels=width, **(own if newer else {}))


def ltx2_autoencoder() -> HubObject:
    """Four pixels and two frames a latent, each channel with moments of its own."""
    found = network("AutoencoderKLLTX2Video")
    found.latents_mean.copy_(torch.tensor([0.1, -0.1, 0.2, 0.0]))
    found.latents_std.copy_(torch.tensor([0.9, 1.1, 0.5, 1.2]))
    return found


def vocoder(newer: bool) -> HubObject:
    """Four samples a frame; that of 2.3 doubles the rate again, from the spectrum of its own sound."""
    from diffusers.pipelines.ltx2.vocoder import LTX2Vocoder, LTX2VocoderWithBWE

    layers: Kwargs = {
        "in_channels": 2 * 8,
        "hidden_channels": 16,
        "upsample_kernel_sizes": [4, 4],
        "upsample_factors": [2, 2],
        "resnet_kernel_sizes": [3],
        "resnet_dilations": [[1, 3, 5]],
    }
    if not newer:
        return LTX2Vocoder(output_sampling_rate=400, **layers)
    upper: Kwargs = {f"bwe_{name}": value for name, value in layers.items()} | {"bwe_upsample_factors": [4, 2]}
    window: Kwargs = {"filter_length": 16, "hop_length": 4, "window_length": 16, "num_mel_channels": 8}
    return LTX2VocoderWithBWE(input_sampling_rate=400, output_sampling_rate=800, **layers, **upper, **window)


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
        "ChromaPipeline", transformer=network("ChromaTransformer2DModel"), vae=autoencoder(), scheduler=scheduler(), **t5_reader()
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


PIPELINES: Mapping[str, Callable[[], HubObject]] = {
    **by_name(sd3, flux),
    "kontext": lambda: hub("FluxKontextPipeline", **flux().components),
    **by_name(qwen_image),
    "qwen_edit": lambda: qwen_edit_of(qwen_image()),
    "qwen_edit_2511": lambda: qwen_edit_of(qwen_image(), zero_cond_t=True),
    **by_name(z_image, flux2, flux2_klein, krea2, qwen_image21, chroma, lumina2, sd15, sdxl, sana, sana_video),
    "sana_i2v": partial(sana_video, "SanaImageToVideoPipeline", partial(scheduler, shift=3.0)),
    **by_name(hunyuan15, hunyuan15_i2v, ltx2),
    "ltx23": partial(ltx2, newer=True),
    "ltx2_i2v": partial(ltx2, kind="LTX2ImageToVideoPipeline"),
    **by_name(wan, wan_5b, wan_a14b, wan_i2v, wan_i2v_a14b, stable_audio3),
}
"""Name -> how it is built."""
