"""Sampling: as the pipeline's own, alone as in company, in another process as here; and clear about what cannot be sampled."""

import logging
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from mmrl.app.config.run import load
from mmrl.app.run.build import Job, build
from mmrl.core.readings import ROLLOUT_LOGPROBS, VELOCITY
from mmrl.core.types import Prompt, Request, Tempering
from mmrl.flow.dynamics import DPM2, ODE
from mmrl.flow.path import data_of
from mmrl.flow.plan import RolloutPlan, StepPlan, evaluation_plan
from mmrl.flow.schedules import Forward, Full
from mmrl.flow.times import TimeSampler
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.trace import SigmaTable
from mmrl.policies.flow.write.generate import RemoteGenerator, chunks_of
from mmrl.policies.shared.lora import LoraSettings
from mmrl.runtime.blame import UnavailableError
from mmrl.runtime.workers import WorkerProcess
from tests.support.flow_policies import FAMILIES, LORA, PLANS, latents, make, prompts, requests, stir, trace_of
from tests.support.refused import refused
from tests.support.trainers import assert_resumes_ahead

X, (CAT, DOGS, _) = Prompt("p", "x"), prompts()


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


@pytest.mark.parametrize("family", FAMILIES)
def test_the_prompt_changes_the_picture(tiny, family):
    same_noise = [Request(prompt, 1, i, seed=3) for i, prompt in enumerate(prompts())]
    cat, *others = latents(make(tiny(family)), same_noise, evaluation_plan(4))
    assert all((cat - other).abs().max() > 0.05 for other in others)


def test_cutting_forwards_changes_nothing(tiny):
    whole, cut, filled = (make(tiny("qwen_image"), forward_rows=rows, equal_forwards=rows == 5) for rows in (16, 3, 5))
    plan = PLANS["flow_grpo"]
    for other in (cut, filled):
        torch.testing.assert_close(*(latents(one, requests(), plan) for one in (other, whole)), atol=1e-5, rtol=1e-5)


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
    stir(policy, 0.3)
    asked = [Request(CAT, 2, 0, seed=1), Request(CAT, 1, 0, seed=1, model="ema"), Request(DOGS, 1, 1, seed=2)]
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
    monkeypatch.setattr(type(policy.family), "encode", lambda self, text, on: (seen.append(text), encode(self, text, on))[1])
    for _ in range(2):
        policy.rollout(requests(count=2), PLANS["flow_grpo"])
    assert seen == ["a red cat", "two large dogs", ""]
    policy.rollout([Request(Prompt("x", "hi"), 1, 0)], evaluation_plan(2))
    policy.rollout(requests(count=1, num_prompts=1), evaluation_plan(2))
    assert seen[3:] == ["hi", "a red cat"]


@pytest.mark.parametrize(("family", "limit"), [("sd3", 32), ("flux", 24), ("qwen_image", 40)])
def test_a_prompt_that_is_cut_is_said_to_be(tiny, family, limit, caplog):
    policy = make(tiny(family))
    long = Request(Prompt("long", "a very " + "very " * 20 + "red cat"), 1, 9)
    with caplog.at_level(logging.WARNING, "mmrl"):
        for asked in ([*requests(count=1), long], [long]):
            policy.rollout(asked, evaluation_plan(2))
    (said,) = [record.getMessage() for record in caplog.records if record.name == "mmrl"]
    assert "1 of 3 different prompts" in said and f"{limit} are seen" in said


def test_a_network_that_answers_nan_is_named_with_prompt_and_the_first_such_step(tiny):
    policy = make(tiny("sd3"))
    calls: list[int] = []

    def spoil(module: Any, args: Any, output: Any) -> Any:
        calls.append(1)
        # rows 5 and 6 of eight with their prompt, behind as many without
        return (output[0].index_fill(0, torch.tensor([13, 14]), torch.nan),) if len(calls) in (2, 3) else output

    policy.net.transformer.register_forward_hook(spoil)
    refused(r"prompt 'dogs' is not finite at step 2 of 4, as for 2 of 8 latents", policy.rollout, requests(), PLANS["flow_grpo"])


@pytest.mark.parametrize(
    ("asked", "plan", "message"),
    [
        ([Request(X, 1, 0, view="masked")], evaluation_plan(2), "the view 'masked'"),
        ([Request(X, 1, 0, role="injected")], evaluation_plan(2), "gives a picture of the data, which has no noisy steps"),
        ([Request(Prompt("p", "x", ("cat.png",)), 1, 0)], evaluation_plan(2), "1 picture, but this model draws from text alone"),
        ([Request(X, 1, 0, model="ema")], evaluation_plan(2), "asks for the weights 'ema'; this policy keeps policy"),
        ([Request(CAT, 1, 4), Request(DOGS, 1, 4)], evaluation_plan(2), "group 4 holds prompts 'cat' and 'dogs'"),
        (requests(), None, r"set algorithm\.schedule"),
        (requests(count=3), PLANS["tree"], "multiple of 4 samples"),
    ],
)
def test_requests_nobody_can_serve_are_refused(tiny, asked, plan, message):
    refused(message, make(tiny("sd3")).rollout, asked, plan)


