"""Clips with sound, drawn by a tiny LTX-2 with random weights: clips are to get lighter, and waves to lie higher."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, cast

import torch
from torch import Tensor

from mmrl.algorithms.advantages.decoupled import PerModality
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.forward import NegativeAware
from mmrl.algorithms.presets.flow import omninft
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.core.types import Group
from mmrl.flow.plan import evaluation_plan
from mmrl.flow.schedules import Forward
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.shared.weights import USUAL_DECAY
from mmrl.training.optim import OptimizerSettings
from tests.evidence.task import Ended, MakeSampler, Row, Task, fresh_of, trainer_of, weights_of
from tests.support import as_asked

STEPS = 6
"""Denoising steps, in training and where runs are measured."""
FRESH = 16
REWARDS = {"light": as_asked.light, "above": as_asked.above}


@cache
def model() -> str:
    """The sound's decoders as they are drawn: what they make of latents is nearer to linear than with their biases away."""
    return str(as_asked.build_visible("ltx2", Path(mkdtemp()), raise_sound=False))


@dataclass(frozen=True)
class SoundTask(Task[Algorithm]):
    """Every step of every method makes the same calls of the network, so equal steps are an equal cost."""

    steps: int = 12
    lr: float = 1e-2

    def run(self, algorithm: Algorithm, seed: int, make_sampler: MakeSampler | None = None) -> Ended:
        """Train, and measure the lesser rise."""
        policy, rises = self.trained(algorithm, seed, make_sampler)
        return Ended(float(rises.min()), weights_of(policy))

    def trained(self, algorithm: Algorithm, seed: int, make_sampler: MakeSampler | None = None) -> tuple[FlowPolicy, Tensor]:
        """The policy, and how far the clip's and the sound's rewards have risen."""
        torch.manual_seed(seed)
        drawn: dict[str, Any] = {"height": 16, "width": 16, "frames": 5, "fps": 20.0, "sound": True, "guidance": 1.0}
        drawn |= {"max_prompt_tokens": 24, "forward_rows": 192, "decode_rows": 480, "lora": LoraSettings(rank=8, alpha=16)}
        policy = FlowPolicy(FlowPolicyConfig(model(), **drawn), algorithm.shadows, algorithm.ema_decay or USUAL_DECAY)
        prompts = as_asked.load()
        settings: dict[str, Any] = {"steps": self.steps, "prompts_per_step": len(prompts), "micro_batch": 192}
        settings["optimizer"] = OptimizerSettings(lr=self.lr, warmup_steps=3)
        sampler = (make_sampler or Shuffled)(prompts, seed)
        trainer = trainer_of(policy, algorithm, sampler, REWARDS.items(), seed, lr=self.lr, **settings)
        asked = fresh_of(prompts, FRESH, seed)
        before = scored(policy.rollout(asked, evaluation_plan(STEPS)).groups)
        for _ in range(self.steps):
            trainer.step()
        after = scored(policy.rollout(asked, evaluation_plan(STEPS)).groups)
        return policy, (after.mean(1) - before.mean(1)) / before.std(1)


def scored(groups: Sequence[Group]) -> Tensor:
    """Both rewards of all samples."""
    return torch.tensor([[value for group in groups for value in reward(group)] for reward in REWARDS.values()])


APART = replace(
    omninft,
    objective=omninft.objective[:1],
    advantage=PerModality(of_clip=("light",), of_sound=("above",)),
    schedule=Forward(STEPS, "ode", times=replace(cast(Forward, omninft.schedule).times, count=3)),
    group_size=16,
)
TOGETHER = replace(APART, objective=((1.0, NegativeAware()),), advantage=cast(PerModality, APART.advantage).each)
TASK = SoundTask(
    "clip_and_sound",
    "a tiny LTX-2 with random weights, one reward for the clip and one for its sound, equal steps",
    "the lesser of both rewards' rises, in deviations of samples at the start",
)
ROWS = [Row("omninft", APART, TOGETHER, "both rewards train clip and sound alike, each normalized by itself", TASK)]
