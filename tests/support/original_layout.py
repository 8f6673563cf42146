"""Weights of diffusers' networks under the names that their makers' files have: the inverse of diffusers' own converters."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from mmrl.lab.tiny.flow import pipelines
from mmrl.lab.tiny.flow.pipeline_parts import clip as clip_encoder
from mmrl.lab.tiny.flow.pipeline_parts import clip_tokenizer

Weights = dict[str, Tensor]
RESNET = {
    **{"norm1": "in_layers.0", "conv1": "in_layers.2", "norm2": "out_layers.0", "conv2": "out_layers.3"},
    **{"time_emb_proj": "emb_layers.1", "conv_shortcut": "skip_connection"},
}
UNET = {
    **{"time_embedding.linear_1": "time_embed.0", "time_embedding.linear_2": "time_embed.2", "conv_in": "input_blocks.0.0"},
    **{"add_embedding.linear_1": "label_emb.0.0", "add_embedding.linear_2": "label_emb.0.2"},
    **{"conv_norm_out": "out.0", "conv_out": "out.2"},
    **{
        "mid_block.resnets.0": "middle_block.0",
        "mid_block.attentions.0": "middle_block.1",
        "mid_block.resnets.1": "middle_block.2",
    },
}
VAE = {
    **{"mid_block.resnets.0": "mid.block_1", "mid_block.resnets.1": "mid.block_2", "mid_block.attentions.0": "mid.attn_1"},
    **{"group_norm": "norm", "to_q": "q", "to_k": "k", "to_v": "v", "to_out.0": "proj_out"},
    **{"conv_norm_out": "norm_out", "conv_shortcut": "nin_shortcut"},
}
OPEN_CLIP = {
    **{"encoder.layers": "transformer.resblocks", "layer_norm1": "ln_1", "layer_norm2": "ln_2", "fc1": "c_fc", "fc2": "c_proj"},
    **{"self_attn": "attn", "final_layer_norm": "ln_final", "embeddings.token_embedding": "token_embedding"},
}
WAN = {
    **{"condition_embedder.time_embedder.linear_1": "time_embedding.0", "condition_embedder.time_proj": "time_projection.1"},
    **{
        "condition_embedder.time_embedder.linear_2": "time_embedding.2",
        "condition_embedder.text_embedder.linear_1": "text_embedding.0",
    },
    **{"condition_embedder.text_embedder.linear_2": "text_embedding.2", "attn1": "self_attn", "attn2": "cross_attn"},
    **{".to_out.0.": ".o.", ".to_q.": ".q.", ".to_k.": ".k.", ".to_v.": ".v.", "proj_out": "head.head"},
    **{"ffn.net.0.proj": "ffn.0", "ffn.net.2": "ffn.2", "norm2": "norm9", "norm3": "norm2", "norm9": "norm3"},
}
Z_IMAGE = {
    "all_final_layer.2-1.": "final_layer.",
    "all_x_embedder.2-1.": "x_embedder.",
    "to_out.0": "out",
    "norm_k": "k_norm",
    "norm_q": "q_norm",
}
SD3 = {
    **{"pos_embed.pos_embed": "pos_embed", "pos_embed.proj": "x_embedder.proj", "proj_out": "final_layer.linear"},
    **{
        "time_text_embed.timestep_embedder.linear_1": "t_embedder.mlp.0",
        "time_text_embed.timestep_embedder.linear_2": "t_embedder.mlp.2",
    },
    **{
        "time_text_embed.text_embedder.linear_1": "y_embedder.mlp.0",
        "time_text_embed.text_embedder.linear_2": "y_embedder.mlp.2",
    },
    **{"norm_out.linear": "final_layer.adaLN_modulation.1", "transformer_blocks": "joint_blocks"},
    **{"norm1_context.linear": "context_block.adaLN_modulation.1", "norm1.linear": "x_block.adaLN_modulation.1"},
    **{"ff.net.0.proj": "x_block.mlp.fc1", "ff.net.2": "x_block.mlp.fc2"},
    **{"ff_context.net.0.proj": "context_block.mlp.fc1", "ff_context.net.2": "context_block.mlp.fc2"},
    **{"attn.to_out.0": "x_block.attn.proj", "attn.to_add_out": "context_block.attn.proj"},
    **{"attn.to_qkv": "x_block.attn.qkv", "attn.add_qkv": "context_block.attn.qkv"},
}


def renamed(weights: Mapping[str, Tensor], words: Mapping[str, str], prefix: str = "") -> Weights:
    """Weights whose names have these words for others, after a prefix."""

    def name(key: str) -> str:
        for old, new in words.items():
            key = key.replace(old, new)
        return prefix + key

    return {name(key): weight for key, weight in weights.items()}


def unet(network: Any) -> Weights:
    """A UNet as in CompVis' code: blocks are numbered through, from the input to the output."""
    each = network.config.layers_per_block + 1

    def place(match: re.Match[str]) -> str:
        side, block, kind, layer, rest = match[1], int(match[2]), match[3], int(match[4]), match[5]
        if kind.endswith("samplers"):
            number = (block + 1) * each - (side == "up")
            is_second = side == "up" and f"up_blocks.{block}.attentions.0.norm.weight" in weights
            return f"input_blocks.{number}.0.op{rest}" if side == "down" else f"output_blocks.{number}.{1 + is_second}{rest}"
        number = block * each + layer + (side == "down")
        return f"{'input' if side == 'down' else 'output'}_blocks.{number}.{int(kind == 'attentions')}{rest}"

    weights, found = network.state_dict(), Weights()
    for key, weight in weights.items():
        own = key
        if "resnets" in key:
            for old, new in RESNET.items():
                own = own.replace(old, new)
        elif key.startswith("down") and "downsamplers" in key:
            own = own.replace(".conv.", ".")
        own = re.sub(r"^(down|up)_blocks\.(\d+)\.(resnets|attentions|downsamplers|upsamplers)\.(\d+)(.*)", place, own)
        found[own] = weight
    return renamed(found, UNET, "model.diffusion_model.")


