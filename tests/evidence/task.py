"""A task made for a method's claim, and one run of an algorithm on it: a real policy, the real trainer, a number at the end."""

import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.surrogates import Reinforce
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.algorithms.statistics import to_credit, totals_and_keep
from mmrl.core.protocols import PromptSampler
from mmrl.core.types import Credit, Group, Prompt, Request, Rollouts, Scores
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.trainer import Trainer
from tests.support.fakes import LETTERS, FakeTextPolicy, vector

FRESH = 64
"""Samples per prompt that a policy is measured with: new ones, which trained nothing."""
BACKWARD = 3
"""What a row or call with a gradient costs in rows or calls without: its own, and a backward pass of twice that."""
Score = Callable[[Group], list[float]]
Figure = Callable[[Sequence[Group]], float]
MakeSampler = Callable[[Sequence[Prompt], int], PromptSampler]
Way = TypeVar("Way")
"""What a task runs: an algorithm, or a chain of stages."""
TOLD = re.compile(r"(?:: |is )([abcd.]+)\b")
"""Letters that a sentence under a prompt tells: "Begin like this: ab", "The right answer is c."""


def numbers(prompt: Prompt) -> list[float]:
    """The prompt's three numbers, from its column or as the greys of the thirds of its picture, 0 where it is black."""
    pictures = [one for one in prompt.media if isinstance(one, Image.Image)]
    if not pictures:
        return vector(prompt)
    grey = np.asarray(pictures[0].convert("L"), dtype=np.float32)
    return [float(third.mean()) / 64 for third in np.split(grey, 3, axis=1)]


class Listening(nn.Module):
    """A small net over what the prompt shows, and a direct way from letters that the prompt tells to letters that are written."""

    def __init__(self, others: int, start: Sequence[float]) -> None:
        super().__init__()
        last = nn.Linear(32, len(LETTERS))
        self.net = nn.Sequential(nn.Linear(3 + others, 32), nn.Tanh(), last)
        self.trust = nn.Parameter(torch.tensor(4.0))
        with torch.no_grad():
            last.bias.add_(torch.tensor(start).log())

    def forward(self, x: Tensor) -> Tensor:
        told = x[..., 3 : 3 + len(LETTERS)]
        return self.net(torch.cat([x[..., :3], x[..., 3 + len(LETTERS) :]], -1)) + self.trust * told


@dataclass
class Counted(FakeTextPolicy):
    """The policy of letters, which counts what it samples, begins where a task wants it, and follows what a prompt tells it.

    `start` gives the odds of a, b, c, d and the stop at the start; what the prompt and the position say comes on top.
    """

    start: tuple[float, ...] = (1, 1, 1, 1, 1)
    seed: int = 0
    sampled: int = 0
    """Samples so far, those that only measure left out."""

    def __post_init__(self) -> None:
        for name in ("policy", "ref", "ema", "previous", "start"):
            torch.manual_seed(self.seed)
            self.nets[name] = Listening(len(LETTERS) + self.length, self.start)

    def _vectors(self, requests: list[Request]) -> dict[str, Tensor]:
        """The three numbers, and the letters that the prompt tells at their positions: as shown, plain, and under each view."""
        prompts = self._prompts(requests)
        return {name: torch.stack([self.seen(prompt) for prompt in some]) for name, some in prompts.items()}

    def seen(self, prompt: Prompt) -> Tensor:
        return torch.cat([torch.tensor(numbers(prompt)).expand(self.length, 3), self.told(prompt)], -1)

    def told(self, prompt: Prompt) -> Tensor:
        """One 1 per position whose letter a line below the first one tells."""
        letters = TOLD.findall(prompt.text.partition("\n")[2])
        row = torch.zeros(self.length, len(LETTERS))
        for place, letter in enumerate(letters[-1][: self.length] if letters else ""):
            row[place, LETTERS.index(letter)] = 1
        return row

    def rollout(self, requests: Sequence[Request], sampling: Any = None) -> Rollouts:
        self.sampled += sum(request.count for request in requests if not request.is_written)
        return super().rollout(requests, sampling)

    def note(self, text: str, request: Request) -> str:
        """Three hints as this policy writes them: ever more of its letters."""
        return json.dumps({f"level_{k}": text[:k] for k in (1, 2, 3)})

    def fresh(self, prompts: Sequence[Prompt], seed: int) -> Sequence[Group]:
        """FRESH samples of every prompt, not counted."""
        before = self.sampled
        groups = self.rollout(fresh_of(prompts, FRESH, seed)).groups
        self.sampled = before
        return groups


