"""Every preset raises the reward of the fake policy; on real model classes they take updates (tests/policies, tests/configs)."""

import pytest

from mmrl.algorithms.presets import text, text_methods, text_more, text_planners, text_state
from mmrl.training.optim import OptimizerSettings
from mmrl.training.trainer import Trainer
from tests.support.trainers import at_most_one, make_trainer, rises

PRESETS = text.PRESETS | text_methods.PRESETS | {"attention_rhythm": text_more.attention_rhythm}
FEWER_PROMPTS = text_state.PRESETS | {name: text_planners.PRESETS[name] for name in ("arpo_gui", "spo_segment")}
"""Presets that remember something, or draw many samples of a prompt."""
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
    algorithm = FEWER_PROMPTS[name]
    optimizer = OptimizerSettings(lr=2e-2 / algorithm.updates)
    trainer = make_trainer(algorithm, at_most_one, steps=STEPS, prompts_per_step=20, optimizer=optimizer)
    assert rises(trainer, STEPS, BOUND)