def vae(network: Any) -> Weights:
    """An autoencoder as in CompVis' code: attention's matrices are convolutions, the decoder's blocks are counted down."""
    last = len(network.config.block_out_channels) - 1
    found = Weights()
    for key, weight in network.state_dict().items():
        own = re.sub(r"down_blocks\.(\d+)\.resnets\.(\d+)", r"down.\1.block.\2", key)
        own = re.sub(r"down_blocks\.(\d+)\.downsamplers\.0", r"down.\1.downsample", own)
        own = re.sub(r"up_blocks\.(\d+)\.resnets\.(\d+)", lambda m: f"up.{last - int(m[1])}.block.{m[2]}", own)
        own = re.sub(r"up_blocks\.(\d+)\.upsamplers\.0", lambda m: f"up.{last - int(m[1])}.upsample", own)
        is_matrix = "attentions" in own and weight.ndim == 2
        found[own] = weight[:, :, None, None] if is_matrix else weight
    return renamed(found, VAE, "first_stage_model.")


def clip(network: Any, prefix: str) -> Weights:
    """CLIP's text encoder as in transformers before 5.6."""
    return {f"{prefix}text_model.{key.removeprefix('text_model.')}": weight for key, weight in network.state_dict().items()}


def open_clip(network: Any, prefix: str) -> Weights:
    """CLIP's text encoder as in open_clip: queries, keys and values are one matrix."""
    weights = {key.removeprefix("text_model."): weight for key, weight in network.state_dict().items()}
    found = {
        "text_projection": weights.pop("text_projection.weight").T,
        "positional_embedding": weights.pop("embeddings.position_embedding.weight"),
    }
    joined = fused(weights, ("q_proj", "k_proj", "v_proj"), lambda stem, end: f"{stem}in_proj_{end}")
    return renamed({**found, **joined}, OPEN_CLIP, prefix)


