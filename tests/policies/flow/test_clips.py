"""Wan, HunyuanVideo 1.5 and SANA-Video, from words and a first frame, against their pipelines; and what they refuse."""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.core.readings import LOGPROBS
from mmrl.core.types import Prompt, Request
from mmrl.flow.dynamics import DPM2
from mmrl.flow.layout import generator_of
from mmrl.flow.plan import RolloutPlan, StepPlan, evaluation_plan
from mmrl.flow.schedules import Full
from mmrl.flow.sigmas import FlowSigmas, LinearShift, StaticShift
from mmrl.lab.tiny.byte_tokens import hub
from mmrl.lab.tiny.flow.pipeline_parts import LATENTS
from mmrl.lab.tiny.flow.pipelines import solver
from mmrl.policies.flow.families.base import SOURCE
from mmrl.policies.flow.families.clips import SEEN
from mmrl.policies.flow.families.hunyuan import HunyuanVideo15
from mmrl.policies.flow.families.wan import Experts
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.shared.lora import LoraSettings
from tests.support.flow_policies import LORA, PLANS, assert_reads_again, latents, read_again, requests, stir, with_adapters
from tests.support.pipelines import load_pipeline
from tests.support.refused import refused

STEPS = 4
EVEN, SOLVED = evaluation_plan(STEPS), RolloutPlan((StepPlan(DPM2()),) * STEPS)


@dataclass(frozen=True)
class Case:
    """How a tiny model draws clips of one size, and what its pipeline is called with for the same."""

    model: str
    call: Mapping[str, Any]
    pictured: bool = False
    """Do prompts hold a first frame?"""
    side: int = 32
    tokens: int = 24
    fps: float = 16.0
    texts: tuple[str, str] = ("a red cat", "two large dogs run")
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Further ones of the policy."""
    plan: RolloutPlan = EVEN
    """The steps of the pipeline's scheduler."""
    frames: int = 5

    @property
    def size(self) -> dict[str, int]:
        return {"height": self.side, "width": self.side}


def wan(model: str, pictured: bool = False, **others: Any) -> Case:
    call = {"guidance_scale": 3.0, **({"guidance_scale_2": 2.0} if model == "wan_a14b" else {})}
    settings = {"guidance_low": 2.0} if model == "wan_a14b" else {}
    return Case(model, call, pictured, fps=24.0 if model == "wan_5b" else 16.0, settings=settings, **others)


def hunyuan(model: str, pictured: bool = False) -> Case:
    """Its guider holds guidance 3; words in quotes are read by ByT5 too."""
    return Case(model, {}, pictured, 16, 40, 24.0, ('a red sign that says "hi"', "two dogs"))


def sana(model: str, plan: RolloutPlan, pictured: bool = False) -> Case:
    return Case(model, {"use_resolution_binning": False, "guidance_scale": 3.0}, pictured, plan=plan)


WAN = ("wan", "wan_5b", "wan_a14b")
CASES = {
    **{model: wan(model) for model in WAN},
    "wan_i2v": wan("wan_i2v", True, tokens=512),
    "wan_i2v_a14b": wan("wan_i2v_a14b", True),
    "wan_5b from a frame": wan("wan_5b", True),
    "hunyuan15": hunyuan("hunyuan15"),
    "hunyuan15_i2v": hunyuan("hunyuan15_i2v", True),
    "sana_video": sana("sana_video", SOLVED),
    "sana_i2v": sana("sana_i2v", EVEN, True),
}
FROM_FRAME = ("wan_i2v", "wan_i2v_a14b", "wan_5b from a frame")


def make(folder: object, case: Case, **settings: Any) -> FlowPolicy:
    """With adapters that do something."""
    given = {**case.size, "frames": case.frames, "max_prompt_tokens": case.tokens, "lora": LORA, "guidance": 3.0}
    policy = with_adapters(str(folder), **{**given, **case.settings, **settings})
    policy.pipeline.set_progress_bar_config(disable=True)
    return policy


def asked(case: Case, count: int = 1) -> list[Request]:
    pixels = np.random.default_rng(0).integers(0, 256, (2, case.side, case.side, 3), dtype=np.uint8)
    frames = [(Image.fromarray(one),) if case.pictured else () for one in pixels]
    return [Request(Prompt(text, text, frames[i]), count, i, seed=7 + i) for i, text in enumerate(case.texts)]


