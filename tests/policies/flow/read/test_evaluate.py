"""Reading again what was sampled: exact, independent of how it is cut into parts, and at the price the plan names."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from mmrl.core.readings import (
    DT,
    ENTROPY,
    LOGPROBS,
    MEAN,
    ORIGIN,
    REF_LOGPROBS,
    ROLLOUT_LOGPROBS,
    SAMPLED_MEAN,
    SIGMA,
    STD,
    TARGET_VELOCITY,
    VELOCITY,
)
from mmrl.core.types import Batch, Reading, Scope
from mmrl.flow.dynamics import FlowSDE
from mmrl.flow.layout import generator_of
from mmrl.flow.plan import RolloutPlan, StepPlan, evaluation_plan
from mmrl.flow.schedules import Forward, Full
from mmrl.flow.times import TimeSampler
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.read.packing import cut_actions, cut_rows
from tests.support.fakes import Steps
from tests.support.flow_costs import forwards
from tests.support.flow_policies import (
    FAMILIES,
    PLANS,
    batch_of,
    counted,
    gradients,
    latents,
    logprobs,
    make,
    relative_difference,
    requests,
    trace_of,
)
from tests.support.refused import refused
from tests.support.rows import make_batch

NFT = Forward(num_steps=4, times=TimeSampler("rollout", count=3)).at(0)


def in_turn(family: str, plan: str) -> bool:
    """Is the family the one of this plan?"""
    return plan == "flow_grpo" or FAMILIES[[*PLANS].index(plan) % len(FAMILIES)] == family


@pytest.mark.parametrize(
    ("family", "plan", "guidance"),
    [
        pytest.param(family, plan, guidance, marks=() if in_turn(family, plan) else pytest.mark.evidence)
        for family in FAMILIES
        for plan, guidance in [*((plan, 2.0) for plan in PLANS), ("flow_grpo", 1.0)]
    ],
)
def test_ratios_are_one_before_the_first_update(tiny, family, plan, guidance):
    policy = make(tiny(family), guidance=guidance)
    rollouts = policy.rollout(requests(), PLANS[plan])
    again = logprobs(policy, rollouts)
    policy.audit(rollouts)
    ratio = (again - rollouts.recorded[ROLLOUT_LOGPROBS]).exp()[rollouts.action_mask]
    assert again.requires_grad and len(ratio) >= 8
    assert (ratio - 1).abs().max() < 1e-6
    assert not again[~rollouts.action_mask].any()


@pytest.mark.parametrize("family", FAMILIES)
def test_equal_forwards_make_ratios_one_in_bfloat16(tiny, family):
    """Exactly so on this machine's CPU; a tenth of the narrowest clip range (1e-5 of Flow-GRPO-Fast) is what is needed."""
    policy = make(tiny(family), dtype="bfloat16", forward_rows=5, equal_forwards=True)
    for plan in ("flow_grpo", "cps", "tree", "flash"):
        rollouts = policy.rollout(requests(num_prompts=3), PLANS[plan])
        for rows in (torch.arange(12), torch.tensor([7, 0, 9])):
            part = rollouts.take(rows)
            again = logprobs(policy, part)
            assert again.requires_grad
            ratio = (again - part.recorded[ROLLOUT_LOGPROBS]).exp()[part.action_mask]
            assert not len(ratio) or (ratio - 1).abs().max() < 1e-6


