"""A HunyuanVideo 1.5 of the real classes with random weights: clips of multiples of 4 pixels and 2k + 1 frames."""

import inspect
from collections.abc import Callable

from mmrl.lab.tiny.byte_tokens import HubObject, Kwargs, hub, rope
from mmrl.lab.tiny.flow.late_pipelines import HIDDEN, chat_tokenizer, qwen3
from mmrl.lab.tiny.flow.pipeline_parts import LATENTS, scheduler

VIEW = 12
"""The width of what is seen of a first frame."""


def hunyuan15_i2v() -> HubObject:
    """One that goes on from a first frame, which a SigLIP sees as 2 x 2 tokens."""
    sizes: Kwargs = {"hidden_size": VIEW, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    siglip = hub("SiglipVisionModel", hub("SiglipVisionConfig", **sizes, image_size=28, patch_size=14))
    sees = hub("SiglipImageProcessor", size={"height": 28, "width": 28})
    return hunyuan15("HunyuanVideo15ImageToVideoPipeline", "i2v", image_encoder=siglip, feature_extractor=sees)


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
    transformer = hub(
        "HunyuanVideo15Transformer3DModel",
        in_channels=2 * LATENTS + 1,
        out_channels=LATENTS,
        num_attention_heads=2,
        attention_head_dim=8,
        num_layers=2,
        num_refiner_layers=1,
        mlp_ratio=2.0,
        text_embed_dim=HIDDEN,
        text_embed_2_dim=32,
        image_embed_dim=VIEW,
        rope_axes_dim=(2, 2, 4),
        target_size=16,
        task_type=task,
    )
    vae = hub(
        "AutoencoderKLHunyuanVideo15",
        latent_channels=LATENTS,
        block_out_channels=(16, 16),
        layers_per_block=1,
        spatial_compression_ratio=4,
        temporal_compression_ratio=2,
        downsample_match_channel=False,
        upsample_match_channel=False,
    )
    return hub(
        kind,
        transformer=transformer,
        vae=vae,
        scheduler=scheduler(shift=7.0),
        text_encoder=Qwen2_5_VLTextModel(Qwen2_5_VLTextConfig(**text)),
        tokenizer=tokenizer,
        text_encoder_2=hub("T5EncoderModel", byt5),
        tokenizer_2=hub("ByT5Tokenizer"),
        guider=hub("ClassifierFreeGuidance", guidance_scale=3.0),
        **parts,
    )


HUNYUAN_PIPELINES: dict[str, Callable[[], HubObject]] = {"hunyuan15": hunyuan15, "hunyuan15_i2v": hunyuan15_i2v}
"""Name -> how it is built."""
