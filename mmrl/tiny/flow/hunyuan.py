"""A HunyuanVideo 1.5 of the real classes with random weights: clips of multiples of 4 pixels and 2k + 1 frames."""

import inspect

from mmrl.tiny.byte_tokens import HubObject, Kwargs
from mmrl.tiny.flow.late_pipelines import HIDDEN, chat_tokenizer, qwen3
from mmrl.tiny.flow.pipeline_parts import LATENTS, diffusers_object, scheduler


def hunyuan15() -> HubObject:
    """Its guider keeps guidance 3."""
    from diffusers.pipelines.hunyuan_video1_5.pipeline_hunyuan_video1_5 import HunyuanVideo15Pipeline
    from transformers import ByT5Tokenizer, T5Config, T5EncoderModel
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLTextModel

    reads = inspect.signature(HunyuanVideo15Pipeline._get_mllm_prompt_embeds).parameters
    tokenizer = chat_tokenizer("system\n", reads["system_message"].default)
    rope = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [1, 1, 2]}
    ids: Kwargs = {"bos_token_id": None, "eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id}
    text = {**qwen3(tokenizer, 3), **ids, "rope_parameters": rope, "max_position_embeddings": 2048}
    byt5 = T5Config(d_model=32, d_kv=4, d_ff=16, num_layers=2, num_heads=2, vocab_size=384, feed_forward_proj="gated-gelu")
    transformer = diffusers_object(
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
        image_embed_dim=12,
        rope_axes_dim=(2, 2, 4),
        target_size=16,
        task_type="t2v",
    )
    vae = diffusers_object(
        "AutoencoderKLHunyuanVideo15",
        latent_channels=LATENTS,
        block_out_channels=(16, 16),
        layers_per_block=1,
        spatial_compression_ratio=4,
        temporal_compression_ratio=2,
        downsample_match_channel=False,
        upsample_match_channel=False,
    )
    return diffusers_object(
        "HunyuanVideo15Pipeline",
        transformer=transformer,
        vae=vae,
        scheduler=scheduler(shift=7.0),
        text_encoder=Qwen2_5_VLTextModel(Qwen2_5_VLTextConfig(**text)),
        tokenizer=tokenizer,
        text_encoder_2=T5EncoderModel(byt5),
        tokenizer_2=ByT5Tokenizer(),
        guider=diffusers_object("ClassifierFreeGuidance", guidance_scale=3.0),
    )