def test_a_process_without_requests_has_no_rows(tiny):
    policy = make(tiny("sd3"))
    nothing = policy.rollout([], PLANS["tree"])
    assert (len(nothing), nothing.groups, nothing.action_mask.shape) == (0, (), (0, 4))
    some = policy.rollout(requests(), PLANS["tree"])
    assert len(policy.join([nothing.trace, some.trace])) == 8


def test_missing_folders_are_named(tiny, tmp_path):
    nowhere = LoraSettings(adapter=str(tmp_path / "none"))
    refused(r"policy\.lora\.adapter", make, tiny("sd3"), error=FileNotFoundError, lora=nowhere)
    refused("keeps the shadows", make, tiny("sd3"), ["old"])


@pytest.mark.parametrize("family", FAMILIES)
def test_ways_to_save_memory_draw_the_same_images(tiny, family):
    saving = make(tiny(family), vae_slicing=True, vae_tiling=True, decode_rows=1, gradient_checkpointing=True)
    assert saving.pipeline.vae.use_slicing and saving.pipeline.vae.use_tiling
    expected, found = (one.rollout(requests(count=1), evaluation_plan(2)) for one in (make(tiny(family)), saving))
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
    trace, rows = trace_of(rollouts), torch.arange(4)
    assert all(len(sample.previews) == 3 for _, sample in rollouts.samples())
    v = policy.read(trace, [VELOCITY], rollouts.action_mask)[VELOCITY].detach()
    for column in (1, 2):
        ahead = data_of(trace.latents[trace.before[rows, column]], v[:, column], trace.sigma[rows, column])
        for (_, sample), wanted in zip(rollouts.samples(), policy.decode(policy.family.finish(ahead, 0.0)), strict=True):
            shown = [np.asarray(one, np.int64) for one in (sample.previews[column - 1], wanted)]
            assert np.abs(shown[0] - shown[1]).max() <= 1


@pytest.mark.parametrize("lora", [LORA, None])
@pytest.mark.parametrize("solver", [ODE(), DPM2()])
def test_the_base_may_finish_what_trained_weights_began(tiny, lora, solver):
    """From the first step on it is the base, from behind the last one it is not there."""
    policy = make(tiny("sd3"), ["ref"], lora=lora)
    steps, asked = (StepPlan(solver),) * 4, requests(count=1)
    tuned, base = (latents(policy, [replace(one, model=m) for one in asked], RolloutPlan(steps)) for m in ("policy", "ref"))
    mixed = [latents(policy, asked, RolloutPlan(steps, base_from=first)) for first in (0, 2, 4)]
    assert torch.equal(mixed[0], base) and torch.equal(mixed[2], tuned)
    assert min(float((mixed[1] - end).abs().max()) for end in (tuned, base)) > 1e-4
    assert torch.equal(latents(policy, asked, RolloutPlan(steps)), tuned), "the trained weights are back"
    refused(r'base_from .*shadows = \["ref"\]', make(tiny("sd3")).rollout, asked, RolloutPlan(steps, base_from=2))


TINY = ["steps=3", "prompts_per_step=2", "evaluation.num_prompts=0", "policy.forward_rows=4", "policy.lora.rank=2"]


def generator_of(job: Job) -> RemoteGenerator:
    assert isinstance(job.policy, FlowPolicy) and isinstance(job.policy.generator, RemoteGenerator)
    return job.policy.generator


@pytest.fixture(scope="module")
def job() -> Iterator[Job]:
    made = build(load("tiny/flow", [*TINY, "ahead=1", "cluster.samplers=1"]))
    yield made
    made.trainer.producer.close()
    generator_of(made).close()


def test_steps_beside_training_equal_those_after_a_kill_and_a_resume(job: Job):
    def kill() -> None:
        crew = generator_of(job).crew
        assert crew is not None
        (sampler,) = crew.workers
        assert isinstance(sampler, WorkerProcess) and sampler.pid is not None
        os.kill(sampler.pid, signal.SIGKILL)

    assert_resumes_ahead(job, kill)


def test_another_process_draws_the_same_bits(job: Job):
    policy, generator = job.policy, generator_of(job)
    assert isinstance(policy, FlowPolicy)
    job.trainer.producer.close()
    stir(policy)
    _, hold, _ = policy.publish()
    hold()
    plan = PLANS["flow_grpo"]
    parts = [(requests(4, 3), SigmaTable(plan, (16, 16), policy.sigmas(plan)))]
    there = generator.write(parts)
    with torch.no_grad():
        here = generator.local.write([(chunk, parts[0][1]) for chunk in chunks_of(parts[0][0], 4)])
    assert [one.keys for one in there] == [one.keys for one in here] and len(there) == 3
    for other, own in zip(there, here, strict=True):
        assert torch.equal(other.trajectory.logprobs, own.trajectory.logprobs)
        assert [image.tobytes() for image in other.images] == [image.tobytes() for image in own.images]  # pyright: ignore
        assert other.weights_version == policy.weights.num_updates
    held, generator.version = generator.version, generator.version + 1
    refused(rf"version {held + 1}, and the memory .* holds {held} to {held}", generator.write, parts, error=UnavailableError)


def test_chunks_are_whole_requests_whatever_the_number_of_processes():
    asked = [Request(Prompt(str(i), "a dog"), count, i) for i, count in enumerate((2, 2, 3, 6, 1))]
    assert [[one.count for one in chunk] for chunk in chunks_of(asked, 4)] == [[2, 2], [3], [6], [1]]