def slow_velocity(policy: FlowPolicy, text: str, x: Tensor, timestep: float, guidance: float) -> Tensor:
    """The velocity of one latent, through the pipeline's own parts; two forwards where the pipeline takes two."""
    pipeline, name = policy.pipeline, type(policy.pipeline).__name__
    transformer, tokens = pipeline.transformer, policy.family.prompt_tokens
    time = torch.tensor([timestep])

    def one(prompt: str) -> Tensor:
        if name.startswith("Stable"):
            embeds, _, pooled, _ = pipeline.encode_prompt(
                prompt, None, None, do_classifier_free_guidance=False, max_sequence_length=tokens
            )
            return transformer(x[None], encoder_hidden_states=embeds, pooled_projections=pooled, timestep=time).sample[0]
        if name.startswith("Flux"):
            embeds, pooled, text_ids = pipeline.encode_prompt(prompt, max_sequence_length=tokens)
            image_ids = pipeline._prepare_latent_image_ids(1, 4, 4, "cpu", torch.float32)
            return transformer(
                x[None],
                encoder_hidden_states=embeds,
                pooled_projections=pooled,
                timestep=time / 1000,
                img_ids=image_ids,
                txt_ids=text_ids,
                guidance=torch.tensor([guidance]),
            ).sample[0]
        embeds, mask = pipeline.encode_prompt(prompt, max_sequence_length=tokens)
        return transformer(
            x[None], encoder_hidden_states=embeds, encoder_hidden_states_mask=mask, timestep=time / 1000, img_shapes=[[(1, 2, 2)]]
        ).sample[0]

    conditional = one(text)
    if guidance == 1 or name.startswith("Flux"):
        return conditional
    unconditional = one("" if name.startswith("Stable") else " ")
    v = unconditional + guidance * (conditional - unconditional)
    if name.startswith("Qwen"):
        v = v * conditional.norm(dim=-1, keepdim=True) / v.norm(dim=-1, keepdim=True)
    return v


@pytest.mark.parametrize("guidance", [1.0, 2.0])
@pytest.mark.parametrize("family", FAMILIES)
def test_log_probabilities_are_those_of_a_slow_loop(tiny, family, guidance):
    """Flow-SDE in the paper's letters, row by row, from the initial noise on."""
    policy = make(tiny(family), guidance=guidance)
    rollouts = policy.rollout(requests(count=2), PLANS["flow_grpo"])
    trace, eta = trace_of(rollouts), 0.7
    sigmas = trace.sigma_tables[0].sigmas.tolist()
    found = policy.read(trace, [LOGPROBS, MEAN, SAMPLED_MEAN], rollouts.action_mask)
    for row, (group, _) in enumerate(rollouts.samples()):
        seed = 7 + group.id
        noise = torch.randn(policy.family.latent_shape, generator=generator_of(seed, row % 2, 0))
        x = policy.family.pack(noise[None])[0]
        for i in range(3):
            sigma, after = sigmas[i], sigmas[i + 1]
            with torch.no_grad():
                v = slow_velocity(policy, group.prompt.text, x, sigma * 1000, guidance)
            s = eta * math.sqrt(sigma / (1 - (sigmas[1] if sigma == 1 else sigma)))
            dt = after - sigma
            mean = x * (1 + s * s / (2 * sigma) * dt) + v * (1 + s * s * (1 - sigma) / (2 * sigma)) * dt
            std = s * math.sqrt(-dt)
            drawn = torch.randn(policy.family.latent_shape, generator=generator_of(seed, row % 2, i + 1))
            x_next = mean + std * policy.family.pack(drawn[None])[0]
            logprob = (-((x_next - mean) ** 2) / (2 * std**2) - math.log(std) - math.log(math.sqrt(2 * math.pi))).mean()
            for name in (MEAN, SAMPLED_MEAN):
                torch.testing.assert_close(found[name][row, i], mean, atol=1e-4, rtol=1e-4)
            torch.testing.assert_close(found[LOGPROBS][row, i], logprob, atol=1e-5, rtol=0)
            x = x_next


def test_what_the_schedule_says_holds_for_every_action(tiny):
    policy = make(tiny("sd3"))
    rollouts = policy.rollout(requests(), PLANS["dance"])
    found = policy.read(rollouts.trace, [STD, DT, SIGMA], rollouts.action_mask)
    # shift 3 over 1, .7507, .5013, .252 (the last already shifted once: 3 (1/1000) / (1 + 2/1000) = .002994)
    u = [1, 1 - 0.997006 / 3, 1 - 2 * 0.997006 / 3, 0.002994, 0]
    sigma = [3 * x / (1 + 2 * x) for x in u]
    dt = [a - b for a, b in pairwise(sigma)]
    torch.testing.assert_close(found[SIGMA], torch.tensor(sigma[:-1]).repeat(8, 1), atol=1e-5, rtol=0)
    torch.testing.assert_close(found[DT], torch.tensor(dt).repeat(8, 1), atol=1e-5, rtol=0)
    std = torch.tensor([0.3 * math.sqrt(dt[i]) for i in range(3)] + [0.0])
    torch.testing.assert_close(found[STD], std.repeat(8, 1), atol=1e-5, rtol=0)
    assert rollouts.action_mask.sum(1).tolist() == [2] * 8
    assert trace_of(rollouts).timesteps[0].tolist() == [math.floor(1000 * s) for s in sigma[:-1]]


