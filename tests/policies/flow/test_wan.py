"""Wan 2.1, 2.2 5B and A14B, from words and a first frame: clips equal to their pipelines', adapters, and what cannot be drawn."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.core.readings import LOGPROBS
from mmrl.core.types import Prompt, Request
from mmrl.flow.layout import generator_of
from mmrl.flow.plan import evaluation_plan
from mmrl.flow.schedules import Full
from mmrl.flow.sigmas import FlowSigmas, StaticShift
from mmrl.policies.flow.check.audit import audit_rollouts
from mmrl.policies.flow.families.base import SOURCE
from mmrl.policies.flow.families.clips import SEEN
from mmrl.policies.flow.families.wan import Experts, Wan, WanImage
from mmrl.policies.flow.policy import FlowPolicy, FlowPolicyConfig
from mmrl.policies.shared.lora import LoraSettings
from tests.support.flow_policies import LORA, PLANS, latents, read_again, requests, stir, with_adapters

FAMILIES, FROM_FRAME = ("wan", "wan_5b", "wan_a14b"), ("wan_i2v", "wan_i2v_a14b", "wan_5b")
SIDE, FRAMES, STEPS = 32, 5, 4
ASKED = [Request(Prompt("cat", "a red cat"), 1, 0, seed=7), Request(Prompt("dogs", "two large dogs run"), 1, 1, seed=8)]


def make(folder: str, **settings: Any) -> FlowPolicy:
    """With adapters that do something."""
    given = {"height": SIDE, "width": SIDE, "frames": FRAMES, "max_prompt_tokens": 24, "lora": LORA, "guidance": 3.0}
    if "wan_a14b" in folder:
        given["guidance_low"] = 2.0
    if "wan_i2v" in folder and "a14b" not in folder:
        given["max_prompt_tokens"] = 512
    policy = with_adapters(folder, **(given | settings))
    policy.pipeline.set_progress_bar_config(disable=True)
    return policy


def noise(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8))


def from_frames(count: int = 1) -> list[Request]:
    """The same prompts, each with the first frame of its clips."""
    return [replace(one, prompt=replace(one.prompt, media=(noise(i),)), count=count) for i, one in enumerate(ASKED)]


def ask_pipeline(pipeline: Any, policy: FlowPolicy, output: str, asked: Sequence[Request] = ASKED) -> list[Any]:
    """The frames, or latents, that the pipeline's own call gives for the same noise, prompt by prompt."""
    told: dict[str, Any] = {"guidance_scale": 3.0}
    if asked[0].prompt.media and type(pipeline).__name__ == "WanPipeline":
        kind: Any = diffusers.WanImageToVideoPipeline  # type: ignore[reportPrivateImportUsage]
        pipeline = kind(**pipeline.components, image_processor=None, image_encoder=None, expand_timesteps=True)
    elif not asked[0].prompt.media and policy.family.boundary is not None:
        told["guidance_scale_2"] = 2.0
    pipeline.set_progress_bar_config(disable=True)
    told |= {"num_inference_steps": STEPS, "height": SIDE, "width": SIDE, "num_frames": policy.config.frames}
    told |= {"max_sequence_length": policy.config.max_prompt_tokens, "output_type": output}
    return [
        pipeline(*one.prompt.media, one.prompt.text, generator=generator_of(one.seed, 0, 0), **told).frames[0] for one in asked
    ]


def gap(policy: FlowPolicy, asked: Sequence[Request] = ASKED) -> float:
    """How far the policy's finished latents are from the pipeline's."""
    theirs = torch.stack(ask_pipeline(policy.pipeline, policy, "latent", asked))
    return float((latents(policy, asked, evaluation_plan(STEPS)) - theirs).abs().max())


