"""Families of generators of pictures: how a tiny model of each is drawn by mmrl, and by its own pipeline."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from diffusers.pipelines.pipeline_utils import DiffusionPipeline
from torch import Tensor

from mmrl.flow.dynamics import DPM2
from mmrl.flow.layout import SeededNoise
from mmrl.flow.plan import RolloutPlan, StepPlan, evaluation_plan
from mmrl.policies.flow.families.flux.flux2 import Flux2
from mmrl.policies.flow.policy import FlowPolicy
from tests.support.flow_policies import LORA, latents, requests, with_adapters

STEPS = 4


@dataclass(frozen=True)
class Case:
    """How a tiny model is drawn by mmrl and by its own pipeline."""

    model: str
    guidance: float
    """mmrl's."""
    call: Mapping[str, Any]
    """What the pipeline is called with for the same."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Of the policy."""
    plan: RolloutPlan = field(default_factory=lambda: evaluation_plan(STEPS))
    bound: float = 5e-5
    """Largest difference, as a share of the largest value where that is above 1."""
    output: str = "latent"


def tokens(count: int, **others: Any) -> dict[str, Any]:
    return {"max_sequence_length": count, **others}


FIRST = {
    "sd3": Case("sd3", 2.0, tokens(3, guidance_scale=2.0), {"max_prompt_tokens": 3}),
    "flux": Case("flux", 2.0, tokens(24, guidance_scale=2.0), {"max_prompt_tokens": 24}),
    "qwen_image": Case("qwen_image", 2.0, tokens(40, true_cfg_scale=2.0, negative_prompt=" "), {"max_prompt_tokens": 40}),
}
"""Those that every test of the policy draws with."""
CASES = {
    "z_image": Case("z_image", 4.0, tokens(64, guidance_scale=3.0), {"max_prompt_tokens": 64}),
    "z_image_capped": Case(
        "z_image", 4.0, tokens(64, guidance_scale=3.0, cfg_normalization=True), {"max_prompt_tokens": 64, "guidance_rule": "cap"}
    ),
    "z_image_turbo": Case("z_image", 1.0, tokens(64, guidance_scale=0.0), {"max_prompt_tokens": 64}),
    "flux2": Case(
        "flux2", 4.0, tokens(160, guidance_scale=4.0, text_encoder_out_layers=(10, 20, 30)), {"max_prompt_tokens": 160}
    ),
    "flux2_klein": Case("flux2_klein", 4.0, tokens(64, guidance_scale=4.0), {"max_prompt_tokens": 64}, output="pt"),
    "sana": Case(
        "sana",
        4.0,
        tokens(48, guidance_scale=4.0, use_resolution_binning=False),
        {"max_prompt_tokens": 48},
        RolloutPlan((StepPlan(DPM2()),) * STEPS),
        1e-4,
    ),
    "krea2": Case("krea2", 4.0, tokens(40, guidance_scale=3.0), {"max_prompt_tokens": 40}),
    "qwen_image21": Case("qwen_image21", 1.0, {}),
    "qwen_image21_guided": Case("qwen_image21", 3.0, {"true_cfg_scale": 3.0, "negative_prompt": " "}),
    "chroma": Case("chroma", 3.0, tokens(24, guidance_scale=3.0), {"max_prompt_tokens": 24}),
    "lumina2": Case("lumina2", 3.0, tokens(200, guidance_scale=3.0), {"max_prompt_tokens": 200}),
    "sd15": Case("sd15", 3.0, {"guidance_scale": 3.0}, bound=1e-4),
    "sdxl": Case("sdxl", 3.0, {"guidance_scale": 3.0}, bound=1e-4),
}


def load_pipeline(folder: object) -> Any:
    """By diffusers itself, which shows no progress then; Stable Diffusion 3 without T5, which ours do not have."""
    is_sd3 = "StableDiffusion3" in Path(str(folder), "model_index.json").read_text()
    absent = dict.fromkeys(("text_encoder_3", "tokenizer_3")) if is_sd3 else {}
    pipeline = DiffusionPipeline.from_pretrained(str(folder), **absent)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def policy_of(tiny: Any, case: Case, **settings: Any) -> FlowPolicy:
    chosen = {"height": 32, "width": 32, "guidance": case.guidance, "lora": LORA, **case.settings, **settings}
    return with_adapters(tiny(case.model), **chosen)


def noise_of(policy: FlowPolicy, plan: RolloutPlan, count: int) -> Tensor:
    """The initial noise of the first samples of `requests(count=1)`, as the pipeline takes it."""
    seeds = tuple(7 + i for i in range(count))
    noise = SeededNoise(plan, (1,) * count, seeds, policy.family.latent_shape)(0, torch.arange(count))
    is_taken_packed = policy.family.packed and not isinstance(policy.family, Flux2)
    return policy.family.pack(noise) if is_taken_packed else noise


@torch.no_grad()
def told(pipeline: Any, case: Case, noise: Tensor, output: str) -> Tensor:
    """The pipeline's own answers, one call per prompt; pictures with an alpha channel are laid on white."""
    found: list[Tensor] = []
    for request, start in zip(requests(count=1, num_prompts=len(noise)), noise, strict=True):
        got = pipeline(
            prompt=request.prompt.text,
            latents=start[None].clone(),
            num_inference_steps=case.plan.num_steps,
            height=32,
            width=32,
            output_type=output,
            **case.call,
        )[0]
        found.append(got if isinstance(got, Tensor) else torch.stack(list(got)))
    drawn = torch.cat(found)
    return drawn[:, :3] * drawn[:, 3:] + 1 - drawn[:, 3:] if output == "pt" and drawn.shape[1] == 4 else drawn


def gap(policy: FlowPolicy, case: Case, pipeline: Any) -> float:
    """How far latents (or pictures) are apart, as a share of the largest value."""
    ours = latents(policy, requests(count=1), case.plan)
    theirs = told(pipeline, case, noise_of(policy, case.plan, len(ours)), case.output)
    if case.output == "pt":
        ours = (policy.family.decode(policy.family.unpack(ours)) / 2 + 0.5).clamp(0, 1)
    return float((ours.reshape(theirs.shape) - theirs).abs().max() / theirs.abs().max().clamp(min=1))
