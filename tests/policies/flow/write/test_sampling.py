"""Sampling: the same as the pipeline's own, the same alone as in company, and clear about what cannot be sampled."""

import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmrl.core.protocols import Policy
from mmrl.core.readings import ROLLOUT_LOGPROBS, VELOCITY
from mmrl.core.types import Prompt, Request, Tempering
from mmrl.flow.layout import generator_of
from mmrl.flow.path import data_of
from mmrl.flow.plan import evaluation_plan
from mmrl.flow.schedules import Forward, Full
from mmrl.flow.times import TimeSampler
from mmrl.policies.flow.policy import FlowTrace
from mmrl.policies.shared.lora import LoraSettings
from tests.support.flow_policies import FAMILIES, PLANS, PROMPT_TOKENS, latents, make, prompts, requests

GUIDANCE: dict[str, dict[str, Any]] = {
    "sd3": {"guidance_scale": 2.0},
    "flux": {"guidance_scale": 2.0},
    "qwen_image": {"true_cfg_scale": 2.0, "negative_prompt": " "},
}


def test_it_is_a_policy(tiny):
    policy = make(tiny("sd3"), ["ref"])
    assert isinstance(policy, Policy)
    assert policy.shadows == {"ref"}


@pytest.mark.parametrize("guidance", [1.0, 2.0])
@pytest.mark.parametrize("family", FAMILIES)
def test_without_noise_it_draws_what_the_pipeline_draws(tiny, family, guidance):
    policy = make(tiny(family), guidance=guidance)
    plan = evaluation_plan(5)
    rollouts = policy.rollout(requests(count=2), plan)
    ours = latents(policy, requests(count=2), plan)
    policy.pipeline.set_progress_bar_config(disable=True)
    settings = {name: guidance if name.endswith("scale") else value for name, value in GUIDANCE[family].items()}
    if guidance == 1:
        settings.pop("negative_prompt", None)
    for row, (group, sample) in enumerate(rollouts.samples()):
        generator = generator_of(7 + group.id, row % 2, 0)
        common = {"num_inference_steps": 5, "height": 16, "width": 16, "max_sequence_length": PROMPT_TOKENS[family]}
        theirs = policy.pipeline(group.prompt.text, generator=generator, output_type="latent", **common, **settings).images
        torch.testing.assert_close(ours[row], theirs[0], atol=2e-5, rtol=1e-5)
        generator = generator_of(7 + group.id, row % 2, 0)
        image = policy.pipeline(group.prompt.text, generator=generator, **common, **settings).images[0]
        assert np.abs(np.asarray(sample.image, dtype=int) - np.asarray(image, dtype=int)).max() <= 1