@pytest.mark.parametrize(
    ("family", "frames", "asked"),
    [
        *((family, frames, ASKED) for family in FAMILIES for frames in (FRAMES, 1)),
        *((family, FRAMES, from_frames()) for family in FROM_FRAME),
    ],
)
def test_it_draws_what_the_pipeline_draws(tiny, family, frames, asked):
    policy = make(tiny(family), frames=frames)
    assert gap(policy, asked) < 1e-5
    samples = [sample for _, sample in policy.rollout(asked, evaluation_plan(STEPS)).samples()]
    for sample, theirs in zip(samples, ask_pipeline(policy.pipeline, policy, "pil", asked), strict=True):
        ours = sample.video if frames > 1 else np.asarray(sample.image)[None]
        assert ours.dtype == np.uint8 and ours.shape == (frames, SIDE, SIDE, 3)
        assert np.abs(ours.astype(int) - np.stack([np.asarray(frame) for frame in theirs]).astype(int)).max() <= 1
        assert sample.fps == ({"wan_5b": 24.0}.get(family, 16.0) if frames > 1 else None)


@pytest.mark.parametrize(
    ("family", "broken"),
    [
        ("wan", {"guidance": 2.0}),
        ("wan", {"spacing": True}),
        ("wan", {"decode": True}),
        ("wan_5b", {"guidance": 2.0}),
        ("wan_a14b", {"guidance_low": 3.0}),
        ("wan_a14b", {"guidance_low": None}),
        ("wan_a14b", {"boundary": True}),
        ("wan_a14b", {"swapped": True}),
    ],
)
def test_a_fact_that_is_wrong_is_noticed(tiny, family, broken, monkeypatch):
    """Every line of Wan that equality rests on, made wrong: the gap is a hundred times what it may be."""
    settings = {key: value for key, value in broken.items() if "guidance" in key}
    policy = make(tiny(family), **settings)
    if "spacing" in broken:
        monkeypatch.setattr(Wan, "spacing", lambda self: FlowSigmas(3.0))
    experts = policy.net.transformer
    if "boundary" in broken:
        experts.boundary = 950.0
    if "swapped" in broken:
        experts.early, experts.late = experts.late, experts.early
    if "decode" in broken:
        right = [sample.video for _, sample in policy.rollout(ASKED, evaluation_plan(STEPS)).samples()]
        policy.pipeline.vae.register_to_config(latents_mean=[0.0] * 4)
        wrong = [sample.video for _, sample in policy.rollout(ASKED, evaluation_plan(STEPS)).samples()]
        assert any((a != b).any() for a, b in zip(right, wrong, strict=True))
        return
    assert gap(policy) > 1e-3


@pytest.mark.parametrize("plan", ["flow_grpo", "mix", "branches", "dance", "tree"])
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_read_again_are_those_noted(tiny, family, plan):
    policy = make(tiny(family))
    rollouts = policy.rollout(requests(), PLANS[plan])
    audit_rollouts(policy, rollouts)
    assert read_again(policy, rollouts)[0] < 1e-6


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_trainable_weight_gets_a_gradient_in_both_experts(tiny, family, lora):
    policy = make(tiny(family), lora=lora)
    # six steps of sigma 1 to 0.009, four above the boundary of 600
    rollouts = policy.rollout(requests(count=1), Full(num_steps=6).at(0))
    assert read_again(policy, rollouts)[1] == []
    if family == "wan_a14b":
        assert {name.split(".")[1] for name in policy.weights.named} == {"early", "late"}


def test_an_expert_sees_the_rows_of_its_time_alone():
    """The early one from the boundary on, the late one below it; rows come back in their order."""
    seen: dict[str, list[float]] = {"early": [], "late": []}

    class Named(torch.nn.Module):
        def __init__(self, name: str, factor: float) -> None:
            super().__init__()
            self.name, self.factor = name, factor

        def forward(self, x: torch.Tensor, t: torch.Tensor, embeds: torch.Tensor, return_dict: bool) -> tuple[torch.Tensor]:
            seen[self.name] += t.tolist()
            return (self.factor * x + embeds.sum((1, 2))[:, None, None, None, None],)

    experts = Experts(Named("early", 1.0), Named("late", -1.0), 600.0)
    x, embeds = torch.arange(1.0, 5).view(4, 1, 1, 1, 1), torch.tensor([0.0, 10, 20, 30]).view(4, 1, 1)
    (out,) = experts(x, torch.tensor([599.9, 600.0, 1000.0, 10.0]), embeds)
    assert seen == {"early": [600.0, 1000.0], "late": [pytest.approx(599.9), 10.0]}
    # -1 + 0, 2 + 10, 3 + 20, -4 + 30
    assert out.flatten().tolist() == [-1.0, 12.0, 23.0, 26.0]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_adapter_draws_the_same_in_diffusers_and_is_a_start(tiny, family, tmp_path):
    policy = make(tiny(family))
    stir(policy, 0.5)
    policy.save(tmp_path)
    pipeline = diffusers.WanPipeline.from_pretrained(tiny(family))  # type: ignore[reportPrivateImportUsage]
    ours = latents(policy, ASKED, evaluation_plan(STEPS))
    assert float((torch.stack(ask_pipeline(pipeline, policy, "latent")) - ours).abs().max()) > 0.05
    pipeline.load_lora_weights(tmp_path)
    if family == "wan_a14b":
        pipeline.load_lora_weights(tmp_path / "transformer_2", load_into_transformer_2=True)
        assert pipeline.transformer_2.peft_config["default_0"].lora_alpha == 4
    torch.testing.assert_close(torch.stack(ask_pipeline(pipeline, policy, "latent")), ours, atol=5e-5, rtol=1e-4)
    again = FlowPolicy(FlowPolicyConfig(**{**vars(policy.config), "lora": LoraSettings(adapter=str(tmp_path))}))
    torch.testing.assert_close(latents(again, ASKED, evaluation_plan(STEPS)), ours, atol=1e-5, rtol=1e-5)


