"""Nothing that moves from step to step is forgotten by a checkpoint: found by looking at all objects, not at a list of them."""

import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mmrl.algorithms.planners.video import DifficultyAware
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.app.config import run as configs
from mmrl.app.run.build import build
from mmrl.core.ranks import Ranks
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.evaluate import EvaluationSettings, Evaluator
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.calls import Calling
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.trainer import Trainer
from tests.reliability.soak import words
from tests.support.fakes import FakeTextPolicy, prompts, right_letter
from tests.support.running_reward import Running
from tests.training.run_ranks import COLUMNS, PLANNERS, helped_trainer

NOT_KEPT = {
    "._before": "is taken anew at every step",
    "._latest": "is of the last step, and read when that step is saved",
    ".meter": "what a step cost",
    ".audit": "looks at rollouts, and begins again with a resumed run",
    ".reader.gate": "looks at rollouts, and begins again with a resumed run",
    ".memory.guided": "of one step, renewed at its beginning",
    ".planner.requests": "of one step, renewed at its beginning",
    ".cuts": "of one step, renewed at its beginning",
    ".climbing": "of one step, renewed at its beginning",
    ".grad": "of the last update, and set to nothing before the next",
    ".said": "of this process, for those who call `look`",
    "time/": "seconds",
    "._step_count": "torch counts calls, and only for a warning",
    ".param_groups.0.<order>": "names, in an order of torch's",
    "._last_lr": "follows from the number of updates",
    "_opt_called": "torch's own note of calls",
    ".encoder.known": "prompts as encoded before: one by one, so always alike",
    ".encoder.nothing": "encoded once, always alike",
    ".encode.": "frames as decoded before, always alike",
    "._step": "torch's own",
    ".net.": "follows from the weights",
    "._followed": "a resumed policy lets its generator follow the weights before it samples again",
    "._thread": "works for rewards",
    ".weights._adapters": "layers of the network, whose trained weights are kept",
    ".weights._outer": "tensors of the reference and the network, which are kept",
    ".weights._is_bare": "asked anew where a tensor was written or loaded",
    ".training": "mode of a module",
}
"""What moves and is no part of checkpoints, and why a resumed run is the same without it."""


OURS = ("mmrl", "tests", "torch.optim", "types")
"""Modules whose objects are looked into."""


def leaves(root: Any) -> dict[str, str]:
    """Path -> fingerprint of all values reachable from `root`, along every way that leads there without a circle."""
    return dict(walk(root, (), {}))


def walk(value: Any, above: tuple[int, ...], known: dict[int, list[tuple[str, str]]]) -> list[tuple[str, str]]:
    fingerprint = simple(value)
    if fingerprint is not None:
        return [("", fingerprint)]
    if id(value) in above:
        return []
    if id(value) not in known:
        inside = [(name, walk(item, (*above, id(value)), known)) for name, item in parts(value)]
        known[id(value)] = [(f".{name}{path}", found) for name, below in inside for path, found in below]
    return known[id(value)]


def simple(value: Any) -> str | None:
    """A fingerprint of what has no parts."""
    if isinstance(value, bool | int | float | str | bytes | type(None)):
        return repr(value)
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} {hash(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())}"
    if isinstance(value, np.ndarray):
        return f"{value.shape} {hash(value.tobytes())}"
    if isinstance(value, torch.Generator):
        return str(hash(value.get_state().numpy().tobytes()))
    if isinstance(value, random.Random):
        return str(hash(value.getstate()))
    if isinstance(value, np.random.Generator):
        return str(value.bit_generator.state)
    return repr(sorted(map(repr, value))) if isinstance(value, set | frozenset) else None


def parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What is inside, by name; a mapping's order is one of its parts, for a cache forgets in that order."""
    if isinstance(value, Mapping):
        yield "<order>", repr([key if isinstance(key, int | str | bytes | tuple) else "" for key in value])
        for i, (key, item) in enumerate(value.items()):
            yield str(key) if isinstance(key, int | str | tuple) else str(i), item
    elif isinstance(value, list | tuple | deque):
        yield "<length>", len(value)
        for i, item in enumerate(value):
            yield str(i), item
    elif isinstance(value, nn.Module):
        yield from value.state_dict(keep_vars=True).items()
    elif hasattr(value, "__dict__") and not isinstance(value, type) and type(value).__module__.startswith((*OURS, "running")):
        # a dataclass leaves a default in its class until it is changed
        defaults = {f.name: getattr(value, f.name, None) for f in fields(value)} if is_dataclass(value) else {}
        yield from (defaults | vars(value)).items()