def told(pipeline: Any, case: Case, output: str) -> list[Any]:
    """What the pipeline's own call gives for the same noise, prompt by prompt.

    From a picture HunyuanVideo takes no size: that of the picture is one that it would choose.
    """
    call = {"num_inference_steps": STEPS, "output_type": output, **case.call}
    call |= {"frames" if case.model.startswith("sana") else "num_frames": case.frames}
    if case.model.startswith("hunyuan"):
        pipeline.tokenizer_max_length = case.tokens
        call |= {} if case.pictured else case.size
    else:
        call |= {"max_sequence_length": case.tokens, **case.size}
    if case.pictured and case.model == "wan_5b":
        kind: Any = diffusers.WanImageToVideoPipeline  # type: ignore[reportPrivateImportUsage]
        pipeline = kind(**pipeline.components, image_processor=None, image_encoder=None, expand_timesteps=True)
        pipeline.set_progress_bar_config(disable=True)
    found: list[Any] = []
    for one in asked(case):
        own = {"image": one.prompt.media[0]} if case.pictured else {}
        found.append(pipeline(prompt=one.prompt.text, generator=generator_of(one.seed, 0, 0), **own, **call).frames[0])
    return found


def gap(policy: FlowPolicy, pipeline: Any, case: Case) -> float:
    """How far finished latents are from the pipeline's."""
    theirs = torch.stack(told(pipeline, case, "latent"))
    return float((latents(policy, asked(case), case.plan) - theirs).abs().max())


def videos(policy: FlowPolicy, case: Case) -> np.ndarray:
    """The bytes of all samples; a clip of one frame is a picture."""
    samples: Any = [sample for _, sample in policy.rollout(asked(case), case.plan).samples()]
    assert all(sample.fps == (case.fps if case.frames > 1 else None) for sample in samples)
    return np.stack([np.asarray(sample.image)[None] if sample.video is None else sample.video for sample in samples])


def pixel_gap(policy: FlowPolicy, pipeline: Any, case: Case) -> float:
    """The largest difference of two bytes."""
    theirs, ours = np.round(np.stack(told(pipeline, case, "np")) * 255).astype(int), videos(policy, case)
    assert ours.dtype == np.uint8 and ours.shape == theirs.shape == (2, case.frames, case.side, case.side, 3)
    return float(np.abs(ours - theirs).max())


@pytest.mark.parametrize("name", [*CASES, *(f"{model}, one frame" for model in WAN)])
def test_it_is_its_pipeline_with_an_adapter_saved_and_loaded(tiny: Any, tmp_path: Path, name: str):
    model, is_picture, _ = name.partition(", one frame")
    case = replace(CASES[model], frames=1) if is_picture else CASES[model]
    policy, pipeline = make(tiny(case.model), case), load_pipeline(tiny(case.model))
    policy.save(tmp_path)
    assert gap(policy, pipeline, case) > 1e-3, "the adapter changes the clip"
    if hasattr(pipeline, "load_lora_weights"):
        pipeline.load_lora_weights(str(tmp_path))
    else:
        pipeline.transformer.load_lora_adapter(str(tmp_path), prefix=None, use_safetensors=True)
    if "a14b" in case.model:
        pipeline.load_lora_weights(tmp_path / "transformer_2", load_into_transformer_2=True)
    assert gap(policy, pipeline, case) < 1e-5
    assert pixel_gap(policy, pipeline, case) <= 1
    if case.model.startswith("sana"):
        assert policy.family.spacing() == (FlowSigmas(3.0, 0.999) if case.model == "sana_video" else StaticShift(3.0))
        torch.testing.assert_close(policy.sigmas(case.plan), pipeline.scheduler.sigmas, atol=2e-6, rtol=0)


@pytest.mark.parametrize("name", WAN)
def test_a_saved_adapter_is_a_start_and_a_saved_pipeline_a_model(tiny: Any, tmp_path: Path, name: str):
    case = CASES[name]
    policy, whole = make(tiny(name), case), make(tiny(name), case, lora=None)
    policy.save(tmp_path / "adapter")
    again = FlowPolicy(replace(policy.config, lora=LoraSettings(adapter=str(tmp_path / "adapter"))))
    ours, theirs = (latents(one, asked(case), case.plan) for one in (policy, again))
    torch.testing.assert_close(theirs, ours, atol=1e-5, rtol=1e-5)
    whole.save(tmp_path / name)
    pipeline = load_pipeline(tmp_path / name)
    assert pipeline.config.boundary_ratio == (0.6 if name == "wan_a14b" else None)
    assert pipeline.config.expand_timesteps == (name == "wan_5b")
    assert gap(whole, pipeline, case) < 1e-5


