"""Prompts of several sizes in one step: the same numbers as each size by itself, and forwards that hold one size each."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.flow import FlowKL, RatioNorm
from mmrl.algorithms.presets import PRESETS
from mmrl.core.readings import LOGPROBS, MEAN, REF_LOGPROBS, ROLLOUT_LOGPROBS, SAMPLED_MEAN, VELOCITY
from mmrl.core.types import Prompt, Reading, Request, Rollouts, Scope
from mmrl.flow.plan import RolloutPlan, evaluation_plan
from mmrl.flow.schedules import Forward, Full
from mmrl.flow.sigmas import DynamicShift
from mmrl.flow.times import TimeSampler
from mmrl.policies.flow.dry_run import FlowDryRun
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.sizes import Size
from mmrl.training.optim import OptimizerSettings
from tests.policies.flow.test_costs import SMALL
from tests.support.faults import trainer_of
from tests.support.flow_policies import (
    LORA,
    PLANS,
    PROMPT_TOKENS,
    batch_of,
    counted,
    gradients,
    logprobs,
    prompts,
    relative_difference,
    trace_of,
    with_adapters,
)
from tests.support.refused import refused

Tiny = Callable[[str], str]
NFT = Forward(num_steps=4, times=TimeSampler("rollout", count=3)).at(0)
EVERY = {**PLANS, "nft": NFT}
TOKENS = {**PROMPT_TOKENS, "z_image": 64, "flux2": 160, "flux2_klein": 64, "sana": 48, "wan": 24, "wan_5b": 24}
TOKENS |= {"krea2": 40, "chroma": 24, "lumina2": 200, "qwen_image21": 40}
SIZES: list[Size | None] = [None, (32, 16), (16, 32)]
"""Of the three prompts; of the same number of tokens, so that only the size tells their latents apart where these are packed."""
OF_WAN: list[Size | None] = [None, (64, 32), (32, 64)]
LARGER = ("wan", "wan_5b", "qwen_image21")
"""Families whose smallest side is 32 pixels."""
WAYS: list[Any] = [("sd3", plan) for plan in ("flow_grpo", "tree", "branches", "nft")]
WAYS += [("flux", plan) for plan in ("flow_grpo", "mix", "nft")] + [("qwen_image", "flow_grpo")]
WAYS += [(family, "flow_grpo") for family in ("z_image", "flux2", "sana", "sdxl", "wan", "lumina2")]
LIKE_OTHERS = ("sd15", "wan_5b", "krea2", "chroma", "qwen_image21")
"""Their latents are laid out as those of another one's."""
WAYS += [pytest.param(family, "flow_grpo", marks=pytest.mark.evidence) for family in LIKE_OTHERS]


def sized(prompt: Prompt, size: Size | None) -> Prompt:
    return prompt if size is None else replace(prompt, columns={"width": size[0], "height": size[1]})


def drawer(tiny: Tiny, family: str, size: Size | None = None, shadows: Sequence[str] = (), **settings: Any) -> FlowPolicy:
    """A policy with an adapter that does something, which draws this size unless a prompt says otherwise."""
    own = (32, 32) if family in LARGER or family.startswith("wan") else (16, 16)
    width, height = size or own
    given = {"width": width, "height": height, "max_prompt_tokens": TOKENS.get(family), "lora": LORA, "guidance": 2.0}
    given |= {"frames": 5} if family.startswith("wan") else {}
    return with_adapters(tiny(family), shadows, **(given | settings))


def asked(sizes: Sequence[Size | None], count: int = 4) -> list[Request]:
    return [
        Request(sized(prompt, size), count, group_id=i, seed=7 + i)
        for i, (prompt, size) in enumerate(zip(prompts(), sizes, strict=True))
    ]


def rows_of(rollouts: Rollouts, group: int) -> torch.Tensor:
    return (rollouts.group_ids == group).nonzero()[:, 0]


def pixels(rollouts: Rollouts, group: int) -> np.ndarray:
    samples = rollouts.groups[group].samples
    return np.stack([np.asarray(sample.video if sample.image is None else sample.image) for sample in samples]).astype(int)