def unlike(a: dict[str, str], b: dict[str, str]) -> list[str]:
    """Paths whose values differ, or that only one has; without those that need not be kept."""
    names = {name for name in a.keys() | b.keys() if a.get(name) != b.get(name)}
    return sorted(name for name in names if not any(part in name for part in NOT_KEPT))


def small(evaluate: bool = True) -> Trainer:
    """With a planner, a reward and a cache that remember, and several shuffled minibatches."""
    algorithm = replace(PRESETS["grpo"], planner=DifficultyAware(window=8), minibatches=2, epochs=2)
    policy = FakeTextPolicy(shadows=frozenset({"ref", "ema"}))
    rewards = [NamedReward("letter", right_letter, call=Calling(cache=20)), NamedReward("running", Running())]
    optimizer = OptimizerSettings(lr=1e-2, lr_schedule="cosine", warmup_steps=3)
    settings = TrainSettings(steps=9, prompts_per_step=3, micro_batch=1000, optimizer=optimizer)
    runner = RewardRunner(rewards)
    watched = RewardRunner([*rewards, NamedReward("again", Running(scale=2.0), weight=0.0)])
    held_out = Evaluator(policy, prompts()[:2], watched, EvaluationSettings(), "greedy")
    sampler = Shuffled(prompts(), seed=3)
    return Trainer(policy, algorithm.with_length(4), sampler, runner, settings, evaluator=held_out)


def real(kind: str) -> Callable[[], Trainer]:
    return lambda: build(configs.load(words(kind, 9)[0], words(kind, 9)[1:])).trainer


def helped(name: str) -> Callable[[], Trainer]:
    """A planner that gives hints."""

    def make() -> Trainer:
        watched = RewardRunner([NamedReward("letter", right_letter)])
        held_out = Evaluator(FakeTextPolicy(), prompts()[:2], watched, EvaluationSettings(), "greedy")
        data = [replace(prompt, columns={**prompt.columns, **COLUMNS}) for prompt in prompts()]
        return helped_trainer(PLANNERS[name], data, evaluator=held_out)

    return make


def advance(trainer: Trainer, steps: int) -> None:
    for _ in range(steps):
        trainer.step()
    trainer.evaluate()


def saved(trainer: Trainer, folder: Path) -> dict[str, Any]:
    checkpoints = Checkpoints(folder)
    checkpoints.save(trainer.index, trainer.state_dict(), Ranks())
    return checkpoints.load()


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(small, id="small"),
        *(pytest.param(helped(name), id=name) for name in ("scaf_grpo", "sage", "sage_light", "spo_segment")),
        pytest.param(real("text"), id="text", marks=pytest.mark.slow),
        pytest.param(real("video"), id="video", marks=pytest.mark.slow),
        pytest.param(real("flow"), id="flow", marks=pytest.mark.slow),
    ],
)
def test_all_that_moves_is_put_back(make: Callable[[], Trainer], tmp_path: Path):
    whole, fresh = make(), make()
    at_start = leaves(fresh)
    advance(whole, 3)
    state, then = saved(whole, tmp_path), leaves(whole)
    moved = unlike(at_start, then)
    assert len(moved) > 20 and {".index"} <= set(moved)
    fresh.load_state_dict(state)
    assert unlike(leaves(fresh), then) == []
    advance(whole, 2)
    advance(fresh, 2)
    assert unlike(leaves(fresh), leaves(whole)) == []


KEPT = ["policy", "optimizer", "num_updates", "shuffle", "next_group", "sampler", "planner", "rewards", "health"]


@pytest.mark.parametrize("name", KEPT)
def test_whatever_is_forgotten_is_noticed(name: str, tmp_path: Path):
    whole, fresh = small(), small()
    nothing_yet = saved(fresh, tmp_path / "fresh")
    advance(whole, 3)
    fresh.load_state_dict(saved(whole, tmp_path / "whole") | {name: nothing_yet[name]})
    assert unlike(leaves(fresh), leaves(whole))
