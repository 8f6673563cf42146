"""What flow families share: sizes and rules of guidance; and one's own, with its own negatives and bare adapters."""

from functools import partial
from types import SimpleNamespace
from typing import Any

import diffusers
import pytest
import torch

from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.flow.path import nearest_multiple, no_longer_than, velocity_with_guidance
from mmrl.flow.plan import evaluation_plan
from mmrl.policies.flow.adapters import add_adapter, save_adapter
from mmrl.policies.flow.families.base import FlowFamily
from mmrl.policies.flow.families.sd3 import StableDiffusion3
from mmrl.policies.flow.loading import load
from mmrl.policies.flow.parts import FlowParts
from mmrl.policies.flow.policy import FlowPolicy, FlowPolicyConfig
from mmrl.policies.flow.sizes import Grid
from mmrl.policies.flow.trace import NoisyLatents
from mmrl.policies.shared.lora import LoraSettings
from tests.support.flow_policies import LORA, PLANS, latents, logprobs, make, requests, stir
from tests.support.refused import refused


class OwnNegatives(StableDiffusion3):
    """Every prompt is guided away from itself without its last word."""

    own_negatives = True

    def encode(self, text: str, device: torch.device) -> dict[str, torch.Tensor]:
        away = super().encode(text.rpartition(" ")[0], device)
        return {**super().encode(text, device), **{f"not {name}": value for name, value in away.items()}}

    def negative(self, condition: Any) -> dict[str, torch.Tensor]:
        return {f"not {name}": value for name, value in condition.items() if not name.startswith("not ")} | {
            name: condition[f"not {name}"] for name in ("embeds", "pooled")
        }


def test_each_prompt_may_have_a_negative_of_its_own(tiny):
    """As the pipeline draws with that negative prompt, for prompts that share a forward."""
    config = FlowPolicyConfig(tiny("sd3"), 16, 16, guidance=2.0, max_prompt_tokens=3, lora=LORA)
    policy = FlowPolicy(config, parts=FlowParts(load=partial(load, own=OwnNegatives)))
    rollouts = policy.rollout(requests(count=2), PLANS["flow_grpo"])
    assert (logprobs(policy, rollouts) - rollouts.recorded[ROLLOUT_LOGPROBS]).abs()[rollouts.action_mask].max() < 1e-6
    ours = latents(policy, requests(count=1), evaluation_plan(3))
    policy.pipeline.set_progress_bar_config(disable=True)
    for row, request in enumerate(requests(count=1)):
        theirs = policy.pipeline(
            request.prompt.text,
            negative_prompt=request.prompt.text.rpartition(" ")[0],
            latents=rollouts.trace.latents[rollouts.trace.before[2 * row, 0]][None],  # type: ignore[attr-defined]
            num_inference_steps=3,
            guidance_scale=2.0,
            height=16,
            width=16,
            max_sequence_length=3,
            output_type="latent",
        ).images
        torch.testing.assert_close(ours[row], theirs[0], atol=2e-5, rtol=1e-5)


def test_a_pipeline_without_a_loader_keeps_its_adapters(tiny, tmp_path):
    policy = make(tiny("sd3"))
    stir(policy, 0.5)
    scale = LORA.alpha / LORA.rank
    state = policy.net.transformer.state_dict()
    trained = {name: weight * scale if "lora_B" in name else weight for name, weight in state.items() if "lora_" in name}
    bare = SimpleNamespace(transformer=policy.net.transformer)
    save_adapter(bare, {"transformer": policy.net.transformer}, tmp_path, True)
    fresh: Any = diffusers.SD3Transformer2DModel.from_pretrained(tiny("sd3"), subfolder="transformer")  # type: ignore[attr-defined]
    fresh.load_lora_adapter(str(tmp_path), prefix=None, use_safetensors=True)
    found = {name.replace("default_0", "default"): value for name, value in fresh.state_dict().items() if "lora_" in name}
    assert found.keys() == trained.keys() and all(torch.equal(found[name], trained[name]) for name in trained)
    assert next(iter(fresh.peft_config.values())).lora_alpha == LORA.rank
    start = diffusers.SD3Transformer2DModel.from_pretrained(tiny("sd3"), subfolder="transformer")  # type: ignore[attr-defined]
    add_adapter(SimpleNamespace(transformer=start), StableDiffusion3, LoraSettings(adapter=str(tmp_path)), "transformer")
    again = start.state_dict()
    assert all(torch.equal(again[name], trained[name]) for name in trained)