@pytest.mark.parametrize(("family", "plan"), WAYS)
def test_a_mixed_step_is_the_steps_of_each_size(tiny: Tiny, family: str, plan: str):
    """Pictures, records, readings and gradients of three sizes, against three policies whose settings say the size."""
    sizes = OF_WAN if family in LARGER else SIZES
    policy = drawer(tiny, family)
    rollouts = policy.rollout(asked(sizes), EVERY[plan])
    policy.audit(rollouts)
    mask, is_forward = rollouts.action_mask, EVERY[plan].forward is not None
    together, apart = list[torch.Tensor](), list[torch.Tensor]()
    if not is_forward:
        again = logprobs(policy, rollouts)
        assert (again - rollouts.recorded[ROLLOUT_LOGPROBS]).abs()[mask].max() < 1e-6
        together = gradients(policy, list(policy.split(batch_of(rollouts), 5, "action")))
    for group, size in enumerate(sizes):
        own = drawer(tiny, family, size)
        plain = [replace(one, prompt=replace(one.prompt, columns={})) for one in asked(sizes) if one.group_id == group]
        alone, rows = own.rollout(plain, EVERY[plan]), rows_of(rollouts, group)
        # a step of 256: fewer clips of a larger size are decoded side by side
        assert np.abs(pixels(rollouts, group) - pixels(alone, 0)).max() <= 1
        assert torch.equal(mask[rows], alone.action_mask)
        part, mine = trace_of(rollouts).take(rows), trace_of(alone)
        torch.testing.assert_close(part.sigma, mine.sigma, atol=0, rtol=0)
        where = alone.action_mask.nonzero(as_tuple=True)
        torch.testing.assert_close(part.inputs(*where), mine.inputs(*where), atol=1e-6, rtol=1e-6)
        if is_forward:
            continue
        torch.testing.assert_close(
            rollouts.recorded[ROLLOUT_LOGPROBS][rows], alone.recorded[ROLLOUT_LOGPROBS], atol=1e-6, rtol=1e-6
        )
        batch = replace(batch_of(alone), share=batch_of(rollouts).share[rows])
        found = gradients(own, list(own.split(batch, 5, "action")))
        apart = found if not apart else [a + b for a, b in zip(apart, found, strict=True)]
    assert is_forward or relative_difference(together, apart) < 1e-5


@pytest.mark.parametrize(("family", "sources"), [("kontext", 1), ("qwen_edit", 2), ("flux2", 1)])
def test_sources_have_the_size_of_their_own_picture(tiny: Tiny, family: str, sources: int):
    """The same picture in all prompts, one of them twice at two sizes: embeddings are kept apart."""
    picture = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    sizes: list[Size | None] = [None, (64, 32), (32, 64)] if family == "qwen_edit" else SIZES
    own_size = (32, 32) if family == "qwen_edit" else None
    requests = [replace(one, prompt=replace(one.prompt, text="same words", media=(picture,) * sources)) for one in asked(sizes)]
    settings: dict[str, Any] = {"max_prompt_tokens": {"kontext": 24, "qwen_edit": 200, "flux2": 160}[family]}
    policy = drawer(tiny, family, own_size, **settings)
    rollouts = policy.rollout(requests, PLANS["flow_grpo"])
    policy.audit(rollouts)
    assert len(policy.encoder.known) == 3
    assert (logprobs(policy, rollouts) - rollouts.recorded[ROLLOUT_LOGPROBS]).abs().max() < 1e-6
    for group, size in enumerate(sizes):
        own = drawer(tiny, family, size or own_size, **settings)
        plain = replace(requests[group], prompt=replace(requests[group].prompt, columns={}))
        alone = own.rollout([plain], PLANS["flow_grpo"])
        noted = rollouts.recorded[ROLLOUT_LOGPROBS][rows_of(rollouts, group)]
        torch.testing.assert_close(noted, alone.recorded[ROLLOUT_LOGPROBS], atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("family", ["flux", "flux2", "qwen_image", "sd3"])
def test_steps_are_spaced_by_the_size(tiny: Tiny, family: str):
    """By the tokens of each size, as the models say or (Stable Diffusion 3) the schedule does."""
    policy = drawer(tiny, family)
    plan = evaluation_plan(4, DynamicShift() if family == "sd3" else None)
    rollouts = policy.rollout(asked([None, (32, 32), (32, 16)], 1), plan)
    plans = trace_of(rollouts).sigma_tables
    assert [own.size for own in plans] == [(16, 16), (32, 16), (32, 32)]
    seconds = [float(own.sigmas[1]) for own in plans]
    assert seconds[0] < seconds[1] < seconds[2]
    for own in plans:
        alone = drawer(tiny, family, own.size)
        assert torch.equal(own.sigmas, alone.sigmas(plan)) and torch.equal(own.sigmas, policy.sigmas(plan, own.size))


def test_forwards_hold_one_size_and_no_more_tokens_than_those_of_the_run(tiny: Tiny):
    policy = drawer(tiny, "sd3", (32, 32), forward_rows=3)
    shapes: list[tuple[int, ...]] = []
    policy.net.transformer.register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(tuple(kwargs["hidden_states"].shape)), with_kwargs=True
    )
    rollouts = policy.rollout(asked([None, (16, 16), (64, 32)]), Full(num_steps=2).at(0))
    logprobs(policy, rollouts)
    # Guidance sees each latent twice: 3 of 16 x 16 latents, 12 of 8 x 8 of which there are 4, and 1 of 16 x 32.
    assert {(rows, *shape) for rows, _, *shape in shapes} == {(6, 16, 16), (2, 16, 16), (8, 8, 8), (2, 16, 32)}