@pytest.mark.parametrize(("name", "lora"), [*((name, LORA) for name in CASES), *((name, None) for name in WAN)])
def test_log_probabilities_are_read_again_and_every_weight_gets_a_gradient(tiny: Any, name: str, lora: LoraSettings | None):
    case = CASES[name]
    policy = make(tiny(case.model), case, lora=lora)
    # six steps of sigma 1 to 0.009, four above the boundary of 600, reach both experts
    assert_reads_again(policy, asked(case, 3), Full(num_steps=6 if "wan" in name else 3, level=0.7).at(0))
    if "a14b" in name:
        assert {name.split(".")[1] for name in policy.weights.named} == {"early", "late"}


@pytest.mark.parametrize(
    ("name", "plan"),
    [
        *((name, plan) for name in WAN for plan in ("flow_grpo", "mix", "branches", "dance", "tree")),
        *((name, plan) for name in FROM_FRAME for plan in ("mix", "tree")),
    ],
)
def test_log_probabilities_of_every_plan_are_read_again(tiny: Any, name: str, plan: str):
    policy = make(tiny(CASES[name].model), CASES[name])
    rollouts = policy.rollout(asked(CASES[name], 4), PLANS[plan])
    policy.audit(rollouts)
    assert read_again(policy, rollouts)[0] < 1e-6


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("wan", {"guidance": 2.0}),
        ("wan_5b", {"guidance": 2.0}),
        ("wan_a14b", {"guidance_low": 3.0}),
        ("wan_a14b", {"guidance_low": None}),
    ],
)
def test_wrong_guidance_is_noticed(tiny: Any, name: str, settings: dict[str, Any]):
    policy = make(tiny(name), CASES[name], **settings)
    assert gap(policy, policy.pipeline, CASES[name]) > 1e-3


def set_to(attribute: str, wrong: Any) -> Callable[[FlowPolicy, pytest.MonkeyPatch], None]:
    return lambda policy, patch: patch.setattr(type(policy.family), attribute, wrong)


def reads(name: str, spoil: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[FlowPolicy, pytest.MonkeyPatch], None]:
    """HunyuanVideo, whose network is shown this condition otherwise."""
    velocity = HunyuanVideo15.velocity
    return set_to(
        "velocity",
        lambda self, net, x, t, prompts, guidance: velocity(self, net, x, t, {**prompts, name: spoil(prompts[name])}, guidance),
    )


def left_out(name: str, places: slice) -> Callable[[FlowPolicy, pytest.MonkeyPatch], None]:
    """A part of what is found in a first frame is zeros."""

    def change(policy: FlowPolicy, patch: pytest.MonkeyPatch) -> None:
        whole = type(policy.family).encode_with

        def encode_with(*given: Any) -> Any:
            found = dict(whole(*given))
            found[name] = found[name].clone()
            found[name][places] = 0
            return found

        set_to("encode_with", encode_with)(policy, patch)

    return change


def swap(policy: FlowPolicy, patch: pytest.MonkeyPatch) -> None:
    experts = policy.net.transformer
    experts.early, experts.late = experts.late, experts.early


RAW = set_to("normalize", lambda self, latents: latents)
ONE_TIME = set_to("times", lambda self, timesteps: timesteps[:, None].repeat(1, self.image_tokens))
FACTS: list[tuple[str, str, Callable[[FlowPolicy, pytest.MonkeyPatch], None]]] = [
    ("wan", "spacing", set_to("spacing", lambda self: FlowSigmas(3.0))),
    ("wan_a14b", "boundary", lambda policy, patch: patch.setattr(policy.net.transformer, "boundary", 950.0)),
    ("wan_a14b", "experts swapped", swap),
    ("wan_i2v", "mask", left_out(SOURCE, slice(1, 4))),
    ("wan_i2v", "clip", left_out(SEEN, slice(0, 1))),
    ("wan_i2v_a14b", "latents as they are", RAW),
    ("wan_5b from a frame", "one time", ONE_TIME),
    ("hunyuan15", "no words in quotes", reads("quoted_mask", torch.zeros_like)),
    ("hunyuan15", "padding seen", reads("embeds_mask", torch.ones_like)),
    ("hunyuan15_i2v", "first frame not seen", left_out(SEEN, slice(None))),
    ("hunyuan15_i2v", "mask", left_out(SOURCE, slice(-1, None))),
    ("hunyuan15_i2v", "latents as they are", RAW),
    ("sana_video", "spacing", set_to("spacing", lambda self: LinearShift(3.0))),
    ("sana_video", "no instruction", set_to("instruction", None)),
    ("sana_i2v", "one time", ONE_TIME),
    ("sana_i2v", "latents as they are", RAW),
]
"""A case, a fact, and how it is made wrong."""