@pytest.mark.parametrize("plan", ["flow_grpo", "flash", "tree", "branches", "mix"])
@pytest.mark.parametrize("guidance", [1.0, 2.0])
def test_forwards_are_as_many_as_the_plan_says(tiny, plan, guidance):
    policy = make(tiny("sd3"), ["ref"], guidance=guidance)
    expected = forwards(PLANS[plan], 4, guided=guidance > 1, frozen_models=1)
    with counted(policy) as seen:
        rollouts = policy.rollout(requests(num_prompts=1), PLANS[plan])
    assert sum(seen) == expected.rollout
    with counted(policy) as seen:
        for part in policy.split(batch_of(rollouts), 3, "action"):
            logprobs(policy, part.rollouts)
    assert sum(seen) == expected.update
    with counted(policy) as seen:
        policy.read(rollouts.trace, [LOGPROBS._replace(model="ref"), MEAN._replace(model="ref"), STD], rollouts.action_mask)
    assert sum(seen) == expected.frozen


@pytest.mark.parametrize(
    ("plan", "scope", "micro_batch"),
    [
        pytest.param(plan, scope, count, marks=() if plan == "flow_grpo" or count == 3 else pytest.mark.evidence)
        for plan, scope in [("flow_grpo", "action"), ("tree", "action"), ("dance", "rollout"), ("branches", "group")]
        for count in (1, 3, 8, 1000)
    ],
)
def test_the_gradient_does_not_depend_on_the_cut(tiny, plan, scope, micro_batch):
    policy = make(tiny("sd3"))
    batch = batch_of(policy.rollout(requests(), PLANS[plan]))
    expected = gradients(policy, [batch])
    parts = list(policy.split(batch, micro_batch, scope))
    assert sum(int(part.rollouts.action_mask.sum()) for part in parts) == int(batch.rollouts.action_mask.sum())
    torch.testing.assert_close(sum(float(part.share.sum()) for part in parts), float(batch.share.sum()))
    if scope == "action":
        assert max(int(part.rollouts.action_mask.sum()) for part in parts) <= min(micro_batch, 16)
    if scope == "rollout":
        assert all(bool((part.rollouts.action_mask.sum(1) == 2).all()) for part in parts)
    if scope == "group":
        assert {len(part) for part in parts} <= {4, 8}
    assert relative_difference(gradients(policy, parts), expected) < 1e-4


def test_without_a_gradient_rows_stay_whole(tiny):
    policy = make(tiny("sd3"), forward_rows=2)
    batch = batch_of(policy.rollout(requests(), PLANS["flow_grpo"]))
    with torch.no_grad(), counted(policy) as seen:
        parts = list(policy.split(batch, 7, "action"))
        found = torch.cat([logprobs(policy, part.rollouts) for part in parts])
    assert [len(part) for part in parts] == [2, 2, 2, 2]
    assert max(seen) == 4
    torch.testing.assert_close(found, batch.rollouts.recorded[ROLLOUT_LOGPROBS], atol=1e-6, rtol=0)
    assert not found.requires_grad


def test_a_part_that_trains_nothing_has_a_gradient_of_zero(tiny):
    policy = make(tiny("sd3"))
    batch = batch_of(policy.rollout(requests(), PLANS["flow_grpo"]))
    idle = replace(batch, rollouts=replace(batch.rollouts, action_mask=torch.zeros_like(batch.rollouts.action_mask)))
    (part,) = policy.split(idle, 2, "action")
    found = gradients(policy, [part])
    assert len(found) == len(policy.parameters())
    assert not any(bool(grad.any()) for grad in found)


