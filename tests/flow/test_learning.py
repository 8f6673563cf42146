"""Every preset makes the fake policy draw its points nearer to where they belong."""

import math
from dataclasses import replace

import pytest
import torch

from mmrl.algorithms.presets_flow import PRESETS
from mmrl.flow.decay import RampDecay
from mmrl.flow.schedules import Branching, Tree
from tests.flow.conftest import make_trainer
from tests.flow.fakes import FakeFlowPolicy

CLIP = 2e-2
"""Latents of two elements need a wide clip: the log-ratio spreads as 1 / sqrt(elements)."""


def small(name):
    """The preset with the steps, groups and clip ranges of latents of two elements."""
    algorithm = PRESETS[name]
    schedule = algorithm.schedule
    objective = tuple(
        (coef, replace(term, low=CLIP, high=CLIP) if hasattr(term, "low") else term) for coef, term in algorithm.objective
    )
    steps = {"num_steps": 6, "spacing": None}
    if hasattr(schedule, "trained_per_row") and schedule.trained_per_row:
        steps["trained_per_row"] = 3
    if isinstance(schedule, Tree):
        steps["split_steps"] = (0, 1, 3)
    if isinstance(schedule, Branching):
        steps["at_steps"] = (0, 2)
    if hasattr(schedule, "size"):
        steps |= {"size": 3, "dwell": 5, "high": 5}
    if hasattr(schedule, "times"):
        steps["times"] = replace(schedule.times, count=4)
    schedule = replace(schedule, **steps)
    return replace(algorithm, objective=objective, schedule=schedule, group_size=getattr(schedule, "group_size", 12))


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_learn(name):
    policy = FakeFlowPolicy(ema_decay=RampDecay(slope=0.01, most=0.5))
    trainer = make_trainer(small(name), policy)
    rewards = []
    for _ in range(100):
        metrics = trainer.step()
        assert math.isfinite(metrics["loss"])
        rewards.append(metrics["reward/total"])
    print(name, sum(rewards[:5]) / 5, sum(rewards[-10:]) / 10)
    assert sum(rewards[-10:]) / 10 > sum(rewards[:5]) / 5 + 0.5
