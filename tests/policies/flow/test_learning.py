"""Real pipelines, tiny and random, learn to draw bright pictures."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.ema_decay import RampDecay
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.core.types import Group
from mmrl.flow.schedules import Branching, Forward, Full
from mmrl.flow.times import TimeSampler
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.trainer import Trainer
from tests.support.flow_policies import make, prompts

SMALL: dict[str, Any] = {
    "flow_grpo": Full(num_steps=4, initial_noise="group"),
    "temp_flow_grpo": Branching(num_steps=4, branches=4, at_steps=(0, 1)),
    "diffusion_nft": Forward(num_steps=4, times=TimeSampler("rollout", count=3)),
}


def brightness(group: Group) -> list[float]:
    return [float(np.asarray(sample.image).mean()) / 255 for sample in group.samples]


def small(name: str) -> Algorithm:
    """The preset with few steps, groups of 16, and clip ranges for latents of 256 elements."""
    algorithm = PRESETS[name]
    terms: list[tuple[float, Any]] = list(algorithm.objective)
    objective = tuple((coef, replace(term, low=1e-2, high=1e-2) if hasattr(term, "low") else term) for coef, term in terms)
    return replace(algorithm, objective=objective, schedule=SMALL[name], group_size=16)


def trained(policy: FlowPolicy, algorithm: Algorithm, steps: int, micro_batch: int = 4096) -> list[dict[str, float]]:
    """Metrics of every step."""
    settings = TrainSettings(steps=steps, prompts_per_step=3, micro_batch=micro_batch, optimizer=OptimizerSettings(lr=2e-2))
    rewards = RewardRunner([NamedReward("brightness", brightness)])
    trainer = Trainer(policy, algorithm, Shuffled(prompts(), seed=0), rewards, settings)
    return [trainer.step() for _ in range(steps)]


def gain(steps: list[dict[str, float]]) -> float:
    """From the first three steps to the last three, in deviations of the first step's rewards."""
    assert all(math.isfinite(step["loss"]) for step in steps)
    found = [step["reward/total"] for step in steps]
    return (sum(found[-3:]) - sum(found[:3])) / 3 / steps[0]["reward/brightness/std"]


@pytest.mark.parametrize("name", SMALL)
def test_presets_raise_the_reward(tiny, name):
    algorithm = small(name)
    policy = make(tiny("sd3"), sorted(algorithm.shadows), ema_decay=RampDecay(slope=0.05), guidance=1.0, forward_rows=64)
    assert gain(trained(policy, algorithm, 14)) > 2


@pytest.mark.parametrize("family", ["flux", pytest.param("qwen_image", marks=pytest.mark.evidence)])
def test_every_family_learns(tiny, family):
    assert gain(trained(make(tiny(family), ["ref"], forward_rows=64), small("flow_grpo"), 16)) > 1


@pytest.mark.evidence
def test_training_does_not_depend_on_the_budget(tiny):
    """Two steps of two updates each, cut differently; single updates are in read/test_evaluate.py and test_mixed_sizes.py."""
    ends: list[list[float]] = []
    for micro_batch, rows in ((4096, 64), (5, 3)):
        policy = make(tiny("sd3"), ["ref"], forward_rows=rows)
        steps = trained(policy, small("flow_grpo"), 2, micro_batch)
        ends.append([step[name] for step in steps for name in ("policy/grad_norm", "policy/kl", "reward/total")])
    assert ends[0] == pytest.approx(ends[1], rel=1e-2)
