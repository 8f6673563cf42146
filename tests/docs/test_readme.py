"""What the README tells a newcomer to type works as typed, on a tiny model in place of the big one."""

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from mmrl.algorithms.presets import PRESETS
from tests.support import forked

README = (Path(__file__).parents[2] / "README.md").read_text()


def block(language: str, mark: str) -> str:
    """The code block of the README that holds `mark`."""
    return next(text for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if mark in text)


def line(mark: str) -> str:
    """The shell line of the README that holds `mark`."""
    return next(text for text in block("sh", mark).splitlines() if mark in text).partition("#")[0].strip()


@pytest.fixture
def newcomer(tmp_path: Path) -> Path:
    """A folder with the README's data file, its picture and its own reward."""
    row = json.loads(block("json", '"boxes"'))
    picture = tmp_path / row["image"]
    picture.parent.mkdir()
    Image.new("RGB", (320, 400), "green").save(picture)
    (tmp_path / "boxes.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "mine.py").write_text(block("python", "def short"))
    return tmp_path


def run(folder: Path, command: str) -> str:
    done = forked.run("-m", *command.split(), cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_data_check(newcomer: Path):
    assert "1 rows, 0 problems" in run(newcomer, line("mmrl data check"))


def test_own_reward_in_one_line(newcomer: Path):
    command = line("mine.py:short=0.2").replace("--model M", "--model tiny:qwen3_vl")
    run(newcomer, f"{command} steps=1 prompts_per_step=1 policy.sampling.max_new_tokens=4 output=run")
    [step, *_] = [
        m for m in map(json.loads, (newcomer / "run" / "metrics.jsonl").read_text().splitlines()) if "reward/short" in m
    ]
    assert 0 < step["reward/short"] <= 1


def test_the_reference_names_every_preset():
    page = (Path(__file__).parents[2] / "docs" / "reference" / "algorithms.md").read_text()
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE)) >= set(PRESETS)


def test_the_readme_counts_the_presets():
    assert f"{len(PRESETS)} methods" in README
