"""Published sizes of the models inside rewards: each built from its public settings, without weights, and counted."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from mmrl.serving.scorers.sizes import PUBLISHED, count_open_clip

QWEN2_TOKENS = 151_657
"""Of Qwen2-VL's tokenizer. Reward models cut the table of words down to these and their own."""


COCO: dict[str, Any] = {"num_labels": 80}


def layers(width: int, inner: int, depth: int, heads: int) -> dict[str, Any]:
    return {"hidden_size": width, "intermediate_size": inner, "num_hidden_layers": depth, "num_attention_heads": heads}


def siglip() -> Any:
    """SigLIP so400m: two towers of one size."""
    from transformers import SiglipConfig, SiglipModel

    tower = layers(1152, 4304, 27, 16)
    words = {**tower, "vocab_size": 32000, "max_position_embeddings": 64, "projection_size": 1152}
    ends = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 1}
    return SiglipModel(SiglipConfig(text_config={**words, **ends}, vision_config={**tower, "image_size": 384, "patch_size": 14}))


def image_reward() -> Any:
    """BLIP's ViT-L/16 at 224 pixels, BERT with attention to pictures, and five linear layers."""
    from transformers import BlipTextConfig, BlipVisionConfig, BlipVisionModel
    from transformers.models.blip.modeling_blip_text import BlipTextModel

    words = {"vocab_size": 30524, "encoder_hidden_size": 1024, "max_position_embeddings": 512, "is_decoder": True}
    eyes = BlipVisionModel(BlipVisionConfig(**layers(1024, 4096, 24, 16), image_size=224, patch_size=16))
    text = BlipTextModel(BlipTextConfig(**layers(768, 3072, 12, 12), **words), add_pooling_layer=False)
    return nn.ModuleList([eyes, text, linear(768, 1024, 128, 64, 16, 1)])


def linear(*widths: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(widths)))


def qwen2_vl(text: dict[str, Any], pairs: int, own_tokens: int) -> Any:
    """Qwen2-VL without the layer that says words."""
    from transformers import Qwen2VLConfig, Qwen2VLModel

    words = {**text, "num_key_value_heads": pairs, "vocab_size": QWEN2_TOKENS + own_tokens}
    vision = {"depth": 32, "embed_dim": 1280, "num_heads": 16, "mlp_ratio": 4, "hidden_size": text["hidden_size"]}
    ends = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    return Qwen2VLModel(Qwen2VLConfig(text_config={**words, **ends}, vision_config={**vision, "patch_size": 14}))


def hps_v3() -> Any:
    return nn.ModuleList([qwen2_vl(layers(3584, 18944, 28, 28), 4, own_tokens=1), linear(3584, 1024, 16, 2)])


def video_reward() -> Any:
    """Three tokens of its own, one for each score, and one number from each."""
    return nn.ModuleList([qwen2_vl(layers(1536, 8960, 28, 12), 2, own_tokens=3), nn.Linear(1536, 1, bias=False)])


def rtdetr() -> Any:
    """The class's own settings are those of r50vd."""
    from transformers import RTDetrV2Config, RTDetrV2ForObjectDetection

    return RTDetrV2ForObjectDetection(RTDetrV2Config(**COCO))


def mask2former() -> Any:
    from transformers import Mask2FormerConfig, Mask2FormerForUniversalSegmentation, SwinConfig

    sizes: dict[str, Any] = {"embed_dim": 96, "depths": [2, 2, 18, 2], "num_heads": [3, 6, 12, 24], "window_size": 7}
    sizes["out_features"] = [f"stage{i}" for i in range(1, 5)]
    swin = SwinConfig(**sizes)
    return Mask2FormerForUniversalSegmentation(Mask2FormerConfig(backbone_config=swin, **COCO))


BUILT: dict[str, Callable[[], Any]] = {
    "google/siglip-so400m-patch14-384": siglip,
    "THUDM/ImageReward": image_reward,
    "MizzenAI/HPSv3": hps_v3,
    "KwaiVGI/VideoReward": video_reward,
    "PekingU/rtdetr_v2_r50vd": rtdetr,
    "facebook/mask2former-swin-small-coco-instance": mask2former,
}
CLIPS = {"openai/clip-vit-large-patch14": "ViT-L-14", "yuvalkirstain/PickScore_v1": "ViT-H-14", "xswu/HPSv2": "ViT-H-14"}
"""Hub id -> open_clip's name of its architecture."""


@pytest.mark.parametrize("name", BUILT)
def test_a_published_size_is_that_of_the_published_settings(name: str):
    with torch.device("meta"):
        model = BUILT[name]()
    assert sum(weight.numel() for weight in model.parameters()) == PUBLISHED[name]


@pytest.mark.parametrize("name", CLIPS)
def test_a_published_clip_has_the_size_of_its_architecture(name: str):
    assert count_open_clip(CLIPS[name]) == PUBLISHED[name]


def test_every_published_size_is_counted_here():
    assert {*BUILT, *CLIPS} == {*PUBLISHED}