@pytest.mark.parametrize("family", FAMILIES)
def test_checkpointing_gives_the_same_gradient(tiny, family):
    plain, saving = make(tiny(family)), make(tiny(family), gradient_checkpointing=True)
    parts = [batch_of(policy.rollout(requests(count=1), PLANS["flow_grpo"])) for policy in (plain, saving)]
    assert relative_difference(gradients(saving, parts[1:]), gradients(plain, parts[:1])) < 1e-5


def test_gradients_flow_through_both_passes_of_guidance(tiny):
    policy = make(tiny("sd3"))
    rollouts = policy.rollout(requests(count=1, num_prompts=1), PLANS["flow_grpo"])
    trace = trace_of(rollouts)
    found = policy.read(trace, [VELOCITY], rollouts.action_mask)[VELOCITY][0, 0]
    slow = slow_velocity(policy, "a red cat", trace.latents[trace.before[0, 0]], 1000.0, 2.0)
    grads = [torch.autograd.grad(v.sum(), policy.parameters(), allow_unused=True) for v in (found, slow)]
    ours, theirs = ([grad for grad in side if grad is not None] for side in grads)
    assert relative_difference(ours, theirs) < 1e-4


def test_rows_may_be_taken_and_joined(tiny):
    policy = make(tiny("sd3"))
    first = policy.rollout(requests(), PLANS["flow_grpo"])
    other = policy.rollout(requests(seed=70), PLANS["mix"])
    trace = policy.join([first.trace, other.trace])
    mask = torch.cat([torch.nn.functional.pad(first.action_mask, (0, 1)), other.action_mask])
    expected = torch.cat([torch.nn.functional.pad(first.recorded[ROLLOUT_LOGPROBS], (0, 1)), other.recorded[ROLLOUT_LOGPROBS]])
    rows, steps = torch.tensor([9, 2, 15]), slice(1, 3)
    found = policy.read(trace.take(rows, steps), [LOGPROBS, STD], mask[rows][:, steps])
    torch.testing.assert_close(found[LOGPROBS], expected[rows][:, steps], atol=1e-6, rtol=0)
    whole = policy.read(trace, [STD], mask)[STD]
    assert not whole[0, 4]
    torch.testing.assert_close(found[STD], whole[rows][:, steps])


def test_only_what_trains_is_kept(tiny):
    policy = make(tiny("sd3"))
    # of 8 rows: columns 1, 2 and 3 of the states (the first shared by each group), and 2 x 8 means
    assert len(trace_of(policy.rollout(requests(), PLANS["mix"])).latents) == 2 + 8 + 8 + 16
    assert len(trace_of(policy.rollout(requests(), evaluation_plan(3))).latents) == 0


@pytest.mark.parametrize("family", FAMILIES)
def test_noised_copies_of_finished_samples(tiny, family):
    policy = make(tiny(family), ["ema"])
    asked = requests(count=2)
    rollouts = policy.rollout(asked, NFT)
    trace, data = trace_of(rollouts), latents(policy, asked, NFT)
    assert rollouts.action_mask.shape == (4, 3) and bool(rollouts.action_mask.all())
    assert ROLLOUT_LOGPROBS not in rollouts.recorded
    found = policy.read(trace, [VELOCITY, TARGET_VELOCITY, SIGMA], rollouts.action_mask)
    table = trace.sigma_tables[0].sigmas[:-1].tolist()
    for row, (group, _) in enumerate(rollouts.samples()):
        assert len(set(found[SIGMA][row].tolist())) == 3
        for k in range(3):
            t, target = float(found[SIGMA][row, k]), found[TARGET_VELOCITY][row, k]
            assert t in table
            assert abs(float((target + data[row]).std()) - 1) < 0.25
            with torch.no_grad():
                v = slow_velocity(policy, group.prompt.text, data[row] + t * target, t * 1000, 2.0)
            torch.testing.assert_close(found[VELOCITY][row, k], v, atol=2e-4, rtol=1e-3)
    reading = VELOCITY._replace(model="ema")
    ema = policy.read(trace, [reading], rollouts.action_mask)[reading]
    with torch.no_grad():  # the weights that the policy was made with: `stir` moved the live ones afterwards
        for weight, old in zip(policy.parameters(), policy.weights.shadows["ema"].weights, strict=True):
            weight.copy_(old)
        before = policy.read(trace, [VELOCITY], rollouts.action_mask)[VELOCITY]
    torch.testing.assert_close(ema, before, atol=1e-6, rtol=0)


