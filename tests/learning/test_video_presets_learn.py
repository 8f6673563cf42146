"""Every preset for video raises the reward of the fake policy, which sees clips as numbers in order."""

import pytest

from mmrl.algorithms.presets.video import PRESETS
from mmrl.training.optim import OptimizerSettings
from tests.training.test_video_methods import video_trainer

STEPS = 40
BOUND = 0.15


def gain(name: str, seed: int = 0) -> float:
    """Mean reward of the last ten steps above that of the first three."""
    trainer = video_trainer(name, steps=STEPS, prompts_per_step=48, seed=seed, optimizer=OptimizerSettings(lr=2e-2))
    rewards = [trainer.step()["reward/letter"] for _ in range(STEPS)]
    return sum(rewards[-10:]) / 10 - sum(rewards[:3]) / 3


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PRESETS))
def test_reward_rises(name: str):
    assert gain(name) > BOUND