def fused(weights: Mapping[str, Tensor], parts: tuple[str, ...], name: Callable[[str, str], str]) -> Weights:
    """Weights in which matrices that differ in one word of their name are one; `name` makes its name of what is around."""
    first, found = parts[0], Weights()
    for key, weight in weights.items():
        if f"{first}." in key:
            stem, _, end = key.partition(f"{first}.")
            found[name(stem, end)] = torch.cat([weights[f"{stem}{part}.{end}"] for part in parts])
        elif not any(f"{part}." in key for part in parts):
            found[key] = weight
    return found


def swapped(weight: Tensor) -> Tensor:
    """Shift and scale in the other order."""
    return torch.cat([*reversed(weight.chunk(2))])


def sd3(network: Any) -> Weights:
    weights, last = network.state_dict(), len(network.transformer_blocks) - 1
    for key in weights:
        if key.startswith(("norm_out.linear", f"transformer_blocks.{last}.norm1_context.linear")):
            weights[key] = swapped(weights[key])
    weights = fused(weights, ("attn.to_q", "attn.to_k", "attn.to_v"), lambda stem, end: f"{stem}attn.to_qkv.{end}")
    weights = fused(
        weights, ("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"), lambda stem, end: f"{stem}attn.add_qkv.{end}"
    )
    return renamed(weights, SD3, "model.diffusion_model.")


def z_image(network: Any) -> Weights:
    weights = fused(network.state_dict(), ("to_q", "to_k", "to_v"), lambda stem, end: f"{stem}qkv.{end}")
    return renamed(weights, Z_IMAGE, "model.diffusion_model.")


def wan(network: Any) -> Weights:
    weights = renamed(network.state_dict(), WAN)
    return {
        key.replace("scale_shift_table", "modulation" if "blocks" in key else "head.modulation"): x for key, x in weights.items()
    }


def plain(network: Any) -> Weights:
    """The names of diffusers itself, which some files keep."""
    return network.state_dict()


def whole(pipeline: Any, is_xl: bool) -> Weights:
    """A Stable Diffusion 1.5 or XL with all its networks."""
    found = {**unet(pipeline.unet), **vae(pipeline.vae)}
    if not is_xl:
        return {**found, **clip(pipeline.text_encoder, "cond_stage_model.transformer.")}
    first = clip(pipeline.text_encoder, "conditioner.embedders.0.transformer.")
    return {**found, **first, **open_clip(pipeline.text_encoder_2, "conditioner.embedders.1.model.")}


def narrow_sdxl() -> Any:
    """A Stable Diffusion XL whose text encoders have two widths, by which diffusers tells them apart."""
    added = {
        "addition_embed_type": "text_time",
        "addition_time_embed_dim": 8,
        "projection_class_embeddings_input_dim": 6 * 8 + 16,
    }
    pipeline = pipelines.sdxl()
    pipeline.text_encoder_2 = clip_encoder("CLIPTextModelWithProjection", clip_tokenizer(), 16)
    pipeline.unet = pipelines.unet(48, **added)
    return pipeline


LAYOUTS: dict[str, Callable[[Any], Weights]] = {
    "sd15": lambda pipeline: whole(pipeline, is_xl=False),
    "sdxl": lambda pipeline: whole(pipeline, is_xl=True),
    "sd3": lambda pipeline: {**sd3(pipeline.transformer), **vae(pipeline.vae)},
    "z_image": lambda pipeline: z_image(pipeline.transformer),
    "wan": lambda pipeline: wan(pipeline.transformer),
    "flux": lambda pipeline: plain(pipeline.transformer),
}
"""Family -> what its files hold: all of it, or transformer and autoencoder, or the transformer alone."""


def make(family: str, folder: Path) -> tuple[Any, Path, Path]:
    """A tiny pipeline, its folder, and the file that its makers would have published."""
    torch.manual_seed(0)
    pipeline = narrow_sdxl() if family == "sdxl" else (pipelines.PIPELINES[family])()
    base, file = folder / family, folder / f"{family}.safetensors"
    pipeline.save_pretrained(base)
    save_file({name: weight.contiguous() for name, weight in LAYOUTS[family](pipeline).items()}, file)
    return pipeline, base, file
