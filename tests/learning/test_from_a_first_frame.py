"""Clips from a first frame: a tiny Wan of the image-to-video class learns the way to go, and still begins with its picture."""

from dataclasses import replace
from pathlib import Path

import pytest

from mmrl.app.commands.train import run_training
from mmrl.app.config import run as configs
from mmrl.data.drawn.gliding import Glides
from mmrl.lab.tiny.flow.clip_generator import KIND
from tests.learning.test_demos_learn import SIDE, SMALL_CLIPS, gains


@pytest.mark.evidence
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_small_model_learns_where_to_go_from_a_picture(tmp_path: Path, seed: int):
    data = Glides(side=SIDE, confused=0.5, flickering=0.3, from_middle=True)
    model = KIND.warm_start(replace(SMALL_CLIPS, data=data, seed=seed, from_frame=True, name="starts"), tmp_path / "model")
    resolved = configs.load("tiny/t2v")
    sizes = [f"policy.{side}={SIDE}" for side in ("height", "width")]
    pictures = [f"data.first_frame={SIDE}", f"evaluation.data.first_frame={SIDE}", f"seed={seed}", f"policy.model={str(model)!r}"]
    rewards = "reward=[{use = 'gliding_shapes'}, {use = 'first_frame', weight = 0.5}]"
    words = ["steps=50", "evaluate_every=0", "evaluation.num_samples=8", "optimizer.lr=2e-3", f"output={str(tmp_path / 'run')!r}"]
    run = run_training(configs.resolve(resolved.table, [*sizes, *pictures, rewards, *words]))
    reward, way, first = gains(run, "gliding_shapes", "gliding_shapes/way", "first_frame")
    assert reward > 0.1 and way > 0.15 and first > -0.05