def test_filled_forwards_and_decoding_go_by_tokens_too(tiny: Tiny, monkeypatch: pytest.MonkeyPatch):
    plan, sizes = Full(num_steps=2).at(0), [None, (16, 16), (64, 32)]
    plain = drawer(tiny, "sd3", (32, 32)).rollout(asked(sizes), plan)
    policy = drawer(tiny, "sd3", (32, 32), forward_rows=3, equal_forwards=True, decode_rows=2)
    decoded: list[int] = []
    decode = policy.pipeline.vae.decode
    monkeypatch.setattr(policy.pipeline.vae, "decode", lambda z, **more: (decoded.append(len(z)), decode(z, **more))[1])
    with counted(policy) as seen:
        rollouts = policy.rollout(asked(sizes), plan)
    assert set(seen) == {2 * 3, 2 * 12, 2 * 1}
    assert decoded == [4, 2, 2, 1, 1, 1, 1]
    torch.testing.assert_close(rollouts.recorded[ROLLOUT_LOGPROBS], plain.recorded[ROLLOUT_LOGPROBS], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("scope", ["action", "rollout", "group"])
def test_parts_hold_one_size_and_every_action_once(tiny: Tiny, scope: Scope):
    policy = drawer(tiny, "sd3", forward_rows=4)
    rollouts = policy.rollout(asked(SIZES), PLANS["flow_grpo"])
    batch = batch_of(rollouts)
    for with_gradient in (True, False):
        with torch.set_grad_enabled(with_gradient):
            parts = list(policy.split(batch, 6, scope))
        for part in parts:
            rows = torch.arange(len(part))
            assert len(trace_of(part.rollouts).by_size(rows)) == 1
        shares = torch.cat([part.share[part.rollouts.action_mask] for part in parts])
        assert torch.equal(shares.sort().values, batch.share[rollouts.action_mask].sort().values)


def step_of(policy: FlowPolicy, algorithm: Algorithm, micro_batch: int) -> tuple[dict[str, float], list[torch.Tensor]]:
    """The metrics of a step with prompts of three sizes, and the gradient of its update."""
    chosen = [sized(prompt, size) for prompt, size in zip(prompts(), SIZES, strict=True)]
    before = [weight.detach().clone() for weight in policy.parameters()]
    sgd = OptimizerSettings(kind="sgd", lr=0.1)
    metrics = trainer_of(policy, algorithm, chosen, micro_batch=micro_batch, optimizer=sgd).step()
    return metrics, [(a - b).detach() for a, b in zip(before, policy.parameters(), strict=True)]


@pytest.mark.parametrize(("name", "family"), [("flow_grpo", "sd3"), ("grpo_guard", "flux"), ("diffusion_nft", "flux")])
def test_an_update_does_not_depend_on_how_mixed_sizes_are_cut(tiny: Tiny, name: str, family: str):
    """Among them terms that compare latents with those of a reference, of the record and of an average."""
    schedule, images, *_ = SMALL[name]
    algorithm = replace(PRESETS[name], schedule=schedule, group_size=images, minibatches=1, epochs=1)
    if name == "flow_grpo":
        algorithm = replace(algorithm, objective=(*algorithm.objective[:1], (0.1, FlowKL("true"))))
    found = [step_of(drawer(tiny, family, shadows=sorted(algorithm.shadows)), algorithm, size) for size in (1, 64)]
    (one, fine), (other, coarse) = found
    assert one["policy/grad_norm"] > 1e-4
    assert one["loss"] == pytest.approx(other["loss"], abs=1e-6, rel=1e-4)
    assert relative_difference(fine, coarse) < 1e-3


def test_frozen_readings_of_latents_are_those_of_each_size(tiny: Tiny):
    """Read for all rows at once they have room for the largest; each part gets them in the shape of its own."""
    schedule = Full(num_steps=3)
    algorithm = replace(
        PRESETS["flow_grpo"], schedule=schedule, group_size=4, objective=((1.0, RatioNorm()), (0.1, FlowKL("true")))
    )
    policy = drawer(tiny, "sd3", shadows=["ref"])
    trainer = trainer_of(policy, algorithm, [sized(prompt, size) for prompt, size in zip(prompts(), SIZES, strict=True)])
    rollouts = policy.rollout(asked([None, (32, 16), (32, 32)]), schedule.at(0))
    ref = MEAN._replace(model="ref")
    with torch.no_grad():
        frozen = trainer.reader.read_rows(rollouts, [SAMPLED_MEAN, ref, REF_LOGPROBS])
    assert frozen[ref].shape == (12, 3, 4 * 16 * 16) and frozen[REF_LOGPROBS].shape == (12, 3)
    seen = set[tuple[int, ...]]()
    for part in policy.split(replace(batch_of(rollouts), frozen=frozen), 64, "action"):
        live = policy.read(part.rollouts.trace, [MEAN, SAMPLED_MEAN], part.rollouts.action_mask)
        own = part.rollouts.action_mask
        seen.add(tuple(live[MEAN].shape[2:]))
        torch.testing.assert_close(part.frozen[SAMPLED_MEAN][own], live[SAMPLED_MEAN][own], atol=0, rtol=0)
        expected = policy.read(part.rollouts.trace, [ref], own)[ref]
        torch.testing.assert_close(part.frozen[ref][own], expected[own], atol=1e-6, rtol=1e-6)
    assert seen == {(4, 8, 8), (4, 8, 16), (4, 16, 16)}


@pytest.mark.parametrize("reading", [MEAN, VELOCITY, SAMPLED_MEAN])
def test_latents_of_several_sizes_are_no_one_reading(tiny: Tiny, reading: Reading):
    policy = drawer(tiny, "sd3")
    rollouts = policy.rollout(asked(SIZES, 1), PLANS["flow_grpo"])
    with pytest.raises(ValueError, match=r"latents \(\w+\) of 3 sizes of pictures at once \(16 x 16, 16 x 32, 32 x 16\)"):
        policy.read(rollouts.trace, [LOGPROBS, reading], rollouts.action_mask)


def swapped(rollouts: Rollouts) -> Rollouts:
    """The prompts of the second and third group have exchanged their sizes."""
    first, second, third = rollouts.groups
    columns = second.prompt.columns, third.prompt.columns
    changed = [replace(one, prompt=replace(one.prompt, columns=own)) for one, own in zip((third, second), columns, strict=True)]
    return replace(rollouts, groups=(first, changed[1], changed[0]))


def test_a_row_of_another_size_than_its_prompts_fails_the_audit(tiny: Tiny):
    policy = drawer(tiny, "flux")
    rollouts = policy.rollout(asked(SIZES), PLANS["flow_grpo"])
    policy.audit(rollouts)
    message = r"prompt 'hi', sample 0 of group 2: it was drawn at 16 x 32 pixels, but its prompt asks for 32 x 16"
    refused(message, policy.audit, swapped(rollouts))


def test_causes_are_still_found_among_mixed_sizes(tiny: Tiny):
    """Every controlled reading works, and changed guidance is told apart from the others."""
    policy = drawer(tiny, "kontext", max_prompt_tokens=24)
    picture = Image.new("RGB", (16, 16), "red")
    requests = [replace(one, prompt=replace(one.prompt, media=(picture,))) for one in asked(SIZES)]
    rollouts = policy.rollout(requests, PLANS["flow_grpo"])
    mask, noted = rollouts.action_mask, rollouts.recorded[ROLLOUT_LOGPROBS]
    for hypothesis in policy.diagnostics.hypotheses(rollouts):
        assert hypothesis.read is not None and hypothesis.read().shape == noted.shape
    policy.net.guidance = 3.0
    assert (logprobs(policy, rollouts) - noted)[mask].abs().max() > 1e-5


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"width": 32}, r"prompt 'cat' has a width \(32\) and no height: give both"),
        ({"height": 32, "width": None}, r"has a height \(32\) and no width"),
        ({"height": 32, "width": "32"}, r"column width of prompt 'cat' is '32': give whole pixels"),
        ({"height": 32.0, "width": 32}, r"column height of prompt 'cat' is 32\.0"),
        ({"height": True, "width": 32}, r"column height of prompt 'cat' is True"),
        ({"height": 0, "width": 32}, r"column height of prompt 'cat' is 0"),
        ({"width": 30, "height": 32}, r"30 x 32 pixels, but this model draws multiples of 4 .*: take 28 x 32 or 32 x 32"),
        ({"width": 128, "height": 32}, r"at most 64 a side: take 64 x 32"),
        ({"width": 1, "height": 32}, r"asks for 1 x 32 pixels.*: take 4 x 32"),
    ],
)
def test_sizes_that_cannot_be_drawn_are_refused(tiny: Tiny, columns: dict[str, object], said: str):
    policy = drawer(tiny, "sd3")
    refused(said, policy.rollout, [Request(Prompt("cat", "a red cat", columns=columns), 4, 0)], PLANS["flow_grpo"])


