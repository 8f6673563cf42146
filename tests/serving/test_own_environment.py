"""A reward whose dependencies clash with the trainer's runs in its own environment: mediapipe 0.10.21 on numpy 1."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

import mmrl
from mmrl import Group, Prompt, Sample, Scored
from mmrl.serving.reward_client import RemoteReward
from tests.support.ports import free_ports

ROOT = Path(mmrl.__file__).parents[1]
ENVIRONMENT = ROOT / ".cache" / "mediapipe-env"
PYTHON = ENVIRONMENT / "bin" / "python"
ASTRONAUT = """228,14 262,22 290,45 302,80 295,115 275,130 265,160 285,175 300,215 304,245 330,265 350,285 360,320 362,350
    330,360 300,390 280,430 278,512 30,512 25,450 22,380 40,300 60,260 110,225 112,190 130,165 165,150 190,150 180,125 160,115
    153,80 165,45 195,20"""
HELMET = "362,350 400,343 450,360 480,400 497,450 510,470 510,512 278,512 280,430 300,390 330,360"
"""Outlines drawn by hand over scikit-image's astronaut; the model counts the helmet in her arm as hers."""

pytestmark = [
    pytest.mark.real_weights,
    pytest.mark.skipif(
        not (ENVIRONMENT / "complete").exists() and not os.environ.get("MMRL_REAL_WEIGHTS"), reason="make real-weights makes it"
    ),
]


def polygon(points: str) -> list[tuple[int, ...]]:
    return [tuple(map(int, point.split(","))) for point in points.split()]


@pytest.fixture(scope="module")
def remote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RemoteReward]:
    folder = tmp_path_factory.mktemp("serve")
    port = free_ports(1)
    reward = Path(__file__).with_name("person_mask.py")
    (folder / "spec.toml").write_text(f'port = {port}\n[[reward]]\nuse = "{reward}"\nname = "people"\n')
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [str(PYTHON), "-m", "mmrl", "reward", "serve", str(folder / "spec.toml")]
    process = subprocess.Popen(command, cwd=folder, env=environment)
    try:
        yield RemoteReward(f"http://127.0.0.1:{port}/people").connect(wait_s=60.0)
    finally:
        process.kill()


def test_masks_are_scored_by_a_model_on_numpy_1(remote: RemoteReward):
    astronaut = Image.open(ROOT / ".cache" / "real-weights" / "skimage" / "data" / "astronaut.png").convert("RGB")
    pictures = (astronaut, ImageOps.mirror(astronaut), Image.new("RGB", astronaut.size))
    group = Group(
        0, Prompt("astronaut", answer=[polygon(ASTRONAUT), polygon(HELMET)]), tuple(Sample(image=picture) for picture in pictures)
    )
    answers = remote.score(group)
    assert all(isinstance(answer, Scored) for answer in answers)
    scores = [answer.value for answer in answers if isinstance(answer, Scored) and answer.value is not None]
    first = answers[0]
    assert isinstance(first, Scored)
    assert first.parts["numpy"] == 1.26 and np.__version__.startswith("2")
    assert 0.5 < first.parts["covered"] < 0.6
    assert scores[0] > 0.9 > scores[1] > 0.4 and scores[2] == 0.0
