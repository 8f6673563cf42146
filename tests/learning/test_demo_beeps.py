"""When does it beep? The demo of sounds on three seeds: hurried answers teach to hear, and the reward to say it exactly."""

import json
from pathlib import Path

import pytest

from mmrl.app.config import run as configs
from mmrl.app.run.build import build
from mmrl.app.run.folder import RunDir
from mmrl.lab import demos
from mmrl.training.checkpoints.save import Checkpoints

METRIC = "eval/temporal_iou"
HELD_OUT = "evaluation.num_prompts=128"


def by_another_sound(run: RunDir) -> float:
    """Overlap of the trained model's answers where each question comes with the sound of the next one."""
    job = build(configs.load(str(run.config_file), [HELD_OUT, "evaluation.data.heard='another'"]))
    job.policy.load_state_dict(Checkpoints(run.checkpoints).load()["policy"])
    assert job.evaluator is not None
    return job.evaluator.run(0)[0][METRIC]


@pytest.mark.evidence
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_reward_teaches_when_a_tone_is_heard(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path / "cache"))
    run = demos.run("beeps", tmp_path / "run", seed, [HELD_OUT])
    found = [line[METRIC] for line in map(json.loads, run.metrics_file.read_text().splitlines()) if METRIC in line]
    before, after = found[0], found[-1]
    assert after - before >= 0.15 and after >= 0.65 and by_another_sound(run) <= 0.3
