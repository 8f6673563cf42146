"""A vision part that does not train looks at each prompt once, and which parts media pass is read from transformers' code."""

import gc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.app.modality.on_cards import refuse_ways_apart
from mmrl.core.ranks import Ranks
from mmrl.core.readings import LOGPROBS, REF_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Prompt, Request, Rollouts, Video
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.families import FAMILIES, Family, Generic, family_of, model_class
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig, VideoSettings
from mmrl.policies.text.vision.cache import MIB, VisionCache, ways_apart
from tests.support.text_policies import EVERY, FP32_BOUND, gradients, make, mixed, picture, stir, text_trace
from tests.support.videos import even, write_video

LORA = LoraSettings(rank=2)
SAMPLING = Sampling(max_new_tokens=5)


def cached(policy: TextPolicy) -> VisionCache:
    assert policy.net.features is not None
    return policy.net.features


def watch(policy: TextPolicy) -> list[bool]:
    """The passes of the vision part from here on."""
    calls: list[bool] = []
    tower = next(getattr(policy.net.core, name) for name in policy.family.vision if hasattr(policy.net.core, name))
    tower.register_forward_hook(lambda *_: calls.append(True))
    return calls


def step(policy: TextPolicy, requests: list[Request]) -> tuple[Rollouts, dict[str, Tensor], dict[str, Tensor]]:
    """A rollout, readings of the live weights and the reference, and gradients, in pieces as a run takes them."""
    rollouts = policy.rollout(requests)
    found = policy.read(rollouts.trace, [LOGPROBS, REF_LOGPROBS], rollouts.action_mask)
    values = {str(reading): value.detach() for reading, value in found.items()}
    for row in (0, len(text_trace(rollouts.trace)) - 1):
        rows = torch.tensor([row])
        part = policy.read(text_trace(rollouts.trace).take(rows), [LOGPROBS], rollouts.action_mask[rows])
        values[f"row {row}"] = part[LOGPROBS].detach()
    values["rollout"] = rollouts.recorded[ROLLOUT_LOGPROBS]
    return rollouts, values, gradients(policy, rollouts)


def without_memory(policy: TextPolicy) -> TextPolicy:
    """The same policy, which computes features whenever it needs them."""
    cached(policy).most = 0
    return policy


def stirred(folder: str, **settings: Any) -> TextPolicy:
    torch.manual_seed(0)
    policy = make(folder, ["ref"], **{"lora": LORA, "sampling": SAMPLING, "rollout_rows": 3} | settings)
    stir(policy)
    return policy


@pytest.mark.parametrize("family", EVERY)
def test_each_prompt_is_looked_at_once_and_values_stay_as_they_are(tiny: Callable[[str], str], family: str):
    policy = stirred(tiny(family))
    calls = watch(policy)
    rollouts, values, slopes = step(policy, mixed())
    assert len(calls) == 3, "of four prompts one has no picture"
    again, expected, expected_slopes = step(without_memory(stirred(tiny(family))), mixed())
    assert torch.equal(text_trace(rollouts.trace).tokens, text_trace(again.trace).tokens)
    torch.testing.assert_close(values, expected, rtol=0, atol=0)
    torch.testing.assert_close(slopes, expected_slopes, rtol=0, atol=0)
    # all pictures of a forward in one pass, as without a cache: rounding differs
    plain = stirred(tiny(family), vision_cache_mib=0)
    assert plain.net.features is None
    others = plain.read(rollouts.trace, [LOGPROBS, REF_LOGPROBS], rollouts.action_mask)
    for reading, value in others.items():
        torch.testing.assert_close(value.detach(), values[str(reading)], rtol=0, atol=FP32_BOUND)


def test_clips_and_pictures_of_one_prompt_are_looked_at_once_each(tiny: Callable[[str], str], tmp_path: Path):
    clip = write_video(tmp_path / "clip.mp4", even(40), size=(128, 64))
    requests = [
        Request(Prompt("clip", "what happens?", (Video(clip, frames=4),)), 2, 0, seed=3),
        Request(Prompt("both", "<image> in <video>?", (picture(0), Video(clip, frames=6))), 2, 1, seed=4),
    ]
    policy = stirred(tiny("qwen3_vl"), video=VideoSettings(workers=0))
    calls = watch(policy)
    _, values, slopes = step(policy, requests)
    assert len(calls) == 3
    other = without_memory(stirred(tiny("qwen3_vl"), video=VideoSettings(workers=0)))
    _, expected, expected_slopes = step(other, requests)
    torch.testing.assert_close((values, slopes), (expected, expected_slopes), rtol=0, atol=0)