def test_a_reading_may_have_a_guidance_of_its_own(tiny):
    plain, guided = (make(tiny("sd3"), ["ref"], guidance=scale) for scale in (1.0, 2.5))
    rollouts = plain.rollout(requests(count=2), NFT)
    for model in ("policy", "ref"):
        reading = VELOCITY._replace(model=model)
        asked = reading._replace(guidance=2.5)
        found = plain.read(rollouts.trace, [asked, reading], rollouts.action_mask)
        own = guided.read(rollouts.trace, [reading], rollouts.action_mask)[reading]
        torch.testing.assert_close(found[asked], own, atol=1e-6, rtol=0)
        assert (found[asked] - found[reading]).abs().max() > 1e-3


def test_samples_of_a_prompt_can_be_noised_alike(tiny):
    policy = make(tiny("sd3"))
    found: dict[bool, tuple[Tensor, Tensor, Tensor]] = {}
    for shared in (False, True):
        plan = Forward(num_steps=4, times=TimeSampler("rollout", count=3, shared=shared)).at(0)
        rollouts = policy.rollout(requests(count=2), plan)
        values = policy.read(rollouts.trace, [TARGET_VELOCITY, SIGMA], rollouts.action_mask)
        trace = trace_of(rollouts)
        found[shared] = trace.latents[trace.after], values[SIGMA], values[TARGET_VELOCITY]
    noise, sigma, target = found[True]
    assert torch.equal(noise[0], noise[1]) and torch.equal(sigma[0], sigma[1])
    assert not torch.equal(target[0], target[1]), "the samples themselves differ"
    assert not torch.equal(noise[0], noise[2]), "and so does the noise of another prompt"
    # the first sample of a prompt is noised as without sharing
    assert torch.equal(noise[0], found[False][0][0]) and not torch.equal(found[False][0][0], found[False][0][1])


def test_noise_and_times_of_copies_belong_to_the_sample(tiny):
    policy = make(tiny("sd3"))
    both = policy.rollout(requests(count=3), NFT)
    alone = policy.rollout(requests(count=1)[1:], NFT)
    for reading in (TARGET_VELOCITY, SIGMA):
        a = policy.read(both.trace, [reading], both.action_mask)[reading]
        b = policy.read(alone.trace, [reading], alone.action_mask)[reading]
        torch.testing.assert_close(a[3:4], b, atol=1e-5, rtol=1e-5)
        assert (a[0] - a[1]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("plan", "reading", "message"),
    [
        (evaluation_plan(3), LOGPROBS, "no noisy step that trains"),
        (RolloutPlan((StepPlan(FlowSDE(0.7)), StepPlan())), MEAN, "no noisy step that trains"),
        (NFT, LOGPROBS, "objective on velocities"),
        (PLANS["flow_grpo"], TARGET_VELOCITY, "use the schedule Forward"),
        (PLANS["flow_grpo"], ENTROPY, "quantity 'entropy' cannot be read from this flow policy"),
        (PLANS["flow_grpo"], Reading("mean", "ema"), "model 'ema' cannot be read from this flow policy"),
        (PLANS["flow_grpo"], Reading("velocity", "old"), "model 'old' cannot be read from this flow policy"),
        (PLANS["flow_grpo"], REF_LOGPROBS, "model 'ref' cannot be read from this flow policy"),
        (PLANS["flow_grpo"], LOGPROBS._replace(view="masked"), "view 'masked' cannot be read from this flow policy"),
    ],
)
def test_readings_that_mean_nothing_are_refused(tiny, plan, reading, message):
    policy = make(tiny("sd3"))
    rollouts = policy.rollout(requests(), plan)
    refused(message, policy.read, rollouts.trace, [reading], rollouts.action_mask)


