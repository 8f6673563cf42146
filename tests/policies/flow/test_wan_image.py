"""Wan from a first frame: clips equal to the pipeline's own, read again exactly, and what cannot be drawn."""

from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.core.types import Prompt, Request
from mmrl.flow.layout import generator_of
from mmrl.flow.plan import evaluation_plan
from mmrl.flow.schedules import Full
from mmrl.policies.flow.families.base import SOURCE
from mmrl.policies.flow.families.clips import SEEN
from mmrl.policies.flow.families.wan import WanImage
from mmrl.policies.flow.policy import FlowPolicy
from tests.support.flow_policies import LORA, PLANS, latents, read_again, stir, with_adapters

FAMILIES = ("wan_i2v", "wan_i2v_a14b", "wan_5b")
SIDE, FRAMES, STEPS = 32, 5, 4
TOKENS = {"wan_i2v": 512, "wan_i2v_a14b": 24, "wan_5b": 24}


def noise(seed: int, side: int = SIDE) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8))


def make(folder: str, **settings: Any) -> FlowPolicy:
    """With adapters that do something."""
    family = next(name for name in sorted(TOKENS, key=len, reverse=True) if name in folder)
    given = {"height": SIDE, "width": SIDE, "frames": FRAMES, "max_prompt_tokens": TOKENS[family], "lora": LORA, "guidance": 3.0}
    policy = with_adapters(folder, **(given | settings))
    policy.pipeline.set_progress_bar_config(disable=True)
    return policy


def asked(count: int = 1) -> list[Request]:
    texts = {"cat": "a red cat", "dogs": "two large dogs run"}
    return [Request(Prompt(id, text, (noise(i),)), count, i, seed=7 + i) for i, (id, text) in enumerate(texts.items())]


def ask_pipeline(pipeline: Any, folder: str, output: str, requests: list[Request]) -> list[Any]:
    """What the pipeline's own call from a first frame gives for the same noise, prompt by prompt."""
    if type(pipeline).__name__ == "WanPipeline":
        kind: Any = diffusers.WanImageToVideoPipeline  # type: ignore[reportPrivateImportUsage]
        pipeline = kind(**pipeline.components, image_processor=None, image_encoder=None, expand_timesteps=True)
    pipeline.set_progress_bar_config(disable=True)
    tokens = next(TOKENS[name] for name in sorted(TOKENS, key=len, reverse=True) if name in folder)
    told = {"num_inference_steps": STEPS, "height": SIDE, "width": SIDE, "num_frames": FRAMES, "guidance_scale": 3.0}
    told |= {"max_sequence_length": tokens, "output_type": output}
    found: list[Any] = []
    for one in requests:
        (picture,) = one.prompt.media
        found += list(pipeline(picture, one.prompt.text, generator=generator_of(one.seed, 0, 0), **told).frames)
    return found


@pytest.mark.parametrize("family", FAMILIES)
def test_it_draws_what_the_pipeline_draws_from_the_same_frame(tiny: Any, family: str):
    policy = make(tiny(family))
    theirs = torch.stack(ask_pipeline(policy.pipeline, family, "latent", asked()))
    assert float((latents(policy, asked(), evaluation_plan(STEPS)) - theirs).abs().max()) < 1e-5
    samples = [sample for _, sample in policy.rollout(asked(), evaluation_plan(STEPS)).samples()]
    for sample, frames in zip(samples, ask_pipeline(policy.pipeline, family, "pil", asked()), strict=True):
        ours = np.asarray(sample.video)
        assert ours.shape == (FRAMES, SIDE, SIDE, 3)
        assert np.abs(ours.astype(int) - np.stack([np.asarray(frame) for frame in frames]).astype(int)).max() <= 1


@pytest.mark.parametrize("plan", ["flow_grpo", "mix", "tree"])
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_are_read_again_and_every_adapter_gets_a_gradient(tiny: Any, family: str, plan: str):
    policy = make(tiny(family))
    # six steps of sigma 1 to 0.009 reach both experts
    rollouts = policy.rollout(asked(4), Full(num_steps=6).at(0) if plan == "flow_grpo" else PLANS[plan])
    policy.audit(rollouts)
    difference, still = read_again(policy, rollouts)
    assert difference < 1e-6 and (still == [] or plan != "flow_grpo")