def test_static_shift_of_flux_is_the_pipelines(tiny, tmp_path):
    folder = shutil.copytree(tiny("flux"), tmp_path / "flux")
    file = folder / "scheduler" / "scheduler_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"use_dynamic_shifting": False, "shift": 2.0}))
    policy = make(str(folder))
    ours = latents(policy, requests(count=1, num_prompts=1), evaluation_plan(3))
    policy.pipeline.set_progress_bar_config(disable=True)
    theirs = policy.pipeline(
        "a red cat",
        num_inference_steps=3,
        height=16,
        width=16,
        max_sequence_length=PROMPT_TOKENS["flux"],
        guidance_scale=2.0,
        generator=generator_of(7, 0, 0),
        output_type="latent",
    ).images
    torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_the_prompt_changes_the_picture(tiny, family):
    policy = make(tiny(family))
    same_noise = [Request(prompt, 1, i, seed=3) for i, prompt in enumerate(prompts())]
    drawn = latents(policy, same_noise, evaluation_plan(4))
    assert (drawn[0] - drawn[1]).abs().max() > 0.05
    assert (drawn[0] - drawn[2]).abs().max() > 0.05


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sample_alone_is_the_one_in_company(tiny, family):
    policy, plan = make(tiny(family)), PLANS["flow_grpo"]
    crowd, alone = requests(count=4, num_prompts=3), requests(count=1, num_prompts=2)[1:]
    torch.testing.assert_close(latents(policy, crowd, plan)[4:5], latents(policy, alone, plan), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("plan", ["flow_grpo", "tree", "branches"])
def test_the_order_of_requests_does_not_matter(tiny, plan):
    policy = make(tiny("sd3"))
    there, back = policy.rollout(requests(), PLANS[plan]), policy.rollout(requests()[::-1], PLANS[plan])
    assert [group.id for group in back.groups] == [1, 0]
    order = torch.tensor([4, 5, 6, 7, 0, 1, 2, 3])
    torch.testing.assert_close(there.recorded[ROLLOUT_LOGPROBS], back.recorded[ROLLOUT_LOGPROBS][order], atol=1e-5, rtol=1e-5)
    assert torch.equal(there.action_mask, back.action_mask[order])


def test_cutting_forwards_changes_nothing(tiny):
    whole, cut, filled = (make(tiny("qwen_image"), forward_rows=rows, equal_forwards=rows == 5) for rows in (16, 3, 5))
    plan = PLANS["flow_grpo"]
    expected = latents(whole, requests(), plan)
    torch.testing.assert_close(latents(cut, requests(), plan), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(latents(filled, requests(), plan), expected, atol=1e-5, rtol=1e-5)


def test_a_group_may_share_its_initial_noise(tiny):
    policy = make(tiny("sd3"))
    own = latents(policy, requests(), evaluation_plan(2))
    shared = latents(policy, requests(), Full(num_steps=2, initial_noise="group").at(0))
    assert (own[0] - own[1]).abs().max() > 0.1
    first = policy.rollout(requests(), Full(num_steps=2, initial_noise="group").at(0)).trace
    starts = first.latents[first.before[:, 0]]  # type: ignore[attr-defined]
    assert torch.equal(starts[0], starts[3])
    assert not torch.equal(starts[0], starts[4])
    assert (shared[0] - shared[1]).abs().max() > 0.1


def test_nodes_are_named_apart_between_groups_and_calls(tiny):
    policy = make(tiny("sd3"))
    first = policy.rollout(requests(), PLANS["tree"]).node_ids
    second = policy.rollout(requests(seed=70), PLANS["tree"]).node_ids
    assert first is not None and second is not None
    assert [len(first[:, t].unique()) for t in range(4)] == [4, 4, 8, 8]
    assert not set(first.flatten().tolist()) & set(second.flatten().tolist())
    assert policy.rollout(requests(), PLANS["flow_grpo"]).node_ids is None


def test_a_group_may_be_drawn_under_several_weights(tiny):
    policy = make(tiny("sd3"), ["ema"])
    with torch.no_grad():
        for weight in policy.parameters():
            weight += 0.3
    cat, dogs, _ = prompts()
    asked = [Request(cat, 2, 0, seed=1), Request(cat, 1, 0, seed=1, model="ema"), Request(dogs, 1, 1, seed=2)]
    rollouts = policy.rollout(asked, PLANS["flow_grpo"])
    assert [(group.prompt.id, len(group.samples)) for group in rollouts.groups] == [("cat", 3), ("dogs", 1)]
    pairs = list(zip(rollouts.group_ids.tolist(), rollouts.sample_ids.tolist(), strict=True))
    assert sorted(pairs) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    for model, rows in (("ema", [0]), ("policy", [1, 2, 3])):
        part = rollouts.take(torch.tensor(rows))
        reading = ROLLOUT_LOGPROBS._replace(model=model)
        again = policy.read(part.trace, [reading], part.action_mask)[reading]
        torch.testing.assert_close(again, part.recorded[ROLLOUT_LOGPROBS], atol=1e-6, rtol=0)


def test_prompts_are_encoded_once_each(tiny, monkeypatch):
    policy = make(tiny("sd3"), cached_prompts=2)
    seen: list[str] = []
    encode = type(policy.family).encode
    monkeypatch.setattr(
        type(policy.family), "encode", lambda self, text, device: (seen.append(text), encode(self, text, device))[1]
    )
    for _ in range(2):
        policy.rollout(requests(count=2), PLANS["flow_grpo"])
    assert seen == ["a red cat", "two large dogs", ""]
    policy.rollout([Request(Prompt("x", "hi"), 1, 0)], evaluation_plan(2))
    policy.rollout(requests(count=1, num_prompts=1), evaluation_plan(2))
    assert seen[3:] == ["hi", "a red cat"]


@pytest.mark.parametrize(("family", "limit"), [("sd3", 32), ("flux", 24), ("qwen_image", 40)])
def test_a_prompt_that_is_cut_is_said_to_be(tiny, family, limit, caplog):
    policy = make(tiny(family))
    long = Request(Prompt("long", "a very " + "very " * 20 + "red cat"), 1, 0)
    with caplog.at_level(logging.WARNING, "mmrl"):
        policy.rollout([*requests(count=1), replace_id(long)], evaluation_plan(2))
        policy.rollout([long], evaluation_plan(2))
    said = [record.getMessage() for record in caplog.records if record.name == "mmrl"]
    assert len(said) == 1
    assert "1 of 3 different prompts" in said[0]
    assert f"{limit} are seen" in said[0]


def replace_id(request: Request) -> Request:
    return Request(request.prompt, request.count, 9)


def test_a_network_that_answers_nan_is_named_with_prompt_and_step(tiny):
    policy = make(tiny("sd3"))
    calls: list[int] = []

    def spoil(module: Any, args: Any, output: Any) -> Any:
        calls.append(1)
        return (output[0].index_fill(0, torch.tensor([13]), torch.nan),) if len(calls) == 3 else output

    policy.net.transformer.register_forward_hook(spoil)
    with pytest.raises(ValueError, match=r"prompt 'dogs' is not finite at step 3 of 4, as for 1 of 8 latents"):
        policy.rollout(requests(), PLANS["flow_grpo"])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (Request(Prompt("p", "x"), 1, 0, view="masked"), "the view 'masked'"),
        (Request(Prompt("p", "x"), 1, 0, role="injected"), "gives a picture of the data, which has no noisy steps"),
        (Request(Prompt("p", "x", ("cat.png",)), 1, 0), "holds 1 picture, but this model draws from text alone"),
        (Request(Prompt("p", "x"), 1, 0, model="ema"), "asks for the weights 'ema'; this policy keeps policy"),
    ],
)
def test_requests_nobody_can_serve_are_refused(tiny, asked, message):
    with pytest.raises(ValueError, match=message):
        make(tiny("sd3")).rollout([asked], evaluation_plan(2))


