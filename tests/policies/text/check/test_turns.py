"""An episode whose turns, observations or pictures do not fit its tokens is found, and so is the reason for other numbers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Observation, Request, Rollouts, Sample, Turn
from mmrl.policies.text.check.audit import audit_rollouts
from mmrl.policies.text.policy import TextPolicy
from mmrl.policies.text.trace import Inset
from tests.support.text_policies import FP32_BOUND, picture, prompts, text_trace
from tests.support.worlds import Inline, player


@pytest.fixture(scope="module")
def played(tiny: Any) -> tuple[TextPolicy, Rollouts]:
    """Two rows of two turns, with a picture of one size between them."""
    policy = player(tiny("qwen3_vl"), Inline(lambda prompt, turns, seed: Observation("see", (picture(seed % 99, 64, 64),))))
    return policy, policy.rollout([Request(prompts()[0], 2, 0, seed=3, turns=2)])


def with_sample(rollouts: Rollouts, change: Callable[[Sample], Sample]) -> Rollouts:
    [group] = rollouts.groups
    return replace(rollouts, groups=(replace(group, samples=tuple(map(change, group.samples))),))


def with_inset(rollouts: Rollouts, change: Callable[[Inset], Inset]) -> Rollouts:
    trace = text_trace(rollouts.trace)
    return replace(rollouts, trace=replace(trace, insets=tuple(tuple(map(change, row)) for row in trace.insets)))


def changed(sample: Sample, **changes: Any) -> Sample:
    """The sample with another first turn."""
    first: Turn = replace(sample.turns[0], **changes)
    return replace(sample, turns=(first, *sample.turns[1:]))


FAULTS: dict[str, tuple[Callable[[Rollouts], Rollouts], str]] = {
    "span": (lambda r: with_sample(r, lambda one: changed(one, span=(0, 2))), "its turns are the tokens .* and the policy wrote"),
    "text": (lambda r: with_sample(r, lambda one: changed(one, text="no")), "the tokens of a turn read .* but rewards saw 'no'"),
    "observation": (
        lambda r: with_sample(r, lambda one: changed(one, observation=Observation("seen", (picture(0, 64, 64),)))),
        "tokens between its turns 1 and 2 are not the",
    ),
    "silence": (
        lambda r: with_sample(r, lambda one: changed(one, observation=None)),
        "was not answered, and another",
    ),
    "picture": (
        lambda r: with_sample(r, lambda one: changed(one, observation=Observation("see", (picture(99, 64, 64),)))),
        "the pictures of its observations, or their positions",
    ),
    "positions": (
        lambda r: with_inset(r, lambda one: replace(one, positions=one.positions + 1)),
        "the pictures of its observations, or their positions",
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_does_not_fit_is_found(played: tuple[TextPolicy, Rollouts], name: str):
    policy, rollouts = played
    audit_rollouts(policy, rollouts)
    break_it, error = FAULTS[name]
    with pytest.raises(ValueError, match=f"prompt 'one', sample 0 of group 0: .*{error}"):
        audit_rollouts(policy, break_it(rollouts))


def swap(rollouts: Rollouts) -> Rollouts:
    """The two rows' pictures exchanged."""
    trace = text_trace(rollouts.trace)
    [[a], [b]] = trace.insets
    return replace(rollouts, trace=replace(trace, insets=((replace(a, media=b.media),), (replace(b, media=a.media),))))


def flatten(rollouts: Rollouts) -> Rollouts:
    """The record read with pictures on one axis, so that what was sampled stays and the trace is wrong."""
    return with_inset(rollouts, lambda one: replace(one, positions=torch.arange(one.positions.shape[1]).expand_as(one.positions)))


@pytest.mark.parametrize(("break_it", "change"), [(swap, "of other turns"), (flatten, "between turns encoded afresh")])
def test_the_reason_for_other_numbers_is_named(played: tuple[TextPolicy, Rollouts], break_it: Any, change: str):
    policy, rollouts = played
    broken = break_it(rollouts)
    noted = rollouts.recorded[ROLLOUT_LOGPROBS]
    [found] = [one for one in policy.diagnostics.hypotheses(broken) if one.change.endswith(change) and one.read is not None]
    assert found.read is not None
    with torch.no_grad():
        values = found.read()
    assert float((values - noted)[rollouts.action_mask].abs().max()) <= FP32_BOUND
