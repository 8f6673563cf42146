"""Four steps of several methods on the fake policy, by one process or several: OUT PROCESSES; the first process writes OUT."""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from accelerate import Accelerator

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.advantages.spread import WhereSpread
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.planners.base import DynamicSampling
from mmrl.algorithms.planners.begun import BudgetCuts, ThinkOrNot
from mmrl.algorithms.planners.extra_samples import ByDoubt
from mmrl.algorithms.planners.hints import Scaffold
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.algorithms.shaping.thinking import BudgetReward
from mmrl.algorithms.weights.importance import RolloutCorrection
from mmrl.core.ranks import Ranks
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Credit, Group, Prompt, Request, Rollouts, Scores
from mmrl.training.checkpoints.state import copy_state
from mmrl.training.optim import OptimizerSettings
from mmrl.training.trainer import Trainer
from tests.flow.test_learning import small
from tests.support.fakes import FakeTextPolicy, prompts, right_letter
from tests.support.presets import VIDEO, of_files
from tests.support.published import PublishingPolicy, random_waits
from tests.support.trainers import at_most_one, make_trainer, weights
from tests.training.test_trainer import half_dead
from tests.training.test_video_methods import CLIPS, video_trainer


@dataclass(frozen=True)
class ByLikelihood:
    """A = (r - group mean) exp(mean recorded log p of the row): an advantage that looks at what was recorded."""

    norm: GroupNorm = field(default_factory=GroupNorm)
    min_group_size: int = 2

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        credit, mask = self.norm(scores, rollouts), rollouts.action_mask
        likelihood = (rollouts.recorded[ROLLOUT_LOGPROBS] * mask).sum(1) / mask.sum(1).clamp(min=1)
        return replace(credit, values=credit.values * likelihood.exp()[:, None])


STEPS, SGD = 4, OptimizerSettings(kind="sgd", lr=0.5)
CORRECTION = RolloutCorrection(mode="token_truncate", high=2.0)
DAPO, ONCE = PRESETS["dapo"], PRESETS["grpo"].planner
ALGORITHMS = {
    "grpo": PRESETS["grpo"],
    "minibatches": replace(DAPO, planner=ONCE, epochs=2, minibatches=3),
    "dynamic": replace(DAPO, planner=DynamicSampling(max_rounds=10), minibatches=1),
    "high_entropy": replace(PRESETS["high_entropy"], planner=ONCE, minibatches=1),
    "recorded": replace(PRESETS["grpo"], advantage=ByLikelihood()),
    "heated": replace(PRESETS["grpo"], planner=ByDoubt()),
    "spread": replace(PRESETS["grpo"], advantage=WhereSpread(hold=0, start=1)),
}
HELPED = replace(PRESETS["scaf_grpo"], planner=Scaffold(after=1))
BEGUN = {
    "adapt_think": replace(PRESETS["adapt_think"], planner=ThinkOrNot("a", "d")),
    "hbpo": replace(PRESETS["hbpo"], shaping=(BudgetReward(mark=""),)),
    "anytime": replace(PRESETS["anytime"], planner=BudgetCuts(mark=".", forced="d")),
}
"""Groups that are begun in parts, in letters."""
CUT = ("s_grpo", "spo_segment", "tempo", "treerl")
"""Presets whose answers are cut in places, or branch there."""
PLANNERS = {name: PRESETS[name] for name in [*of_files("hints"), *CUT, "arpo_gui"]} | {"scaf_grpo": HELPED} | BEGUN
COLUMNS = {"hints": ["a", "ab"], "hint": "ab", "solution": "abcd", "policy": "ab", "reference_accuracy": 0.3}
DRAWN = ("dgpo", "crd", "flow_dpo", "sol_rl")
"""They draw, and compare the samples of a prompt in the loss or choose among them."""
STATE = ("aepo", "ares", "dcpo", "hart", "remix", "riskpo", "spo", "ssr")