def test_a_process_without_requests_has_no_rows(tiny):
    policy = make(tiny("sd3"))
    nothing = policy.rollout([], PLANS["tree"])
    assert (len(nothing), nothing.groups, nothing.action_mask.shape) == (0, (), (0, 4))
    some = policy.rollout(requests(), PLANS["tree"])
    assert len(policy.join([nothing.trace, some.trace])) == 8


def test_two_prompts_in_a_group_are_refused(tiny):
    cat, dogs, _ = prompts()
    with pytest.raises(ValueError, match="group 4 holds prompts 'cat' and 'dogs'"):
        make(tiny("sd3")).rollout([Request(cat, 1, 4), Request(dogs, 1, 4)], evaluation_plan(2))


def test_without_a_plan_the_remedy_is_named(tiny):
    with pytest.raises(ValueError, match=r"set algorithm\.schedule"):
        make(tiny("sd3")).rollout(requests())


def test_groups_that_do_not_fill_trees_are_refused(tiny):
    with pytest.raises(ValueError, match="multiple of 4 samples"):
        make(tiny("sd3")).rollout(requests(count=3), PLANS["tree"])


def test_missing_folders_are_named(tiny, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"policy\.lora\.adapter"):
        make(tiny("sd3"), lora=LoraSettings(adapter=str(Path(tmp_path) / "none")))
    with pytest.raises(ValueError, match="keeps the shadows"):
        make(tiny("sd3"), ["old"])


