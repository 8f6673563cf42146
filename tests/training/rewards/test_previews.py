"""Previews of a sample's steps are scored as if they were samples, each at its place."""

from dataclasses import replace
from typing import Any

import pytest

from mmrl.algorithms.presets import PRESETS
from mmrl.core.types import Group, Request, Rollouts
from mmrl.flow.schedules import Full
from mmrl.training.collect import score_previews
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from tests.support.flow_fakes import FakeFlowPolicy, nearness, prompts
from tests.support.trainers import make_trainer

STEPS = 4
PLAN = Full(STEPS, previews=True).at(0)


def rollouts() -> Rollouts:
    return FakeFlowPolicy().rollout([Request(prompt, 3, i, seed=i) for i, prompt in enumerate(prompts())], PLAN)


def scored(drawn: Rollouts, *rewards: Any) -> Rollouts:
    runner = RewardRunner([NamedReward(f"r{i}", one, max_failed=1.0) for i, one in enumerate(rewards)])
    tables = dict(zip([group.id for group in drawn.groups], runner.score(drawn.groups), strict=True))
    return score_previews(runner, drawn, runner.scores(drawn, tables))


def of_one(group: Group, shown: Any) -> float:
    sample = replace(group.samples[0], image=shown, previews=())
    return nearness(replace(group, samples=(sample,)))[0]


def test_they_are_scored_in_place_and_then_gone():
    drawn = rollouts()
    for (group, before), (_, after) in zip(drawn.samples(), scored(drawn, nearness, nearness).samples(), strict=True):
        wanted = [2 * of_one(group, shown) for shown in (*before.previews, before.image)]
        assert [step for step, _ in after.values] == list(range(STEPS)) and after.previews == ()
        assert [value for _, value in after.values] == pytest.approx(wanted, abs=1e-5)


def test_a_step_without_a_reward_is_no_number():
    drawn = rollouts()
    least = min(value for _, sample in scored(drawn, nearness).samples() for _, value in sample.values) + 1e-3

    def applies_near(group: Group) -> list[float | None]:
        return [value if value > least else None for value in nearness(group)]

    values = [value for _, sample in scored(drawn, applies_near).samples() for _, value in sample.values]
    assert 0 < sum(value != value for value in values) < len(values) / 2


def test_a_run_asks_each_reward_once_per_step_of_a_sample():
    asked: list[int] = []

    def counted(group: Group) -> list[float]:
        asked.append(len(group.samples))
        return [1 / (1 - value) for value in nearness(group)]

    preset = PRESETS["vgpo"]
    algorithm = replace(preset, schedule=Full(STEPS, previews=True), group_size=4)
    assert make_trainer(algorithm, counted).step()["policy/grad_norm"] > 0
    assert set(asked) == {4} and len(asked) % STEPS == 0 and len(asked) >= 2 * STEPS