@pytest.mark.parametrize(("name", "fact", "change"), FACTS, ids=[f"{name}: {fact}" for name, fact, _ in FACTS])
def test_a_fact_that_is_broken_is_noticed(tiny: Any, name: str, fact: str, change: Any, monkeypatch: pytest.MonkeyPatch):
    """Every line that equality rests on: the gap is a hundred times what it may be."""
    case = CASES[name]
    policy = make(tiny(case.model), case)
    right = latents(policy, asked(case), case.plan)
    change(policy, monkeypatch)
    policy.encoder.known.clear()
    assert float((latents(policy, asked(case), case.plan) - right).abs().max()) > 1e-3


def test_moments_of_an_autoencoder_that_are_wrong_are_noticed(tiny: Any):
    policy = make(tiny("wan"), CASES["wan"])
    right = videos(policy, CASES["wan"])
    policy.pipeline.vae.register_to_config(latents_mean=[0.0] * 4)
    assert (videos(policy, CASES["wan"]) != right).any()


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


def test_an_adapter_without_its_second_half_is_refused(tiny: Any, tmp_path: Path):
    make(tiny("wan_a14b"), CASES["wan_a14b"]).save(tmp_path)
    shutil.rmtree(tmp_path / "transformer_2")
    with pytest.raises(FileNotFoundError, match=r"has no folder 'transformer_2'.*name a folder that mmrl saved for this model"):
        make(tiny("wan_a14b"), CASES["wan_a14b"], lora=LoraSettings(adapter=str(tmp_path)))


def with_part(folder: str, name: str, part: Any, to: Path) -> Path:
    """A copy of a pipeline with another part."""
    copy = shutil.copytree(folder, to)
    shutil.rmtree(copy / name)
    part.save_pretrained(copy / name)
    index = json.loads((copy / "model_index.json").read_text())
    (copy / "model_index.json").write_text(json.dumps(index | {name: ["diffusers", type(part).__name__]}))
    return copy


def test_the_hub_scheduler_is_followed_by_its_sigmas(tiny: Any, tmp_path: Path):
    """Wan's repositories come with UniPC: its table is followed by Euler steps."""
    unipc = diffusers.UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)  # type: ignore[reportPrivateImportUsage]
    policy = make(with_part(tiny("wan"), "scheduler", unipc, tmp_path / "wan"), CASES["wan"])
    unipc.set_timesteps(STEPS)
    assert policy.family.spacing() == FlowSigmas(3.0)
    torch.testing.assert_close(policy.sigmas(EVEN), unipc.sigmas, atol=2e-6, rtol=0)
    assert make(tiny("wan"), CASES["wan"]).family.spacing() == StaticShift(3.0)


def test_a_first_frame_is_gone_on_from_by_dpm_solver_too(tiny: Any, tmp_path: Path):
    """SANA's published folder comes with it."""
    case = replace(CASES["sana_i2v"], plan=SOLVED)
    policy = make(with_part(tiny("sana_i2v"), "scheduler", solver(), tmp_path / "model"), case, lora=None)
    assert gap(policy, policy.pipeline, case) < 1e-5