LAGGING = replace(DAPO, planner=DynamicSampling(max_rounds=10), minibatches=1, old="reread", importance=(CORRECTION,))
AHEAD = {"ahead": 1, "ahead_other_waits": 2}
"""The seeds of latencies that differ on every process."""


def cases() -> Iterator[tuple[str, Callable[..., Trainer]]]:
    """Name -> a trainer of these ranks."""
    for name, algorithm in ALGORITHMS.items():
        yield name, partial(make_trainer, algorithm, half_dead if name == "dynamic" else right_letter)
    told = [replace(prompt, columns={**prompt.columns, **COLUMNS}) for prompt in prompts()]
    for name, algorithm in PLANNERS.items():
        yield name, partial(helped_trainer, algorithm, told)
    for name in STATE:
        yield name, partial(make_trainer, PRESETS[name], at_most_one, prompts_per_step=8)
    for name in DRAWN:
        yield name, partial(make_trainer, small(name), prompts_per_step=4, micro_batch=20)
    for name, waits in AHEAD.items():
        yield name, partial(ahead_trainer, waits)
    mixed = [*CLIPS[:3], *prompts()[3:]]
    for name in VIDEO:
        yield name, partial(video_trainer, name, mixed)


def hard(group: Group) -> list[float]:
    """Right is what begins with two letters, which half of the prompts reach by themselves."""
    wanted = "ab" if int(group.prompt.id) % 2 else group.prompt.answer
    return [float((sample.text or "").startswith(wanted)) for sample in group.samples]


class Hinting(FakeTextPolicy):
    """Notes are hints as a planner reads them."""

    def note(self, text: str, request: Request) -> str:
        return json.dumps({f"level_{k}": text for k in (1, 2, 3)})


def helped_trainer(algorithm: Algorithm, data: Sequence[Prompt], **more: Any) -> Trainer:
    """A planner's method on prompts that bring hints, half of them hard."""
    return make_trainer(algorithm, hard, policy=Hinting(), sampler=Shuffled(data, seed=0), **more)


def ahead_trainer(waits: int, ranks: Ranks, **more: Any) -> Trainer:
    """One whose steps are sampled while the step before trains, in several rounds."""
    policy = PublishingPolicy(waits=random_waits(10 * waits + ranks.rank))
    return make_trainer(LAGGING, half_dead, policy=policy, ranks=ranks, steps=STEPS, ahead=1, **more)


def resumed(accelerator: Any, ranks: Ranks) -> torch.Tensor:
    """The weights of such a run that is stopped after two steps, and goes on in another trainer."""
    first, again = (ahead_trainer(waits, ranks, optimizer=SGD) for waits in (3, 4))
    for trainer in (first, again):
        trainer.policy.prepare(accelerator)
    for _ in range(2):
        first.step()
    state = ranks.gather(copy_state(first.state_dict()))[0]
    first.producer.close()
    again.load_state_dict(state)
    for _ in range(2):
        again.step()
    again.producer.close()
    return weights(again)


def trained(accelerator: Any) -> dict[str, Any]:
    ranks = Ranks(accelerator) if accelerator.num_processes > 1 else Ranks()
    results: dict[str, Any] = {}
    for name, make in cases():
        trainer = make(ranks=ranks, optimizer=SGD)
        trainer.policy.prepare(accelerator)
        metrics = [trainer.step() for _ in range(STEPS)]
        trainer.producer.close()
        results[name] = {"metrics": metrics, "weights": weights(trainer)}
    results["ahead"]["resumed"] = resumed(accelerator, ranks)
    return results


def main(out: str, processes: str) -> None:
    torch.set_num_threads(1)
    accelerator: Any = Accelerator(cpu=True)
    assert accelerator.num_processes == int(processes)
    results = trained(accelerator)
    if accelerator.is_main_process:
        torch.save(results, out)
    Ranks(accelerator).close()
    os._exit(0)  # gloo's threads sometimes abort the interpreter's own farewell on a busy machine


if __name__ == "__main__":
    main(*sys.argv[1:])