def test_branches_of_one_trunk_and_step_have_one_origin(tiny):
    rollouts = make(tiny("sd3")).rollout(requests(count=8), PLANS["branches"])  # 2 trunks of 2 branches at steps 0 and 2
    policy = make(tiny("sd3"))
    trace = policy.join([rollouts.trace, rollouts.trace])
    mask = rollouts.action_mask.repeat(2, 1)
    origin = policy.read(trace, [ORIGIN], mask)[ORIGIN][mask]
    siblings = torch.arange(len(origin)) // 2
    assert ((origin[:, None] == origin) == (siblings[:, None] == siblings)).all()


def test_join_refuses_copies_beside_steps(tiny):
    policy = make(tiny("sd3"))
    traces = [policy.rollout(requests(), plan).trace for plan in (NFT, Full(num_steps=4).at(0))]
    refused("cannot train together", policy.join, traces)


MASK = torch.tensor([[1, 1, 0, 1], [0, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1], [0, 0, 1, 0]])
IDS = [4, 9, 4, 9, 7]


def numbered() -> Batch:
    """Every action carries its own number, from 0 to 19, in trace and advantages."""
    numbers = torch.arange(20.0).view(5, 4)
    rollouts = replace(make_batch(MASK, numbers, {}, IDS).rollouts, trace=Steps({"x": numbers}))
    return Batch(rollouts, numbers, torch.ones(5, 4), torch.ones(5, 4))


def trained(part: Batch) -> list[float]:
    """The numbers of the actions that train, the same in advantages and trace."""
    trace = part.rollouts.trace
    assert isinstance(trace, Steps) and torch.equal(trace.tensors["x"], part.advantages)
    return part.advantages[part.rollouts.action_mask].tolist()


ALL = [0.0, 1.0, 3.0, 5.0, 6.0, 12.0, 13.0, 14.0, 15.0, 18.0]


@pytest.mark.parametrize(("most", "sizes"), [(4, [4, 4, 2]), (9, [9, 1]), (10, [10]), (1, [1] * 10)])
def test_actions_are_cut_row_after_row(most: int, sizes: list[int]):
    parts = list(cut_actions(numbered(), most))
    assert [len(trained(part)) for part in parts] == sizes
    assert sorted(number for part in parts for number in trained(part)) == ALL
    assert [float(part.share[part.rollouts.action_mask].sum()) for part in parts] == sizes
    if len(parts) > 1:
        assert all(not part.share[~part.rollouts.action_mask].any() for part in parts), "what trains elsewhere has no share"


def test_a_part_holds_no_steps_before_and_after_its_own():
    first, *_ = cut_actions(numbered(), 2)
    assert trained(first) == [0.0, 1.0] and first.advantages.shape == (1, 2)


@pytest.mark.parametrize(
    ("scope", "budget", "expected"),
    [
        # rows of 3, 2, 0, 4 and 1 actions
        ("action", 5, [[0, 1, 2], [3, 4]]),
        ("action", 3, [[0], [1, 2], [3], [4]]),
        ("rollout", 10, [[0, 1, 2, 3, 4]]),
        ("rollout", 9, [[0, 1, 2, 3], [4]]),
        # groups 4, 7 and 9 of 3, 1 and 6 actions
        ("group", 4, [[0, 2, 4], [1, 3]]),
        ("batch", 1, [[0, 1, 2, 3, 4]]),
    ],
)
def test_rows_and_groups_stay_whole(scope: Scope, budget: int, expected: list[list[int]]):
    parts = list(cut_rows(numbered(), budget, scope))
    assert [[int(first) // 4 for first in part.advantages[:, 0]] for part in parts] == expected


@pytest.mark.parametrize("scope", ["action", "group"])
def test_no_rows_make_one_part(scope: Scope):
    (part,) = cut_rows(numbered().take(torch.arange(0)), 4, scope)
    assert len(part) == 0
