"""Rewards in configs: how they are called, held-out ones, rewards inside rewards; GDPO and Pref-GRPO in tiny runs."""

import math
import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.app.config import run as configs
from mmrl.app.run.build import build
from mmrl.app.toml.tables import Table
from mmrl.training.rewards.calls import Calling
from mmrl.training.rewards.runner import Transform

pytestmark = pytest.mark.usefixtures("empty_desk")


def loaded(name: str, more: str, *words: str) -> configs.Resolved:
    """A shipped config with further TOML at its end, and overrides."""
    table = configs.load(name, words).table
    extra = tomllib.loads(more)
    for key, value in extra.items():
        known: Any = table.values.get(key, {})
        joined = [*known, *value] if isinstance(known, list) else {**known, **value}
        table.set((key,), joined, "more")
    return configs.resolve(table)


CALLED = """
[[reward]]
use = "length"
name = "watched"
weight = 0.0
timeout_s = 5.0
call = { where = "thread", workers = 2, retries = 3, cache = 100 }
transform = { scale = 2.0, high = 1.0 }
"""


def test_how_a_reward_is_called_survives_the_run_folder(tmp_path: Path):
    resolved = loaded("tiny/image", CALLED)
    reward = resolved.config.reward[-1]
    assert reward.call == Calling("thread", workers=2, retries=3, cache=100)
    assert reward.transform == Transform(scale=2.0, high=1.0)
    configs.save(resolved.config, tmp_path / "config.toml")
    again = configs.resolve(Table.read(tmp_path / "config.toml"))
    assert again.config.reward == resolved.config.reward and again.config.evaluation == resolved.config.evaluation


MINE = """
import collections
made = collections.Counter()

class Mine:
    def __init__(self, k: float = 1.0):
        made[k] += 1
        self.k = k

    def __call__(self, group):
        return [self.k * len(s.text or "") for s in group.samples]
"""


def test_held_out_rewards_are_watched_and_equal_ones_are_made_once(tmp_path: Path):
    (tmp_path / "mine.py").write_text(MINE)
    more = """
[[reward]]
use = "./mine.py:Mine"
name = "first"
k = 2.0
weight = 0.001
[[reward]]
use = "./mine.py:Mine"
name = "second"
k = 2.0
weight = 0.0
[[evaluation.reward]]
use = "./mine.py:Mine"
name = "unseen"
k = 3.0
[[evaluation.reward]]
use = "./mine.py:Mine"
name = "seen"
k = 2.0
"""
    job = build(loaded("tiny/image", more, "steps=1", "evaluation.num_prompts=2"))
    assert job.evaluator is not None
    function = job.trainer.collector.rewards.rewards[-1].function
    module = __import__("sys").modules[type(function).__module__]
    assert dict(module.made) == {2.0: 1, 3.0: 1}
    metrics = job.trainer.step()
    assert "reward/unseen" not in metrics and metrics["reward/first"] == metrics["reward/second"]
    found, examples = job.evaluator.run(0)
    assert found["eval/unseen"] == pytest.approx(1.5 * found["eval/seen"]) and found["eval/seen"] == found["eval/first"]
    assert examples.scores.weights.tolist()[-2:] == [0, 0]
    trained = sum(weight * found[f"eval/{name}"] for weight, name in ((1.0, "iou"), (0.1, "length"), (0.001, "first")))
    assert found["eval/total"] == pytest.approx(trained)


def trained(resolved: configs.Resolved) -> tuple[dict[str, float], bool]:
    """The last step's metrics, and whether the weights moved."""
    job = build(resolved)
    before = [p.detach().clone() for p in job.policy.parameters()]
    metrics: dict[str, float] = {}
    for _ in range(resolved.config.steps):
        metrics = job.trainer.step()
    moved = any(not torch.equal(a, b) for a, b in zip(before, job.policy.parameters(), strict=True))
    return metrics, moved


def test_pref_grpo_trains_on_win_rates():
    """A scorer of the shelf inside pairwise_win_rate, pictures from a tiny Stable Diffusion 3."""
    words = ["steps=2", "algorithm.preset=pref_grpo", "algorithm.schedule.trained_per_row=3", "evaluation.num_prompts=0"]
    resolved = configs.load("tiny/flow")
    resolved.table.set(("reward",), [{"use": "pairwise_win_rate", "scorer": {"use": "jpeg_size"}}], "test")
    metrics, moved = trained(configs.resolve(resolved.table, words))
    assert moved and math.isfinite(metrics["loss"])
    assert metrics["reward/pairwise_win_rate"] == pytest.approx(0.5), "in every group half of all comparisons are won"
    assert metrics["reward/pairwise_win_rate/std"] > 0 and metrics["reward/pairwise_win_rate/comparisons"] == 3


def test_gdpo_trains_on_rewards_of_different_size():
    resolved = configs.load("tiny/image", ["steps=2", "algorithm.preset=gdpo", "evaluation.num_prompts=0", "reward.1.weight=1.0"])
    metrics, moved = trained(resolved)
    assert moved and math.isfinite(metrics["loss"])


def test_rewards_can_be_gated_in_a_config():
    words = ["steps=1", "evaluation.num_prompts=0", 'algorithm.shaping=[{kind = "Gate", by = "length", at_least = 0.5}]']
    metrics, _ = trained(configs.load("tiny/image", words))
    assert metrics["reward/iou_gated"] <= metrics["reward/iou"] + 1e-9
    assert "reward/length" in metrics


def test_sampling_in_parts_gives_the_same_run():
    runs = [trained(configs.load("tiny/image", ["steps=2", "evaluation.num_prompts=0", f"rollout_parts={n}"]))[0] for n in (1, 4)]
    for name in ("reward/iou", "reward/total", "loss", "rollout/length"):
        assert runs[0][name] == pytest.approx(runs[1][name], abs=1e-4), name
