"""Steps that vLLM writes beside the updates of the step before: by the weights that the lag says, and read back under these."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.algorithms.weights.importance import RolloutCorrection
from mmrl.core.readings import WEIGHTS_VERSION
from mmrl.core.types import Group, Rollouts
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.policy import TextPolicy
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.trainer import Trainer
from tests.engine.servers import renew

pytestmark = pytest.mark.engine
STEPS = 3


def early(group: Group) -> list[float]:
    """The share of a text's letters before m."""
    return [sum(letter < "m" for letter in sample.text or "") / max(1, len(sample.text or "")) for sample in group.samples]


@pytest.mark.parametrize("sync", ["file", "lora"])
def test_a_step_ahead(sync: str, owner: TextPolicy, join: Callable[..., TextPolicy], asked: Any, monkeypatch: pytest.MonkeyPatch):
    renew(owner)
    policy = join(sync, **({"lora": LoraSettings(rank=4, alpha=8)} if sync == "lora" else {}))
    importance = (RolloutCorrection(mode="token_truncate", high=2.0),)
    algorithm = replace(PRESETS["dr_grpo"], old="reread", importance=importance, group_size=4).with_length(12)
    settings = TrainSettings(steps=STEPS, prompts_per_step=2, ahead=1, micro_batch=4096, optimizer=OptimizerSettings(lr=1e-3))
    rewards = RewardRunner([NamedReward("early", early)])
    trainer = Trainer(policy, algorithm, Shuffled(asked[:3], seed=0), rewards, settings)
    rows, audit = list[Rollouts](), trainer.audit
    monkeypatch.setattr(trainer, "audit", lambda rollouts, step: rows.append(rollouts) or audit(rollouts, step))
    metrics = [trainer.step() for _ in range(STEPS)]
    trainer.collector.close()
    versions = [one.recorded[WEIGHTS_VERSION].unique().tolist() for one in rows]
    assert versions == [[0.0], [0.0], [float(algorithm.updates)]], "and the gate has compared each with a reading under these"
    assert [one["rollout/staleness"] for one in metrics] == [0, 1, 1]
    assert all(torch.isfinite(weight).all() for weight in policy.parameters())