def test_prompts_without_columns_are_drawn_at_the_runs_size(tiny: Tiny):
    policy = drawer(tiny, "sd3")
    assert policy.family.size_of(Prompt("a", "a", columns={"width": None, "height": None, "animal": "fox"})) == (16, 16)


def test_a_dry_run_counts_every_size(tiny: Tiny):
    """Against the forwards of a real model."""
    sizes: list[Size | None] = [None, (16, 16), (64, 32)]
    plan: RolloutPlan = Full(num_steps=2).at(0)
    policy = drawer(tiny, "sd3", (32, 32), forward_rows=3)
    seen: list[tuple[int, int]] = []
    policy.net.transformer.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append((len(kwargs["hidden_states"]), kwargs["hidden_states"][0, 0].numel() // 4)),
        with_kwargs=True,
    )
    policy.rollout(asked(sizes), plan)
    dry_run = FlowDryRun(policy.config)
    dry_run.policy.rollout(asked(sizes), plan)
    count = dry_run.log.counts["rollout"]
    assert (count.passes, count.rows, count.positions) == (len(seen), sum(n for n, _ in seen), sum(n * t for n, t in seen))
    assert dry_run.log.drawn == {(16, 16): 4, (32, 32): 4, (64, 32): 4}
    assert dry_run.log.decoded == 3 * 4 * (16 * 16 + 32 * 32 + 64 * 32)
    assert dry_run.log.largest["rollout"] == 2 * 3 * 64