def test_the_autoencoder_of_ltx_2_decodes_as_in_the_pipeline(tiny: Any, tmp_path: Path):
    """Its moments lie beside its weights, and its config has the compression by other names."""
    vae = hub(
        "AutoencoderKLLTX2Video",
        latent_channels=LATENTS,
        block_out_channels=(8, 16),
        down_block_types=("LTX2VideoDownBlock3D",) * 2,
        decoder_block_out_channels=(8, 16),
        layers_per_block=(1, 1, 1),
        decoder_layers_per_block=(1, 1, 1),
        spatio_temporal_scaling=(True, True),
        decoder_spatio_temporal_scaling=(True, True),
        decoder_inject_noise=(False,) * 3,
        downsample_type=("spatiotemporal",) * 2,
        upsample_type=("spatiotemporal",) * 2,
        upsample_residual=(True, True),
        upsample_factor=(2, 2),
        patch_size=2,
        spatial_compression_ratio=8,
        temporal_compression_ratio=4,
    )
    vae.latents_mean.copy_(torch.tensor([0.1, -0.1, 0.2, 0.0]))
    vae.latents_std.copy_(torch.tensor([0.9, 1.1, 1.0, 1.2]))
    folder = with_part(tiny("sana_video"), "vae", vae, tmp_path / "model")
    policy = make(folder, CASES["sana_video"], lora=None)
    pipeline = load_pipeline(folder)
    pipeline.transformer.load_state_dict(policy.pipeline.transformer.state_dict())
    assert pixel_gap(policy, pipeline, CASES["sana_video"]) <= 1


def test_a_clip_counts_as_all_its_frames_where_samples_are_decoded(tiny, monkeypatch):
    policy = make(tiny("wan"), CASES["wan"])
    sizes: list[int] = []
    decode = policy.pipeline.vae.decode
    monkeypatch.setattr(policy.pipeline.vae, "decode", lambda z, **more: (sizes.append(len(z)), decode(z, **more))[1])
    whole = latents(policy, requests(count=3), evaluation_plan(2))
    # 16 frames side by side are three clips of 5
    assert sizes == [3, 3]
    together = make(tiny("wan"), CASES["wan"], decode_rows=1)
    for ours, theirs in zip(policy.decode(whole), together.decode(whole), strict=True):
        assert np.abs(np.asarray(ours).astype(int) - np.asarray(theirs).astype(int)).max() <= 1


def test_a_clip_of_another_length_fails_the_audit(tiny):
    policy = make(tiny("wan"), CASES["wan"])
    rollouts = policy.rollout(requests(), PLANS["flow_grpo"])
    object.__setattr__(policy, "config", replace(policy.config, frames=9))
    refused(r"its clip is \(5, 32, 32, 3\), not 9 frames of 32 x 32 pixels", policy.audit, rollouts)


def test_it_reads_under_the_reference(tiny):
    """The shadow of both experts' adapters: the reference is the model without them."""
    policy = make(tiny("wan_a14b"), CASES["wan_a14b"])
    rollouts = policy.rollout(requests(), PLANS["flow_grpo"])
    reference = LOGPROBS._replace(model="ref")
    values = policy.read(rollouts.trace, [LOGPROBS, reference], rollouts.action_mask)
    assert float((values[LOGPROBS] - values[reference]).abs().max()) > 1e-3


def test_the_frozen_frame_of_5b_has_no_part_in_ratios_and_ends_as_the_picture(tiny: Any):
    """Whatever the weights are, a transition of the first latent is as probable: only later frames tell policies apart."""
    case = CASES["wan_5b from a frame"]
    policy, requests = make(tiny("wan_5b"), case), asked(case, 2)
    drawn = latents(policy, requests, EVEN)
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
    case = CASES["wan_5b from a frame"]
    policy = make(tiny("wan_5b"), case)
    both = [asked(case)[0], Request(Prompt("plain", "a red cat"), 1, 1, seed=9)]
    together = latents(policy, both, evaluation_plan(2))
    alone = torch.cat([latents(policy, [one], evaluation_plan(2)) for one in both])
    torch.testing.assert_close(together, alone, atol=2e-5, rtol=1e-5)


def test_prompts_that_it_cannot_go_on_from_are_refused(tiny: Any):
    policy, case = make(tiny("wan_i2v_a14b"), CASES["wan_i2v_a14b"]), CASES["wan_5b from a frame"]
    words = r"prompt 'p' holds 0 pictures, but this model takes prompts with 1: name them in"
    refused(words, policy.rollout, [Request(Prompt("p", "x"), 1, 0)], evaluation_plan(2))
    policy = make(tiny("wan_5b"), case, guidance_rule="norm")
    refused("guidance_rule is 'norm', which would change the first frame", policy.rollout, asked(case), evaluation_plan(2))