def test_the_frozen_frame_of_5b_has_no_part_in_ratios_and_ends_as_the_picture(tiny: Any):
    """Whatever the weights are, a transition of the first latent is as probable: only later frames tell policies apart."""
    policy = make(tiny("wan_5b"))
    requests = asked(2)
    drawn = latents(policy, requests, evaluation_plan(STEPS))
    first = policy.encoder([one.prompt for one in requests], torch.device("cpu"))
    for row, condition in zip(drawn, [first[0], first[0], first[1], first[1]], strict=True):
        torch.testing.assert_close(row[:, :1], condition[SOURCE], atol=1e-5, rtol=0)
    x, t = torch.randn(2, *policy.family.latent_shape), torch.tensor([900.0, 300.0])
    before = policy.net(x, t, first, torch.arange(2), policy.encoder.empty(torch.device("cpu")))
    for frames, trains in ((before[:, :, :1], False), (before[:, :, 1:], True)):
        found = torch.autograd.grad(frames.sum(), list(policy.weights.named.values()), retain_graph=True, allow_unused=True)
        assert any(one is not None and bool(one.abs().sum()) for one in found) is trains
    stir(policy, 1.0)
    after = policy.net(x, t, first, torch.arange(2), policy.encoder.empty(torch.device("cpu")))
    assert torch.equal(before[:, :, 0], after[:, :, 0]) and float((before - after).detach()[:, :, 1:].abs().max()) > 1e-3


def test_5b_draws_prompts_with_and_without_a_picture_as_alone(tiny: Any):
    policy = make(tiny("wan_5b"))
    both = [asked()[0], Request(Prompt("plain", "a red cat"), 1, 1, seed=9)]
    together = latents(policy, both, evaluation_plan(2))
    alone = torch.cat([latents(policy, [one], evaluation_plan(2)) for one in both])
    torch.testing.assert_close(together, alone, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_adapter_draws_the_same_in_diffusers(tiny: Any, family: str, tmp_path: Path):
    policy = make(tiny(family))
    stir(policy, 0.5)
    policy.save(tmp_path)
    pipeline: Any = diffusers.DiffusionPipeline.from_pretrained(tiny(family))  # type: ignore[reportPrivateImportUsage]
    ours = latents(policy, asked(), evaluation_plan(STEPS))
    assert float((torch.stack(ask_pipeline(pipeline, family, "latent", asked())) - ours).abs().max()) > 0.05
    pipeline.load_lora_weights(tmp_path)
    if family == "wan_i2v_a14b":
        pipeline.load_lora_weights(tmp_path / "transformer_2", load_into_transformer_2=True)
    torch.testing.assert_close(torch.stack(ask_pipeline(pipeline, family, "latent", asked())), ours, atol=5e-5, rtol=1e-4)


def spoiled(name: str, places: slice) -> Any:
    """`encode_with` that leaves a part of what it found out."""
    whole = WanImage.encode_with

    def encode_with(*given: Any) -> Any:
        found = dict(whole(*given))
        found[name] = found[name].clone()
        found[name][places] = 0
        return found

    return encode_with


@pytest.mark.parametrize(
    ("family", "name", "wrong"),
    [
        ("wan_i2v", "encode_with", spoiled(SOURCE, slice(1, 4))),
        ("wan_i2v", "encode_with", spoiled(SEEN, slice(0, 1))),
        ("wan_i2v_a14b", "normalize", lambda self, latents: latents),
        ("wan_5b", "times", lambda self, timesteps: timesteps[:, None].repeat(1, self.image_tokens)),
    ],
    ids=["mask", "clip", "normalize", "time"],
)
def test_a_fact_that_is_wrong_is_noticed(tiny: Any, family: str, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch):
    policy = make(tiny(family))
    theirs = torch.stack(ask_pipeline(policy.pipeline, family, "latent", asked()))
    monkeypatch.setattr(type(policy.family), name, wrong)
    assert float((latents(policy, asked(), evaluation_plan(STEPS)) - theirs).abs().max()) > 1e-3


@pytest.mark.parametrize(
    ("family", "settings", "words"),
    [
        ("wan_i2v", {"max_prompt_tokens": 24}, r"policy\.max_prompt_tokens is 24, but .* counts on 512: leave it out"),
        ("wan_i2v", {"frames": 1}, r"policy\.frames is 1, but this model draws what follows a first frame: set it to 5 or more"),
        ("wan_5b", {"source_pixels": 256}, r"policy\.source_pixels is set, but a first frame has the size of its clip"),
    ],
)
def test_settings_that_no_first_frame_fits_are_refused(tiny: Any, family: str, settings: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        make(tiny(family), **settings)


def test_prompts_that_it_cannot_go_on_from_are_refused(tiny: Any):
    policy = make(tiny("wan_i2v_a14b"))
    with pytest.raises(ValueError, match=r"prompt 'p' holds 0 pictures, but this model takes prompts with 1: name them in"):
        policy.rollout([Request(Prompt("p", "x"), 1, 0)], evaluation_plan(2))
    turned = make(tiny("wan_5b"), guidance_rule="norm")
    with pytest.raises(ValueError, match=r"policy\.guidance_rule is 'norm', which would change the first frame"):
        turned.rollout(asked(), evaluation_plan(2))
