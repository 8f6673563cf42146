"""Segments of answers: where they are cut, what their beginnings are worth, and which tokens that credits."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.algorithms.advantages.segments import SegmentGains
from mmrl.algorithms.planners.base import Once
from mmrl.algorithms.planners.segments import SegmentValues
from mmrl.algorithms.presets import PRESETS
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.samples import Segment, segments_of
from mmrl.core.types import Group, Prompt, Rollouts, Sample
from tests.support import flow_fakes
from tests.support.flow_fakes import FakeFlowPolicy
from tests.support.rows import rollouts, scores
from tests.support.trainers import make_trainer

PLANNER = SegmentValues(interval=2, continuations=3)


def collected(function: Any = None, planner: SegmentValues = PLANNER) -> Any:
    return make_trainer(replace(PRESETS["spo_segment"], planner=planner), function).collect()


def begun_at(kept: int, length: int) -> tuple[Segment, ...]:
    """Of a row of `length` letters that goes on behind `kept` forced ones."""
    return segments_of([("forced", kept), ("policy", length - kept)])


def worth(group: Group) -> list[float]:
    """A number of its own for every text."""
    return [sum(ord(letter) * 7**i for i, letter in enumerate(sample.text or "")) % 13 / 13 for sample in group.samples]


def test_values_are_means_over_what_goes_on_from_each_cut():
    found = collected(worth)
    num_cuts = 0
    for group in found.rollouts.groups:
        own, behind = group.samples[:8], group.samples[8:]
        rewards = worth(group)[8:]
        for sample in own:
            for kept, value in sample.values:
                mine = behind[:3]
                assert {(one.token_ids or ())[:kept] for one in mine} == {(sample.token_ids or ())[:kept]}
                assert {tuple(one.segments) for one in mine} <= {begun_at(kept, length) for length in range(kept, 20)}
                assert value == pytest.approx(sum(rewards[:3]) / 3)
                behind, rewards, num_cuts = behind[3:], rewards[3:], num_cuts + 1
        assert not behind and not any(one.values for one in group.samples[8:])
    assert found.rounds == 2 and found.num_discarded == 3 * num_cuts > 0


def test_cuts_lie_before_unlikely_letters():
    found = collected()
    noted, names = found.rollouts.recorded[ROLLOUT_LOGPROBS], found.rollouts.sample_ids.tolist()
    assert len(names) == 8 * len(found.rollouts.groups) and max(names) == 7, "what went on is dropped"
    for (_, sample), row in zip(found.rollouts.samples(), noted, strict=True):
        unsure = [i for i in range(len(sample.token_ids or ())) if math.exp(float(row[i])) < 0.9]
        assert [kept for kept, _ in sample.values] == unsure[::2]


def test_what_went_on_is_not_what_a_group_was_like():
    """Only continuations of nothing are samples of the prompt."""
    for group in collected().rollouts.groups:
        from_nothing = [one for one in group.samples[8:] if all(part.who == "policy" for part in one.segments)]
        assert group.seen is not None and group.seen.size == 8 + len(from_nothing)


def test_a_failed_reward_leaves_its_continuation_out():
    planner = replace(PLANNER, continuations=2)

    def patchy(group: Group) -> list[float]:
        return [math.nan if i >= 8 and i % 2 else float(i) for i in range(len(group.samples))]

    for group in collected(patchy, planner).rollouts.groups:
        found = [value for sample in group.samples for _, value in sample.values]
        assert found == [float(i) for i in range(8, len(group.samples), 2)]
    planner.first([Prompt("p")], 1, 0, 0)
    planner.cuts[0, 0] = [0, 1]
    group = Group(0, Prompt("p"), tuple(Sample(token_ids=(0, 1)) for _ in range(5)))
    assert planner.values_of(group, [1.0, math.nan, math.nan, 0.5, math.nan]) == {(0, 0): ((1, 0.5),)}


def with_values(rows: Rollouts, probabilities: list[list[float]], values: tuple[tuple[int, float], ...]) -> Rollouts:
    (group,) = rows.groups
    samples = tuple(
        replace(one, token_ids=(1,) * len(row), segments=(), values=values)
        for one, row in zip(group.samples, probabilities, strict=True)
    )
    return replace(
        rows, groups=(replace(group, samples=samples),), recorded={ROLLOUT_LOGPROBS: torch.tensor(probabilities).log()}
    )


def test_each_segment_has_its_own_advantage_and_sure_tokens_leave():
    chances = [[0.99, 0.5, 0.95, 0.8, 0.3], [0.99, 0.5, 0.95, 0.8, 0.3]]
    rows = with_values(rollouts(torch.ones(2, 5)), chances, ((1, 0.25), (3, 0.75)))
    credit = SegmentGains()(scores(torch.tensor([[1.0], [torch.nan]])), rows)
    # from 0.25 behind the first token to 0.75 behind the third, then to the reward of 1
    torch.testing.assert_close(credit.values[0], torch.tensor([0.0, 0.5, 0.0, 0.25, 0.25]))
    assert credit.actions is not None and credit.actions[0].tolist() == [False, True, False, True, True]
    assert credit.keep.tolist() == [True, False] and not credit.values[1].any()
    every = SegmentGains(mask=False)(scores(torch.tensor([[1.0], [1.0]])), rows)
    torch.testing.assert_close(every.values[0], torch.tensor([0.0, 0.5, 0.5, 0.25, 0.25]))
    assert every.actions is not None and bool(every.actions.all())


def test_sure_tokens_leave_the_count():
    trainer = make_trainer(
        replace(PRESETS["spo_segment"], planner=replace(PLANNER, sure=0.21), advantage=SegmentGains(sure=0.21))
    )
    rows, table = (found := trainer.collect()).rollouts, found.scores
    credit = trainer.credit(table, rows, {})
    unsure = rows.recorded[ROLLOUT_LOGPROBS].double().exp() < 0.21
    assert torch.equal(credit.mask & rows.action_mask, unsure & rows.action_mask) and bool((~unsure & rows.action_mask).any())


def test_without_continuations_there_is_nothing_to_credit():
    with pytest.raises(ValueError, match=r"SegmentGains finds no values.*algorithm\.planner\.kind = 'SegmentValues'"):
        make_trainer(replace(PRESETS["spo_segment"], planner=Once())).step()


def test_pictures_have_no_segments():
    flow = replace(PRESETS["flow_grpo"], planner=SegmentValues())
    trainer = make_trainer(flow, flow_fakes.nearness, policy=FakeFlowPolicy())
    with pytest.raises(ValueError, match="take a text policy"):
        trainer.collect()