@pytest.mark.parametrize("rule", ["plain", "norm", "cap", "zero_star"])
def test_rules_of_guidance_join_both_passes(tiny, rule):
    """Against the formula at the first step, and read again to 1e-6."""
    policy = make(tiny("sd3"), guidance_rule=rule)
    rollouts = policy.rollout(requests(count=2), PLANS["flow_grpo"])
    assert (logprobs(policy, rollouts) - rollouts.recorded[ROLLOUT_LOGPROBS]).abs()[rollouts.action_mask].max() < 1e-6
    trace: Any = rollouts.trace
    x, index = trace.latents[trace.before[:, 0]], trace.prompt_index
    times = torch.full((len(x),), 1000.0)
    with torch.no_grad():
        asked = NoisyLatents(x, times, index, trace.sigma_tables[0].size)
        guided = policy.velocities(asked, trace.conditions)
        c = policy.velocities(asked, trace.conditions, guidance=1.0)
        u = 2 * c - make(tiny("sd3"), guidance_rule="plain").velocities(asked, trace.conditions)
    if rule == "plain":
        expected = 2 * c - u
    elif rule == "norm":
        expected = (2 * c - u) * (c.norm(dim=-1, keepdim=True) / (2 * c - u).norm(dim=-1, keepdim=True))
    elif rule == "cap":
        plain = 2 * c - u
        expected = torch.stack([b * min(1.0, float(a.norm() / b.norm())) for a, b in zip(c, plain, strict=True)])
    else:
        share = torch.stack([(a * b).sum() / (b * b).sum() for a, b in zip(c, u, strict=True)]).view(-1, 1, 1, 1)
        expected = 2 * c - share * u
    torch.testing.assert_close(guided, expected, atol=1e-5, rtol=1e-5)


def test_a_rule_is_that_of_diffusers_own_guider():
    from diffusers.guiders.classifier_free_zero_star_guidance import ClassifierFreeZeroStarGuidance

    c, u = torch.randn(2, 3, 4, 5, 6, generator=torch.Generator().manual_seed(0)).unbind(0)
    guider = ClassifierFreeZeroStarGuidance(guidance_scale=4.0, zero_init_steps=0)
    guider.set_state(step=1, num_inference_steps=4, timestep=torch.LongTensor([500]))
    ours = velocity_with_guidance(c, nearest_multiple(c, u), 4.0)
    torch.testing.assert_close(ours, guider.forward(c, u).pred, atol=1e-5, rtol=1e-5)


def test_a_length_is_cut_and_never_raised():
    c, v = torch.tensor([[3.0, 4.0], [3.0, 4.0]]), torch.tensor([[6.0, 8.0], [0.3, 0.4]])
    torch.testing.assert_close(no_longer_than(c, v), torch.tensor([[3.0, 4.0], [0.3, 0.4]]))


def test_one_scale_per_row_is_that_of_every_row():
    c, u = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)), torch.ones(2, 3, 4)
    found = velocity_with_guidance(c, u, torch.tensor([2.0, 5.0]))
    torch.testing.assert_close(found[1], velocity_with_guidance(c[1:], u[1:], 5.0)[0])


def family(height: int = 32, width: int = 64) -> FlowFamily:
    config = SimpleNamespace(in_channels=16)
    return FlowFamily(SimpleNamespace(vae_scale_factor=8, transformer=SimpleNamespace(config=config)), height, width, 77)


@pytest.mark.parametrize("wrong", [{"height": 24}, {"width": 40}, {"height": 31}])
def test_sides_are_multiples_of_a_patch_of_latents(wrong: dict[str, Any]):
    assert family(16, 16).latent_shape == (4, 2, 2)
    (name,) = wrong
    refused(rf"policy\.{name} is \d+, but this model draws multiples of 16 pixels", family, **wrong)


@pytest.mark.parametrize(
    ("grid", "size", "near"),
    [
        (Grid(16), (500, 512), [(496, 512), (512, 512)]),
        (Grid(16), (507, 511), [(512, 512), (496, 512)]),
        (Grid(16), (513, 512), [(512, 512), (528, 512)]),
        (Grid(16, 1024), (1030, 512), [(1024, 512)]),
        (Grid(64, 1000), (970, 64), [(960, 64)]),
        (Grid(32), (8, 100), [(32, 96), (32, 128)]),
    ],
)
def test_the_nearest_sizes_fit(grid: Grid, size: tuple[int, int], near: list[tuple[int, int]]):
    assert not grid.fits(size)
    assert list(grid.nearest(size)) == near and all(map(grid.fits, near))