def test_an_adapter_without_its_second_half_is_refused(tiny, tmp_path):
    policy = make(tiny("wan_a14b"))
    policy.save(tmp_path)
    shutil.rmtree(tmp_path / "transformer_2")
    with pytest.raises(FileNotFoundError, match=r"has no folder 'transformer_2'.*name a folder that mmrl saved for this model"):
        make(tiny("wan_a14b"), lora=LoraSettings(adapter=str(tmp_path)))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_pipeline_draws_the_same_in_diffusers(tiny, family, tmp_path):
    policy = make(tiny(family), lora=None)
    policy.save(tmp_path / family)
    pipeline: Any = diffusers.WanPipeline.from_pretrained(tmp_path / family)  # type: ignore[reportPrivateImportUsage]
    assert pipeline.config.boundary_ratio == (0.6 if family == "wan_a14b" else None)
    assert pipeline.config.expand_timesteps == (family == "wan_5b")
    ours = latents(policy, ASKED, evaluation_plan(STEPS))
    torch.testing.assert_close(torch.stack(ask_pipeline(pipeline, policy, "latent")), ours, atol=1e-5, rtol=1e-5)


def test_the_hub_scheduler_is_followed_by_its_sigmas(tiny, tmp_path):
    """Wan's repositories come with UniPC: its table is followed by Euler steps."""
    folder = shutil.copytree(tiny("wan"), tmp_path / "wan")
    unipc = diffusers.UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)  # type: ignore[reportPrivateImportUsage]
    unipc.save_pretrained(folder / "scheduler")
    index = json.loads((folder / "model_index.json").read_text())
    index["scheduler"] = ["diffusers", "UniPCMultistepScheduler"]
    (folder / "model_index.json").write_text(json.dumps(index))
    policy = make(str(folder))
    unipc.set_timesteps(STEPS)
    assert policy.family.spacing() == FlowSigmas(3.0)
    torch.testing.assert_close(policy.sigmas(evaluation_plan(STEPS)), unipc.sigmas, atol=2e-6, rtol=0)
    assert make(tiny("wan")).family.spacing() == StaticShift(3.0)


def test_a_clip_counts_as_all_its_frames_where_samples_are_decoded(tiny, monkeypatch):
    policy = make(tiny("wan"))
    sizes: list[int] = []
    decode = policy.pipeline.vae.decode
    monkeypatch.setattr(policy.pipeline.vae, "decode", lambda z, **more: (sizes.append(len(z)), decode(z, **more))[1])
    whole = latents(policy, requests(count=3), evaluation_plan(2))
    # 16 frames side by side are three clips of 5
    assert sizes == [3, 3]
    together = make(tiny("wan"), decode_rows=1)
    for ours, theirs in zip(policy.decode(whole), together.decode(whole), strict=True):
        assert np.abs(np.asarray(ours).astype(int) - np.asarray(theirs).astype(int)).max() <= 1


