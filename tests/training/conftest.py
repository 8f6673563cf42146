"""Short cuts shared by the tests of the training room."""

from collections.abc import Callable
from typing import Any

import pytest

from mmrl.algorithms.presets.text import PRESETS
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.trainer import Trainer
from tests.support.fakes import FakeTextPolicy, prompts, right_letter


def make_trainer(algorithm: Any = PRESETS["grpo"], function: Any = right_letter, **kwargs: Any) -> Trainer:
    """A trainer on the fake policy; keywords of TrainSettings go there, the rest to the Trainer."""
    names = {"steps", "prompts_per_step", "micro_batch", "seed", "evaluate_every", "save_every", "samples_every"} | {
        "ratio_bound",
        "mean_ratio_bound",
        "max_skipped",
    }
    numbers = {name: kwargs.pop(name) for name in list(kwargs) if name in names}
    optimizer = kwargs.pop("optimizer", OptimizerSettings(lr=1e-2))
    settings = TrainSettings(**{"steps": 5, "prompts_per_step": 4, "micro_batch": 1000, "optimizer": optimizer, **numbers})
    runner = RewardRunner([NamedReward("letter", function)])
    policy = kwargs.pop("policy", None) or FakeTextPolicy()
    sampler = kwargs.pop("sampler", None) or Shuffled(prompts(), seed=settings.seed)
    return Trainer(policy, algorithm.with_length(policy.length), sampler, runner, settings, **kwargs)


@pytest.fixture
def trainer() -> Callable[..., Trainer]:
    return make_trainer
