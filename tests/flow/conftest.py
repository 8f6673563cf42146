"""A trainer on the fake flow policy."""

from typing import Any

from mmrl.algorithms.samplers.base import Shuffled
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.trainer import Trainer
from tests.support.flow_fakes import FakeFlowPolicy, nearness, prompts


def make_trainer(algorithm: Any, policy: FakeFlowPolicy | None = None, **numbers: Any) -> Trainer:
    """Numbers of TrainSettings and `lr`."""
    optimizer = OptimizerSettings(lr=numbers.pop("lr", 5e-3))
    settings = TrainSettings(**{"steps": 100, "prompts_per_step": 3, "micro_batch": 4096, "optimizer": optimizer, **numbers})
    runner = RewardRunner([NamedReward("nearness", nearness)])
    return Trainer(policy or FakeFlowPolicy(), algorithm, Shuffled(prompts(), seed=settings.seed), runner, settings)
