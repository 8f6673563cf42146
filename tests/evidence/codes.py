"""A task of pictures drawn by tokens: a real Janus class with random weights, whose prompts name the colour to draw."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.core.types import Group, Prompt, Request
from mmrl.lab.tiny.text import janus
from mmrl.policies.codes.policy import CodePolicy, CodePolicyConfig
from mmrl.runtime.cache import keep
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.trainer import Trainer
from tests.evidence.task import Ended, MakeSampler, Task, mean, weights_of

COLOURS = ("red", "green", "blue")
TIMES = 16
"""Words of a prompt: its letters are tokens, which an untaught model hardly tells apart where they are few."""
FRESH = 16
"""Pictures per prompt that a policy is measured with."""
LOOKS = 3
"""Times that it is measured in a run, beside the start."""


@dataclass(frozen=True)
class Drawing:
    """An algorithm, and the guidance of the policy that it trains."""

    algorithm: Algorithm
    guidance: float


@dataclass(frozen=True)
class Cast:
    """How far a picture's mean colour leans to the asked one, in deviations of the colours that single codes have.

    The decoder is untaught: what a code looks like was never said to anyone.
    """

    middle: tuple[float, ...]
    spread: float

    def __call__(self, group: Group) -> list[float]:
        wanted = np.array([1.0 if colour == group.prompt.answer else -1.0 for colour in COLOURS])
        return [float(((tone(sample.image) - self.middle) * wanted).mean() / self.spread) for sample in group.samples]


def tone(picture: object) -> np.ndarray:
    """The mean colour, in [0, 1]."""
    return np.asarray(picture, np.float64).mean((0, 1)) / 255


def cast_of(policy: CodePolicy) -> Cast:
    """The reward, measured on pictures of one code each."""
    codes = [[code] * policy.family.num_codes for code in range(policy.family.vocabulary)]
    tones = np.stack([tone(picture) for picture in policy.pictures(codes)])
    return Cast(tuple(tones.mean(0).tolist()), float(tones.std(0, ddof=1).mean()))


@dataclass(frozen=True)
class CodeTask(Task[Drawing]):
    """Pictures of 16 codes out of 24, for three prompts."""

    steps: int = 180
    lr: float = 3e-4

    def run(self, algorithm: Drawing, seed: int, make_sampler: MakeSampler | None = None) -> Ended:
        """Train, and measure the reward on the way."""
        folder = keep(None, f"evidence-janus-{seed}", "config.json", lambda place: janus.build("janus", place, seed))
        policy = CodePolicy(CodePolicyConfig(str(folder), guidance=algorithm.guidance), algorithm.algorithm.shadows)
        reward, prompts = cast_of(policy), [Prompt(colour, " ".join([colour] * TIMES), answer=colour) for colour in COLOURS]
        settings = TrainSettings(
            steps=self.steps,
            prompts_per_step=len(prompts),
            micro_batch=100_000,
            seed=seed,
            optimizer=OptimizerSettings(lr=self.lr),
        )
        own = algorithm.algorithm.with_length(policy.family.num_codes)
        rewards = RewardRunner([NamedReward("cast", reward)])
        trainer = Trainer(policy, own, (make_sampler or Shuffled)(prompts, seed), rewards, settings)
        curve = [self.figure(policy, reward, prompts, seed)]
        for _ in range(LOOKS):
            for _ in range(self.steps // LOOKS):
                trainer.step()
            curve.append(self.figure(policy, reward, prompts, seed))
        return Ended(curve[-1], weights_of(policy), tuple(curve))

    def figure(self, policy: CodePolicy, reward: Cast, prompts: Sequence[Prompt], seed: int) -> float:
        """The mean reward of fresh pictures."""
        asked = [Request(one, FRESH, i, seed=10_000 * (seed + 1) + i) for i, one in enumerate(prompts)]
        return mean([mean(reward(group)) for group in policy.rollout(asked).groups])