def test_a_clip_of_another_length_fails_the_audit(tiny):
    policy = make(tiny("wan"))
    rollouts = policy.rollout(requests(), PLANS["flow_grpo"])
    object.__setattr__(policy, "config", FlowPolicyConfig(**{**vars(policy.config), "frames": 9}))
    with pytest.raises(ValueError, match=r"its clip is \(5, 32, 32, 3\), not 9 frames of 32 x 32 pixels"):
        audit_rollouts(policy, rollouts)


def test_it_reads_under_the_reference(tiny):
    """The shadow of both experts' adapters: the reference is the model without them."""
    policy = make(tiny("wan_a14b"))
    rollouts = policy.rollout(requests(), PLANS["flow_grpo"])
    reference = LOGPROBS._replace(model="ref")
    values = policy.read(rollouts.trace, [LOGPROBS, reference], rollouts.action_mask)
    assert float((values[LOGPROBS] - values[reference]).abs().max()) > 1e-3
    assert Path(policy.config.model).is_dir()


@pytest.mark.parametrize("plan", ["flow_grpo", "mix", "tree"])
@pytest.mark.parametrize("family", FROM_FRAME)
def test_from_a_frame_log_probabilities_are_read_again_and_every_adapter_gets_a_gradient(tiny: Any, family: str, plan: str):
    policy = make(tiny(family))
    # six steps of sigma 1 to 0.009 reach both experts
    rollouts = policy.rollout(from_frames(4), Full(num_steps=6).at(0) if plan == "flow_grpo" else PLANS[plan])
    policy.audit(rollouts)
    difference, still = read_again(policy, rollouts)
    assert difference < 1e-6 and (still == [] or plan != "flow_grpo")


def test_the_frozen_frame_of_5b_has_no_part_in_ratios_and_ends_as_the_picture(tiny: Any):
    """Whatever the weights are, a transition of the first latent is as probable: only later frames tell policies apart."""
    policy = make(tiny("wan_5b"))
    requests = from_frames(2)
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
    both = [from_frames()[0], Request(Prompt("plain", "a red cat"), 1, 1, seed=9)]
    together = latents(policy, both, evaluation_plan(2))
    alone = torch.cat([latents(policy, [one], evaluation_plan(2)) for one in both])
    torch.testing.assert_close(together, alone, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FROM_FRAME)
def test_a_saved_adapter_draws_the_same_from_a_frame_in_diffusers(tiny: Any, family: str, tmp_path: Path):
    policy = make(tiny(family))
    stir(policy, 0.5)
    policy.save(tmp_path)
    pipeline: Any = diffusers.DiffusionPipeline.from_pretrained(tiny(family))  # type: ignore[reportPrivateImportUsage]
    ours = latents(policy, from_frames(), evaluation_plan(STEPS))
    assert float((torch.stack(ask_pipeline(pipeline, policy, "latent", from_frames())) - ours).abs().max()) > 0.05
    pipeline.load_lora_weights(tmp_path)
    if family == "wan_i2v_a14b":
        pipeline.load_lora_weights(tmp_path / "transformer_2", load_into_transformer_2=True)
    torch.testing.assert_close(torch.stack(ask_pipeline(pipeline, policy, "latent", from_frames())), ours, atol=5e-5, rtol=1e-4)


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
def test_a_fact_of_first_frames_that_is_wrong_is_noticed(
    tiny: Any, family: str, name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch
):
    policy = make(tiny(family))
    right = latents(policy, from_frames(), evaluation_plan(STEPS))
    monkeypatch.setattr(type(policy.family), name, wrong)
    policy.encoder.known.clear()
    assert float((latents(policy, from_frames(), evaluation_plan(STEPS)) - right).abs().max()) > 1e-3


def test_prompts_that_it_cannot_go_on_from_are_refused(tiny: Any):
    policy = make(tiny("wan_i2v_a14b"))
    with pytest.raises(ValueError, match=r"prompt 'p' holds 0 pictures, but this model takes prompts with 1: name them in"):
        policy.rollout([Request(Prompt("p", "x"), 1, 0)], evaluation_plan(2))
    turned = make(tiny("wan_5b"), guidance_rule="norm")
    with pytest.raises(ValueError, match=r"policy\.guidance_rule is 'norm', which would change the first frame"):
        turned.rollout(from_frames(), evaluation_plan(2))