def test_checkpointed_layers_and_half_precision_read_the_same_features(tiny: Callable[[str], str]):
    settings: dict[str, Any] = {"gradient_checkpointing": True, "dtype": "bfloat16"}
    _, values, slopes = step(stirred(tiny("qwen3_vl"), **settings), mixed())
    _, expected, expected_slopes = step(without_memory(stirred(tiny("qwen3_vl"), **settings)), mixed())
    torch.testing.assert_close((values, slopes), (expected, expected_slopes), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("settings", "keeps"),
    [
        ({"lora": LORA}, True),
        ({"freeze": ("vision", "projector")}, True),
        ({"freeze": ("vision",)}, False),
        ({"freeze": ("language",)}, False),
        ({}, False),
        ({"lora": LoraSettings(rank=2, targets=("q_proj", "qkv"))}, False),
        ({"lora": LORA, "vision_cache_mib": 0}, False),
    ],
)
def test_features_are_kept_only_where_what_made_them_is_frozen(tiny: Callable[[str], str], settings: dict[str, Any], keeps: bool):
    policy = TextPolicy(TextPolicyConfig(tiny("qwen3_vl"), **settings))
    assert (policy.net.features is not None) == keeps


def test_names_of_layers_that_are_elsewhere_too_are_counted(tiny: Callable[[str], str], caplog: pytest.LogCaptureFixture):
    lora = LoraSettings(rank=2, targets=("q_proj", "qkv"))
    policy = TextPolicy(TextPolicyConfig(tiny("qwen3_vl"), lora=lora))
    layers = [name for name, _ in policy.net.named_parameters() if ".lora_A." in name]
    inside = sum("language_model" in name for name in layers)
    assert f"put adapters on {inside} layers of the language model and on {len(layers) - inside} in vision" in caplog.text
    caplog.clear()
    TextPolicy(TextPolicyConfig(tiny("qwen3_vl"), lora=lora, freeze=("vision",)))
    TextPolicy(TextPolicyConfig(tiny("qwen3_vl"), lora=LORA))
    assert "put adapters" not in caplog.text


def test_features_go_when_their_prompts_go(tiny: Callable[[str], str]):
    policy = stirred(tiny("qwen3_vl"), vision_cache_mib=3)
    rollouts = policy.rollout(mixed())
    assert cached(policy).most == 3 * MIB and cached(policy).size > 0
    del rollouts
    gc.collect()
    assert cached(policy).size == 0


def test_what_does_not_fit_is_computed_again(tiny: Callable[[str], str]):
    policy = stirred(tiny("qwen3_vl"))
    requests = mixed()
    rollouts = policy.rollout(requests)
    whole = cached(policy).size
    policy.net.features = VisionCache(policy.family, whole - 1)
    read: list[Tensor] = []
    for _ in range(2):
        read.append(policy.read(rollouts.trace, [LOGPROBS], rollouts.action_mask)[LOGPROBS])
        assert 0 < cached(policy).size <= whole - 1
    expected = without_memory(stirred(tiny("qwen3_vl"))).read(rollouts.trace, [LOGPROBS], rollouts.action_mask)
    assert all(torch.equal(one, expected[LOGPROBS]) for one in read)


def test_other_pictures_of_a_prompt_have_other_features(tiny: Callable[[str], str]):
    """A view shows another picture under the same prompt's name."""
    policy = stirred(tiny("qwen3_vl"))
    one = policy.encode(Prompt("p", "what?", (picture(0),)))
    two = policy.encode(Prompt("p", "what?", (picture(5),)))
    cache, device = cached(policy), torch.device("cpu")
    first, second = cache.look(policy.net.core, [one.media, two.media], device)
    assert cache.missing([one.media, two.media, {}]) == 0
    assert not torch.equal(first["image"].pooled[0], second["image"].pooled[0])
    [again] = cache.look(policy.net.core, [one.media], device)
    assert again["image"].pooled[0] is first["image"].pooled[0]


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
