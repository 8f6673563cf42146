"""Every preset raises the reward of the fake policy; on real model classes they take updates (tests/policies, tests/configs)."""

import pytest

from mmrl.training.optim import OptimizerSettings
from mmrl.training.trainer import Trainer
from tests.support.presets import ON_TASKS, TEXT
from tests.support.trainers import at_most_one, make_trainer, rises

FEWER_PROMPTS = (
    *(
        "aepo",
        "ares",
        "arpo_gui",
        "dcpo",
        "hapo",
        "hart",
        "mobile_agent_v3",
        "remix",
        "riskpo",
        "spo",
        "spo_segment",
        "ssr",
        "treerl",
    ),
)
"""Presets that remember something, or draw many samples of a prompt."""
PRESETS = {name: TEXT[name] for name in TEXT.keys() - ON_TASKS - {*FEWER_PROMPTS}}
STEPS = 40
BOUND = 0.15


def trainer_of(name: str, seed: int = 0) -> Trainer:
    """More updates per step are smaller ones: with sixteen larger ones dapo solves every prompt, and sampling then stops."""
    algorithm = PRESETS[name]
    optimizer = OptimizerSettings(lr=2e-2 / algorithm.updates)
    return make_trainer(algorithm, steps=STEPS, prompts_per_step=48, seed=seed, optimizer=optimizer)


def gain(name: str, seed: int = 0) -> float:
    """Mean reward of the last ten steps above that of the first three."""
    trainer = trainer_of(name, seed)
    rewards = [trainer.step()["reward/letter"] for _ in range(STEPS)]
    return sum(rewards[-10:]) / 10 - sum(rewards[:3]) / 3


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PRESETS))
def test_reward_rises(name: str):
    assert rises(trainer_of(name), STEPS, BOUND)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FEWER_PROMPTS))
def test_reward_rises_with_fewer_prompts(name: str):
    algorithm = TEXT[name]
    optimizer = OptimizerSettings(lr=2e-2 / algorithm.updates)
    trainer = make_trainer(algorithm, at_most_one, steps=STEPS, prompts_per_step=20, optimizer=optimizer)
    assert rises(trainer, STEPS, BOUND)
