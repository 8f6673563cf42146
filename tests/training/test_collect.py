"""Rounds of one step are merged: samples added to a known group get numbers of their own."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from mmrl.algorithms.presets import PRESETS
from mmrl.core.types import Group, Prompt, Request, Revision, Scores
from mmrl.training.collect import merge_rollouts
from tests.support.fakes import FakeTextPolicy, prompts
from tests.support.trainers import make_trainer


@dataclass(frozen=True)
class OnceMore:
    """Asks for two samples more of every group, after the first round."""

    max_rounds: int = 2
    asked: list[Prompt] = field(default_factory=list)

    def first(self, prompts: Sequence[Prompt], group_size: int, first_id: int, seed: int) -> list[Request]:
        return [Request(prompt, group_size, first_id + i, seed=seed + i) for i, prompt in enumerate(prompts)]

    def revise(self, groups: Sequence[Group], scores: Scores, group_ids: Any, wanted: int, round_index: int) -> Revision:
        return Revision(requests=[Request(group.prompt, 2, group.id, seed=900 + group.id) for group in groups])


def test_samples_added_to_a_group_follow_those_it_has():
    policy, (a, b, c) = FakeTextPolicy(), prompts()[:3]
    old = policy.rollout([Request(a, 2, 5, seed=1), Request(b, 3, 6, seed=2)])
    new = policy.rollout([Request(b, 2, 6, seed=3), Request(c, 1, 9, seed=4), Request(a, 1, 5, seed=5)])
    merged = merge_rollouts(policy, old, new)
    rows = list(zip(merged.group_ids.tolist(), merged.sample_ids.tolist(), strict=True))
    assert rows == [(5, 0), (5, 1), (6, 0), (6, 1), (6, 2), (6, 3), (6, 4), (9, 0), (5, 2)]
    assert {group.id: len(group.samples) for group in merged.groups} == {5: 3, 6: 5, 9: 1}
    before = [sample for part in (old, new) for _, sample in part.samples()]
    assert [sample for _, sample in merged.samples()] == before


def test_a_step_with_a_later_round_scores_every_sample_by_its_own_answer():
    algorithm = replace(PRESETS["dr_grpo"], planner=OnceMore())
    trainer = make_trainer(algorithm, lambda group: [float(len(sample.token_ids or ())) for sample in group.samples])
    collected = trainer.collector.collect()
    assert collected.rounds == 2 and len(collected.rollouts) == 4 * (8 + 2)
    assert collected.scores.values[:, 0].tolist() == collected.rollouts.action_mask.sum(1).tolist()


def test_longer_rounds_lengthen_the_rows_of_shorter_ones():
    short, long = FakeTextPolicy(length=4), FakeTextPolicy(length=4)
    old = short.rollout([Request(prompts()[0], 2, 0)]).take(torch.arange(2), slice(0, 2))
    new = long.rollout([Request(prompts()[1], 1, 1)])
    merged = merge_rollouts(long, old, new)
    assert merged.action_mask.shape == (3, 4) and not merged.action_mask[:2, 2:].any()
    assert torch.equal(merged.action_mask[2], new.action_mask[0])


def test_a_round_without_prompts_asks_for_nothing_and_uses_no_number():
    collector = make_trainer(PRESETS["dr_grpo"]).collector
    first = collector.requests_for(2)
    assert sorted({request.group_id for request in first}) == [0, 1]
    assert collector.requests_for(0) == []
    assert min(request.group_id for request in collector.requests_for(1)) == 2
