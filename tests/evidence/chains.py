"""Chains of stages for the policy of letters: the real trainer, miners and kinds of stages, and what a run costs."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.kinds import DPO, SFT
from mmrl.algorithms.miners import Miner
from mmrl.algorithms.objectives.given import Preference
from mmrl.algorithms.planners.base import one_request_each
from mmrl.algorithms.planners.taught import Taught
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.core.readings import LOGPROBS
from mmrl.core.types import Prompt, Reading, Request, Rollouts, Trace
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.trainer import Trainer
from tests.evidence.task import Counted, Ended, Figure, MakeSampler, Score, Task, weights_of

BACKWARD = 3
"""What a row costs that is read with a gradient; without one it costs 1."""
TAG = "d"
"""The letter that stands for <think> and for </think>."""


@dataclass
class Costly(Counted):
    """The policy of letters, which counts the rows that pass its network."""

    cost: int = 0

    def rollout(self, requests: Sequence[Request], sampling: Any = None) -> Rollouts:
        self.cost += sum(request.count for request in requests if not request.is_written)
        return super().rollout(requests, sampling)

    def read(self, trace: Trace, readings: Iterable[Reading], mask: Tensor) -> dict[Reading, Tensor]:
        wanted = list(readings)
        for model, _ in {(one.model, one.view) for one in wanted}:
            self.cost += len(mask) * (BACKWARD if torch.is_grad_enabled() and model == LOGPROBS.model else 1)
        return super().read(trace, wanted, mask)


@dataclass(frozen=True)
class InLetters(Taught):
    """Taught, with a thought's tags as letters."""

    def first(self, prompts: Sequence[Prompt], group_size: int, first_id: int, seed: int) -> Sequence[Request]:
        found = super().first(prompts, group_size, first_id, seed)
        return [replace(request, written=spelled(request.text)) for request in found]


def spelled(text: str) -> str:
    return text.replace("<think>", TAG).replace("</think>", TAG).replace("\n", "")


@dataclass
class Run:
    """A chain under way: its stages are calls, each on the weights that the one before left, with an optimizer of its own."""

    task: "ChainTask"
    policy: Costly
    prompts: Sequence[Prompt]
    seed: int
    lr: float
    stages: int = field(default=0, init=False)

    def train(
        self, algorithm: Algorithm, prompts: Sequence[Prompt], *, steps: int = 0, until: float = 1.0, faster: float = 1.0
    ) -> None:
        """Take steps, or with 0 until this share of the whole cost is reached; without prompts nothing is left to learn."""
        if not prompts:
            return
        self.stages += 1
        self.policy.end_step(rebase=True)
        seed = self.seed + 1_000 * self.stages
        settings = TrainSettings(
            steps=10_000,
            prompts_per_step=self.task.prompts_per_step,
            micro_batch=100_000,
            seed=seed,
            optimizer=OptimizerSettings(lr=self.lr * faster / algorithm.updates),
        )
        rewards = RewardRunner([NamedReward(name, function) for name, function in self.task.rewards])
        own = algorithm.with_length(self.policy.length)
        trainer = Trainer(self.policy, own, Shuffled(prompts, seed), rewards, settings)
        taken, most = 0, until * self.task.cost
        while taken < steps if steps else self.policy.cost < most:
            trainer.step()
            taken += 1

    def sft(
        self, prompts: Sequence[Prompt], *, steps: int = 0, until: float = 1.0, dropout: float = 0.0, column: str = ""
    ) -> None:
        """Teach the completions of a column."""
        planner = InLetters(column=column, thought_dropout=dropout)
        self.train(replace(SFT, planner=planner), prompts, steps=steps, until=until, faster=0.5)

    def dpo(self, prompts: Sequence[Prompt], *, steps: int = 0, until: float = 1.0, loss: Preference | None = None) -> None:
        """Learn from the pairs in the columns chosen and rejected."""
        term = loss or Preference(beta=0.1)
        self.train(replace(DPO, objective=((1.0, term),)), prompts, steps=steps, until=until)

    def mine(self, miner: Miner, *rewards: Score, prompts: Sequence[Prompt] = ()) -> list[Prompt]:
        """The rows that a stage of the kind filter or pairs finds, by these rewards or the task's own."""
        self.stages += 1
        asked = one_request_each(prompts or self.prompts, miner.num_samples, 0, self.seed + 1_000 * self.stages)
        used = rewards or tuple(function for _, function in self.task.rewards)
        rows: list[Prompt] = []
        for group in self.policy.rollout(asked).groups:
            totals = [sum(values) for values in zip(*(score(group) for score in used), strict=True)]
            found = miner(group.samples, totals).rows
            rows += [replace(group.prompt, columns={**group.prompt.columns, **row}) for row in found]
        return rows


Chain = Callable[[Run], None]
"""The stages of a recipe, one call each."""


@dataclass(frozen=True)
class ChainTask(Task[Chain]):
    """Prompts, rewards and a start for the policy of letters, and what a chain may cost."""

    prompts: Callable[[int], Sequence[Prompt]]
    """From a seed."""
    rewards: tuple[tuple[str, Score], ...]
    figure: Figure
    start: tuple[float, ...] = (1, 1, 1, 1, 1)
    length: int = 4
    cost: int = 30_000
    """Rows that pass the network: sampled or read 1, trained `BACKWARD`."""
    prompts_per_step: int = 24
    rates: tuple[float, ...] = (1e-2, 3e-2)
    """Learning rates of the stages that reinforce: a run is the best of them, for a method as for its twin."""
    measured_on: Callable[[int], Sequence[Prompt]] | None = None
    """The prompts that the figure is of, from the seed; None: those that trained."""

    def run(self, algorithm: Chain, seed: int, make_sampler: MakeSampler | None = None) -> Ended:
        """Go through the chain at each learning rate, and measure; the best run."""
        return max((self.run_at(lr, algorithm, seed) for lr in self.rates), key=lambda ended: ended.figure)

    def run_at(self, lr: float, chain: Chain, seed: int) -> Ended:
        policy, prompts = Costly(length=self.length, start=self.start, seed=seed), self.prompts(seed)
        chain(Run(self, policy, prompts, seed, lr))
        asked = self.measured_on(seed) if self.measured_on is not None else prompts
        return Ended(self.figure(policy.fresh(asked, seed)), weights_of(policy))
