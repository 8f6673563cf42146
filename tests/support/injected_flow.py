"""Faults between sampling and training of an image generator with an adapter."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.algorithms.presets import PRESETS
from mmrl.core.types import Rollouts
from mmrl.flow.schedules import Full
from mmrl.flow.sigmas import shift_by
from mmrl.policies.flow.check import diagnose as causes
from mmrl.policies.flow.families.base import Condition
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.trace import FlowTrace, Latents, SigmaTable
from mmrl.policies.shared import hypotheses as common
from tests.support.injected import (
    Change,
    Injected,
    half_under_gradients,
    in_groups,
    merged,
    noted,
    older,
    scaled,
    traced,
    two_rows,
    under_gradients,
)

GROUP = 3
ALGORITHM = replace(PRESETS["flow_grpo_fast"], schedule=Full(num_steps=4), group_size=GROUP)


def block(policy: FlowPolicy) -> Any:
    return policy.net.transformer.transformer_blocks[0].ff


def guided(value: float) -> Change:
    return lambda policy, patch: patch.setattr(policy.net, "guidance", value)


def louder(factor: float) -> Callable[[SigmaTable], SigmaTable]:
    return lambda one: replace(one, plan=replace(one.plan, steps=tuple(causes.noisier(step, factor) for step in one.plan.steps)))


def shifted(factor: float) -> Callable[[SigmaTable], SigmaTable]:
    return lambda one: replace(one, sigmas=shift_by(factor, one.sigmas.double()).float())


def sampled_along(change: Callable[[SigmaTable], SigmaTable]) -> Change:
    """Sampling follows this plan; `right_plans` makes the record say nothing of it."""

    def changed(policy: FlowPolicy, patch: pytest.MonkeyPatch) -> None:
        right = policy._sigma_table
        patch.setattr(policy, "_sigma_table", lambda *asked: change(right(*asked)))

    return changed


def planned(change: Callable[[SigmaTable], SigmaTable]) -> Callable[[Any, Rollouts], Rollouts]:
    """Training reads along this plan."""

    def changed(trace: FlowTrace) -> FlowTrace:
        plans = tuple(map(change, trace.sigma_tables))
        times = [plan.timesteps for plan in plans]
        return replace(trace, sigma_tables=plans, timesteps=causes.times_by(trace, times))

    return traced(changed)


def right_plans(policy: FlowPolicy, rollouts: Rollouts) -> Rollouts:
    assert ALGORITHM.schedule is not None
    plan = ALGORITHM.schedule.at(0)
    return planned(lambda one: policy._sigma_table(plan, one.size))(policy, rollouts)


def with_conditions(change: Callable[[tuple[Condition, ...]], Any]) -> Callable[[Any, Rollouts], Rollouts]:
    return traced(lambda trace: replace(trace, conditions=tuple(change(trace.conditions))))


def pooled_of_others(conditions: tuple[Condition, ...]) -> list[Condition]:
    others = (*conditions[1:], conditions[0])
    return [{k: b[k] if x.ndim == 1 else x for k, x in a.items()} for a, b in zip(conditions, others, strict=True)]


def with_rows(order: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any, Rollouts], Rollouts]:
    """Training sees the latents of other rows."""
    names = ("before", "after", "means")
    return traced(lambda trace: replace(trace, **{name: order(getattr(trace, name)) for name in names}))


def rounded_latents(trace: FlowTrace) -> FlowTrace:
    return replace(trace, latents=Latents(tuple(part.bfloat16().float() for part in trace.latents.parts)))


def other_negatives(policy: FlowPolicy, patch: pytest.MonkeyPatch) -> None:
    right = policy.encoder.empty
    patch.setattr(policy.encoder, "empty", lambda device: {k: x + 1 for k, x in right(device).items()})


FLOW = {
    "sampled with much guidance": Injected(causes.GUIDANCE, sampling=guided(7.25)),
    "read with little guidance": Injected(causes.GUIDANCE, training=guided(1.5)),
    "read with more noise": Injected(causes.NOISE, record=planned(louder(1.25))),
    "sampled with less noise": Injected(causes.NOISE, sampling=sampled_along(louder(0.7)), record=right_plans),
    "read along another shift": Injected(causes.SCHEDULE, record=planned(shifted(0.7))),
    "sampled along another shift": Injected(causes.SCHEDULE, sampling=sampled_along(shifted(1.5)), record=right_plans),
    "adapter twice as strong in sampling": Injected(common.SCALE, sampling=scaled(2.0)),
    "adapter half as strong in training": Injected(common.SCALE, training=scaled(0.5)),
    "adapter merged and active in training": Injected(common.WEIGHTS, training=merged),
    "records exchanged in groups": Injected(common.ROWS, record=noted(in_groups(GROUP))),
    "two records exchanged": Injected(common.ROWS, record=noted(two_rows)),
    "latents exchanged in groups": Injected(common.ROWS, record=with_rows(in_groups(GROUP))),
    "embeddings of nothing": Injected(
        causes.PROMPT, record=with_conditions(lambda all: [{k: 0 * x for k, x in one.items()} for one in all])
    ),
    "half of the embeddings exchanged": Injected(causes.PROMPT, record=with_conditions(pooled_of_others)),
    "times one step late": Injected(
        causes.POSITIONS, record=traced(lambda trace: replace(trace, timesteps=trace.timesteps.roll(1, 1)))
    ),
    "record in float16": Injected(common.PRECISION, record=noted(lambda x: x.half().float())),
    "a layer that looks at gradients": Injected(common.GRADIENT, training=under_gradients(block)),
    "autocast under gradients": Injected(common.GRADIENT, training=half_under_gradients),
    "latents kept in bfloat16": Injected(None, record=traced(rounded_latents)),
    "another negative prompt": Injected(None, training=other_negatives),
    "densities without their constant": Injected(None, record=noted(lambda x: x + 0.5)),
    "sampled with older weights": Injected(None, sampling=older),
}
