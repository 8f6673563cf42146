"""Which parts pictures, clips and sounds pass is read from the code of transformers' own classes, without weights."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.app.modality.on_cards import refuse_ways_apart
from mmrl.core.ranks import Ranks
from mmrl.core.types import Prompt, Video
from mmrl.policies.text.families import FAMILIES, Family, Generic, family_of, model_class
from mmrl.policies.text.policy import TextPolicyConfig
from mmrl.policies.text.vision.cache import ways_apart


def with_clips(family: Family) -> Family:
    return replace(family, sees=("image", "video"), own_keys=(("video", frozenset({"pixel_values_videos"})),))


def skeleton(name: str, **more: Any) -> tuple[Any, Family]:
    """The model of a type below its head, of one layer and without weights, and its family."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config: Any = CONFIG_MAPPING[name](**more)
    text = config.get_text_config()
    text.num_hidden_layers = 1
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:1]
    with torch.device("meta"):
        return model_class(config).from_config(config).model, family_of(config)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("qwen2_5_vl", {}),
        ("qwen3_vl", {}),
        ("glm4v", {}),
        ("llava_onevision", {}),
        ("internvl", {}),
        ("qwen2_5_omni_thinker", {"audio": "audio_tower, visual"}),
        ("granite_speech", {"audio": "encoder, projector"}),
        ("qwen2_audio", {"audio": "which it does not name"}),
    ],
)
def test_families(name: str, expected: dict[str, str]):
    assert ways_apart(*skeleton(name)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("video_llava", {"video": "image_tower, video_tower"}),
        ("llava_next_video", {"video": "vision_resampler"}),
        ("video_llama_3", {}),
    ],
)
def test_a_family_whose_clips_have_a_tower_of_their_own(name: str, expected: dict[str, str]):
    """No shipped family has one. A pooler without weights is gathered by nobody."""
    more = {"spatial_pool_mode": "conv"} if name == "llava_next_video" else {}
    core, family = skeleton(name, **more)
    assert ways_apart(core, with_clips(family)) == expected
    if more:
        core, family = skeleton(name)
        assert ways_apart(core, with_clips(family)) == {}


def test_its_clips_are_refused_before_weights_that_are_cut_are_loaded(tmp_path, monkeypatch: pytest.MonkeyPatch):
    from transformers import VideoLlavaConfig

    VideoLlavaConfig(text_config={"model_type": "llama", "num_hidden_layers": 1}).save_pretrained(tmp_path)
    monkeypatch.setitem(FAMILIES, "video_llava", lambda config: with_clips(Generic(config)))
    config, ranks = TextPolicyConfig(str(tmp_path)), Ranks()
    seen, clip = Prompt("seen", "?", ("a.png",)), Prompt("clip", "?", (Video("a.mp4"),))
    refuse_ways_apart(config, [seen, clip], ranks)
    monkeypatch.setattr(Ranks, "is_sharded", True)
    refuse_ways_apart(config, [seen], ranks)
    with pytest.raises(ValueError, match=r"prompt 'clip' has a clip, .* \(image_tower, video_tower\), and FSDP"):
        refuse_ways_apart(config, [seen, clip], ranks)