@pytest.mark.parametrize("family", FAMILIES)
def test_ways_to_save_memory_draw_the_same_images(tiny, family):
    saving = make(tiny(family), vae_slicing=True, vae_tiling=True, decode_rows=1, gradient_checkpointing=True)
    assert saving.pipeline.vae.use_slicing
    assert saving.pipeline.vae.use_tiling
    expected = make(tiny(family)).rollout(requests(count=1), evaluation_plan(2))
    found = saving.rollout(requests(count=1), evaluation_plan(2))
    for (_, a), (_, b) in zip(expected.samples(), found.samples(), strict=True):
        assert np.abs(np.asarray(a.image, dtype=int) - np.asarray(b.image, dtype=int)).max() <= 1


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_is_near_and_keeps_latents_in_float32(tiny, family):
    plan = PLANS["flow_grpo"]
    policy = make(tiny(family), dtype="bfloat16")
    rollouts = policy.rollout(requests(), plan)
    assert rollouts.recorded[ROLLOUT_LOGPROBS].dtype == torch.float32
    assert all(weight.dtype == torch.float32 for weight in policy.parameters())
    exact = latents(make(tiny(family)), requests(), plan)
    drawn = latents(policy, requests(), plan)
    assert drawn.dtype == torch.float32
    assert 0 < float((drawn - exact).abs().mean()) < 0.2


def test_a_scouts_seed_is_drawn_again_alone(tiny):
    policy = make(tiny("sd3"))
    plan, asked = Forward(num_steps=4, times=TimeSampler(count=3)).at(0), requests(5, 1)
    whole, few = policy.rollout(asked, plan), policy.rollout([replace(asked[0], tempering=Tempering(num_steps=4))], plan)
    chosen = replace(asked[0], count=2, tempering=Tempering(samples=(3, 1)))
    again = policy.rollout([chosen], plan)
    scouts = policy.rollout([replace(asked[0], tempering=Tempering(num_steps=2))], plan)
    first, same, redrawn, rough = (
        np.stack([np.asarray(one.image, float) for one in rollouts.groups[0].samples]) for rollouts in (whole, few, again, scouts)
    )
    assert abs(same - first).max() <= 2 and abs(redrawn - first[[3, 1]]).max() <= 2
    assert abs(redrawn - first[[0, 1]]).max() > 10 and abs(rough - first).max() > 2
    with pytest.raises(ValueError, match=r"requests of one rollout ask for \{.*\} steps"):
        policy.rollout([*asked, replace(asked[0], group_id=1, tempering=Tempering(num_steps=2))], plan)


def test_previews_are_what_the_next_steps_velocity_points_at(tiny):
    policy = make(tiny("sd3"))
    rollouts = policy.rollout(requests(2), Full(num_steps=4, previews=True).at(0))
    trace, rows = rollouts.trace, torch.arange(4)
    assert isinstance(trace, FlowTrace) and all(len(sample.previews) == 3 for _, sample in rollouts.samples())
    v = policy.read(trace, [VELOCITY], rollouts.action_mask)[VELOCITY].detach()
    for column in (1, 2):
        ahead = data_of(trace.latents[trace.before[rows, column]], v[:, column], trace.sigma[rows, column])
        for (_, sample), wanted in zip(rollouts.samples(), policy.decode(policy.family.finish(ahead, 0.0)), strict=True):
            shown = [np.asarray(one, np.int64) for one in (sample.previews[column - 1], wanted)]
            assert np.abs(shown[0] - shown[1]).max() <= 1
