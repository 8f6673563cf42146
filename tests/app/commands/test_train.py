"""`mmrl train` on a chain of stages: its steps, its reference, its kills, and what other commands say of it."""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.app.commands import check, plan
from mmrl.app.commands.train import TrainArguments, run_job, run_training
from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved
from mmrl.app.run.build import on_the_terminal
from mmrl.app.run.folder import RunDir
from mmrl.core.protocols import Callback
from mmrl.core.types import Examples
from mmrl.training.checkpoints.save import Checkpoints

WORDS = [
    *("stage.0.steps=2", "stage.1.steps=2", "evaluation.num_prompts=2", "evaluate_every=0", "samples_every=0"),
    *("save_every=1", "checkpoint.keep=0", "policy.lora.rank=2", "data.size=8", "prompts_per_step=2"),
    'stage.1.algorithm.objective=[{kind="Clip"}, {kind="ReferenceKL", coef=0.1}]',
]


class Killer(Callback):
    """Kills the process at the end of a step, before its checkpoint."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, step: int, metrics: Mapping[str, float], examples: Examples | None) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def resolved(folder: Path, *words: str) -> Resolved:
    """The chain, whose second stage is rewarded for different letters."""
    return configs.load("tiny/cold_start", [*WORDS, 'stage.1.reward=[{use="./letters.py"}]', f"output={str(folder)!r}", *words])


def killed(at: Resolved, step: int, resume: Path | None = None) -> None:
    """Train in a child that is killed after this step."""
    child = os.fork()
    if child == 0:
        try:
            run_job(at, resume, watchers=lambda config: [Killer(step)])
        finally:
            os._exit(1)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL


def lines(run: RunDir) -> list[dict[str, Any]]:
    """What the run measured, without times."""
    read = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in read]


def same(one: Any, other: Any) -> bool:
    """Are two states equal bit for bit?"""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def test_a_chain_killed_on_both_sides_of_a_border_is_the_chain_that_nobody_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("letters.py").write_text("def letters(group):\n    return [len(set(sample.text)) for sample in group.samples]\n")
    whole = run_training(resolved(tmp_path / "whole"))
    assert "stage 1 of 2, cold start: step 2 of 2" in (said := capfd.readouterr().err)
    assert "stage 2 of 2, rl: step 2 of 2" in said and "cold start, then rl, " in said
    killed(broken := resolved(tmp_path / "broken"), 2)
    assert Checkpoints(RunDir(tmp_path / "broken").checkpoints).newest_whole() == 1
    killed(broken, 3, tmp_path / "broken")
    again = run_training(broken, tmp_path / "broken")
    assert lines(again) == lines(whole)
    steps = [line["step"] for line in lines(whole) if "loss" in line]
    assert steps == [1, 2, 3, 4] and [line["run/stage"] for line in lines(whole) if "loss" in line] == [1, 1, 2, 2]
    states = {name: Checkpoints(run.checkpoints).load(4) for name, run in (("whole", whole), ("broken", again))}
    assert same(states["whole"]["policy"], states["broken"]["policy"])
    assert same(states["whole"]["optimizer"], states["broken"]["optimizer"])
    # the reference of the second stage is what the first one ended with, not the model without its adapter
    border, end = Checkpoints(whole.checkpoints).load(2)["policy"], states["whole"]["policy"]
    assert border["shadows"] == {} and same(end["shadows"]["ref"], border["weights"])
    assert not same(end["weights"], border["weights"])
    with pytest.raises(ValueError, match=r"stage.0.steps is 3, .* hold the place in the chain of that"):
        run_training(resolved(tmp_path / "whole", "stage.0.steps=3"), whole.path)


def test_a_later_stage_whose_data_does_not_fit_is_refused_before_the_model_loads(tmp_path: Path):
    words = ["policy.model=/nowhere", 'stage.1={kind="sft", steps=1, column="thought"}']
    with pytest.raises(ValueError, match=r"stage 2 of 2, sft: prompt 'train-0-0' has nothing in the column 'thought', where a"):
        run_training(resolved(tmp_path / "run", *words))


def test_check_and_plan_look_at_every_stage(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    assert check.check("tiny/cold_start", WORDS)
    said = capfd.readouterr().out
    assert "stage 1 of 2, cold start" in said and "stage 2 of 2, rl" in said and "no reward, for none" in said
    assert plan.plan(TrainArguments(["tiny/cold_start", *WORDS]), card="24GB")
    assert "stage 2 of 2, rl" in capfd.readouterr().out
    assert on_the_terminal(configs.load("tiny/cold_start").config)