@dataclass(frozen=True)
class Ended:
    """Where one run ended."""

    figure: float
    weights: Tensor
    watched: tuple[float, ...] = ()
    """The watched reward at the start, on the way and at the end."""


@dataclass(frozen=True)
class Task(ABC, Generic[Way]):
    """A situation that a claim is about, and the number that tells whether the claim holds."""

    name: str = field(compare=False)
    """Tasks that differ in it alone share the runs of their twins."""
    claim: str
    """The situation in a few words."""
    measured: str
    """The number, of fresh samples at the end; the larger the better."""
    margin: float = field(default=0.02, kw_only=True)
    """A difference is one from here on."""
    watched: str = field(default="", kw_only=True)
    """Another reward that nothing trains, by which hacking shows; empty where there is none."""

    @abstractmethod
    def run(self, algorithm: Way, seed: int, make_sampler: MakeSampler | None = None) -> Ended:
        """Train until the task's samples are drawn, and measure."""


@dataclass(frozen=True)
class LetterTask(Task[Way]):
    """Prompts, rewards and a start for the policy of letters."""

    prompts: Callable[[int], Sequence[Prompt]]
    """From a seed."""
    rewards: tuple[tuple[str, Score], ...]
    figure: Figure | None = None
    """None: the mean of the first reward."""
    start: tuple[float, ...] = (1, 1, 1, 1, 1)
    length: int = 4
    prompts_per_step: int = 24

    def measure(self, groups: Sequence[Group]) -> float:
        return (self.figure or mean_of(self.rewards[0][1]))(groups)


@dataclass(frozen=True)
class TextTask(LetterTask[Algorithm]):
    """A task that one algorithm trains on."""

    samples: int = 8_000
    """Samples that a run may draw: methods that sample more of a prompt take fewer steps."""
    steps: int | None = None
    """With it, runs are compared after so many steps, however many samples these draw."""
    lr: float = 2e-2
    """Of all updates of a step together."""

    def run(self, algorithm: Algorithm, seed: int, make_sampler: MakeSampler | None = None) -> Ended:
        """Train until the task's samples are drawn, and measure."""
        policy = self.policy(algorithm, seed)
        prompts = self.prompts(seed)
        trainer = self.trainer(algorithm, policy, (make_sampler or Shuffled)(prompts, seed), seed)
        steps = 0
        while policy.sampled < self.samples if self.steps is None else steps < self.steps:
            trainer.step()
            steps += 1
        return Ended(self.measure(policy.fresh(prompts, seed)), weights_of(policy))

    def policy(self, algorithm: Algorithm, seed: int) -> Counted:
        """The policy of letters as a run begins."""
        return Counted(length=self.length, views=algorithm.views, start=self.start, seed=seed)

    def trainer(self, algorithm: Algorithm, policy: Counted, sampler: PromptSampler, seed: int) -> Trainer:
        own, lr = algorithm.with_length(policy.length), self.lr / algorithm.updates
        return trainer_of(policy, own, sampler, self.rewards, seed, lr=lr, prompts_per_step=self.prompts_per_step)


def trainer_of(
    policy: Any,
    algorithm: Algorithm,
    sampler: PromptSampler,
    rewards: Iterable[tuple[str, Score]],
    seed: int,
    *,
    lr: float,
    **settings: Any,
) -> Trainer:
    """A trainer with rewards of weight 1, and no limit of steps or rows but those of `settings`, fields of TrainSettings."""
    usual: dict[str, Any] = {"steps": 10_000, "micro_batch": 100_000, "seed": seed, "optimizer": OptimizerSettings(lr=lr)}
    runner = RewardRunner([NamedReward(name, function) for name, function in rewards])
    return Trainer(policy, algorithm, sampler, runner, TrainSettings(**usual | settings))


