"""Wan 2.1, 2.2 5B and 2.2 A14B: clips equal to their pipeline's, two experts with an adapter each, and what cannot be drawn."""

import json
import shutil
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch

from mmrl.core.readings import LOGPROBS
from mmrl.core.types import Prompt, Request
from mmrl.flow.layout import generator_of
from mmrl.flow.plan import evaluation_plan
from mmrl.flow.schedules import Full
from mmrl.flow.sigmas import FlowSigmas, StaticShift
from mmrl.policies.flow.check.audit import audit_rollouts
from mmrl.policies.flow.families.wan import Experts, Wan
from mmrl.policies.flow.policy import FlowPolicy, FlowPolicyConfig
from mmrl.policies.shared.lora import LoraSettings
from tests.support.flow_policies import LORA, PLANS, latents, read_again, requests, stir, with_adapters

FAMILIES = ("wan", "wan_5b", "wan_a14b")
SIDE, FRAMES, TOKENS, STEPS = 32, 5, 24, 4
ASKED = [Request(Prompt("cat", "a red cat"), 1, 0, seed=7), Request(Prompt("dogs", "two large dogs run"), 1, 1, seed=8)]


def make(folder: str, **settings: Any) -> FlowPolicy:
    """With adapters that do something."""
    given = {"height": SIDE, "width": SIDE, "frames": FRAMES, "max_prompt_tokens": TOKENS, "lora": LORA, "guidance": 3.0}
    if "a14b" in folder:
        given["guidance_low"] = 2.0
    policy = with_adapters(folder, **(given | settings))
    policy.pipeline.set_progress_bar_config(disable=True)
    return policy


def ask_pipeline(pipeline: Any, policy: FlowPolicy, output: str, **more: Any) -> list[Any]:
    """The frames, or latents, that the pipeline's own call gives for the same noise, prompt by prompt."""
    pipeline.set_progress_bar_config(disable=True)
    late = {} if policy.family.boundary is None else {"guidance_scale_2": 2.0}
    common = {"num_inference_steps": STEPS, "height": SIDE, "width": SIDE, "num_frames": policy.config.frames}
    told = common | {"guidance_scale": 3.0, "max_sequence_length": TOKENS, "output_type": output} | late | more
    return [pipeline(one.prompt.text, generator=generator_of(one.seed, 0, 0), **told).frames[0] for one in ASKED]


def gap(policy: FlowPolicy, **more: Any) -> float:
    """How far the policy's finished latents are from the pipeline's."""
    theirs = torch.stack(ask_pipeline(policy.pipeline, policy, "latent", **more))
    return float((latents(policy, ASKED, evaluation_plan(STEPS)) - theirs).abs().max())


@pytest.mark.parametrize("frames", [FRAMES, 1])
@pytest.mark.parametrize("family", FAMILIES)
def test_it_draws_what_the_pipeline_draws(tiny, family, frames):
    policy = make(tiny(family), frames=frames)
    assert gap(policy) < 1e-5
    samples = [sample for _, sample in policy.rollout(ASKED, evaluation_plan(STEPS)).samples()]
    for sample, theirs in zip(samples, ask_pipeline(policy.pipeline, policy, "pil"), strict=True):
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


@pytest.mark.parametrize(
    ("family", "settings", "said"),
    [
        ("wan", {"frames": 4}, r"policy\.frames is 4, but this model draws 4k \+ 1 frames: set it to 1 or 5"),
        ("wan_a14b", {"frames": 7}, r"set it to 5 or 9"),
        ("wan", {"height": 36}, r"policy\.height is 36, but this model draws multiples of 16 pixels: set it to 32 or 48"),
        ("wan_5b", {"width": 40}, r"policy\.width is 40, but this model draws multiples of 32 pixels"),
        ("wan", {"guidance_low": 2.0}, r"policy\.guidance_low is 2, but .* has one network for all times"),
        ("wan_a14b", {"guidance": 1.0}, r"policy\.guidance is 1, which draws in one pass"),
        ("sd3", {"height": 16, "width": 16, "max_prompt_tokens": 3}, r"policy\.frames is 5, but this model draws pictures"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_weights_load(tiny, family, settings, said, no_weights):
    with pytest.raises(ValueError, match=said):
        make(tiny(family), **settings)


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
