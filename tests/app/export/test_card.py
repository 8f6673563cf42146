"""The results of a model card where the evaluations of a run are not of the same prompts or rewards."""

from pathlib import Path

import torch

from mmrl.app.export.card import results
from mmrl.app.report.data import load
from mmrl.app.run.folder import RunDir
from mmrl.app.run.trackers import JsonlTracker
from mmrl.core.types import Group, Prompt, Sample, Scores
from mmrl.training.callbacks import Examples


def evaluated(run: RunDir, step: int, prompt: str, *values: float) -> None:
    """Keep an evaluation of one prompt, with a reward per value."""
    names = tuple(f"reward{i}" for i in range(len(values)))
    scores = Scores(names, torch.tensor([values]), torch.zeros(1, len(values), dtype=torch.long), torch.ones(len(values)))
    JsonlTracker(run).write(step, Examples([Group(0, Prompt(prompt, "?"), (Sample(text="a"),))], scores), "eval")


def results_of(run: RunDir) -> list[str]:
    run.config_file.write_text("steps = 5\n")
    return results(load(run.path), 5)


def test_other_prompts_than_before_training_stand_alone(tmp_path: Path):
    run = RunDir.create(tmp_path / "run")
    evaluated(run, 0, "before", 0.25)
    evaluated(run, 5, "after", 0.75)
    lines = results_of(run)
    assert lines[0].startswith("Before training other held-out prompts or rewards were evaluated")
    assert "| Reward | 0.750 | too few prompts |" in lines


def test_a_reward_that_only_one_evaluation_has_is_not_compared(tmp_path: Path):
    run = RunDir.create(tmp_path / "run")
    evaluated(run, 0, "p", 0.25, 0.5)
    evaluated(run, 5, "p", 0.75)
    rows = [line for line in results_of(run) if line.startswith("| R") or line.startswith("| r")]
    assert rows == ["| Reward | 0.750 | 0.750 | too few prompts | +0.000 | too few prompts |"]