def fresh_of(prompts: Sequence[Prompt], count: int, seed: int) -> list[Request]:
    """As many samples of every prompt, with seeds that no training has."""
    return [Request(prompt, count, i, seed=10_000 * (seed + 1) + i) for i, prompt in enumerate(prompts)]


def weights_of(policy: Any) -> Tensor:
    return torch.cat([p.detach().flatten() for p in policy.parameters()])


@dataclass(frozen=True)
class Row(Generic[Way]):
    """A method against its plain twin: the same but for the idea."""

    method: str
    """Name of the preset, of the sampler, of the recipe, or of the kind of policy."""
    algorithm: Way
    twin: Way
    without: str
    """What the twin has in place of the idea."""
    task: Task[Way]
    sampler: MakeSampler | None = None
    """The method's own sampler; the twin draws in shuffled epochs."""
    changes: dict[str, Any] = field(default_factory=dict[str, Any])
    """Fields of the task that this row sets otherwise."""
    short: bool = False
    """Whether `make test` runs seed 0 and asks that the method is ahead."""

    @property
    def name(self) -> str:
        return f"{self.method}-{self.task.name}"

    def outcome(self, seed: int) -> "Outcome":
        """Both runs at one seed."""
        task = replace(self.task, **self.changes)
        ours, theirs = task.run(self.algorithm, seed, self.sampler), plain_run(task, self.twin, seed)
        moved = float((ours.weights - theirs.weights).norm() / theirs.weights.norm())
        return Outcome(ours.figure, theirs.figure, moved, ours.watched, theirs.watched)


@cache
def plain_run(task: Task[Way], twin: Way, seed: int) -> Ended:
    """A twin's run, which many rows share."""
    return task.run(twin, seed)


@dataclass(frozen=True)
class Outcome:
    """One seed of a row."""

    method: float
    twin: float
    moved: float
    """How far the two policies are from each other at the end, as a share of the twin's size."""
    watched: tuple[float, ...] = ()
    twin_watched: tuple[float, ...] = ()

    @property
    def difference(self) -> float:
        return self.method - self.twin


def verdict(outcomes: Sequence[Outcome], margin: float) -> str:
    """ahead or behind where all seeds say so by more than the margin on average; level otherwise."""
    differences = [one.difference for one in outcomes]
    mean = sum(differences) / len(differences)
    if min(differences) > 0 and mean > margin:
        return "ahead"
    return "behind" if max(differences) < 0 and mean < -margin else "level"


def text_of(sample: Any) -> str:
    return sample.text or ""


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else math.nan


def of_text(score: Callable[[str, Prompt], float]) -> Score:
    """A score of every text by itself, beside its prompt."""
    return lambda group: [float(score(text_of(sample), group.prompt)) for sample in group.samples]


def mean_of(score: Score, among: Callable[[Prompt], bool] = lambda prompt: True) -> Figure:
    """The mean of a score over prompts, or over some of them."""
    return lambda groups: mean([mean(score(group)) for group in groups if among(group.prompt)])


def adding(prompt: Prompt, **columns: Any) -> Prompt:
    """The prompt with these columns beside its own, or in their place."""
    return replace(prompt, columns={**prompt.columns, **columns})


@dataclass(frozen=True)
class Raw:
    """A = r: nothing is compared with anything."""

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals, keep = totals_and_keep(scores)
        return to_credit(totals, keep, rollouts, scores)


def uncompared(algorithm: Algorithm) -> Algorithm:
    """The same with plain rewards for advantages."""
    return replace(algorithm, advantage=Raw())


def unclipped(algorithm: Algorithm) -> Algorithm:
    """The same number of updates with REINFORCE as the only term: nothing looks at how far the weights have moved."""
    return replace(algorithm, objective=((1.0, Reinforce()),))


def against(
    name: str, without: str, task: Task, /, *, changes: dict[str, Any] | None = None, short: bool = False, **twin: Any
) -> Row:
    """A preset against itself with other parts, which are those of the twin."""
    own = PRESETS[name]
    return Row(name, own, replace(own, **twin), without, task, changes=changes or {}, short=short)
