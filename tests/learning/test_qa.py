"""The task qa: a Qwen3-VL with random weights learns from rewards alone to answer by letter or number what a picture shows."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageDraw

from mmrl.app.commands.train import run_training
from mmrl.app.config.tasks import one_line

Draw = Callable[[random.Random], tuple[Image.Image, dict[str, Any]]]
SIDE = 32
SHORT = [
    "prompts_per_step=8",
    "algorithm.group_size=16",
    "optimizer.lr=5e-3",
    "policy.answer_format=none",
    "policy.sampling.max_new_tokens=1",
    "evaluate_every=0",
    "save_every=0",
    "audit_steps=1",
    "reward.0.limit_s=60.0",
]


def colour(rng: random.Random) -> tuple[Image.Image, dict[str, Any]]:
    """Red or blue of many shades, asked for by letter."""
    strong, weak, other = rng.randint(150, 255), rng.randint(0, 80), rng.randint(0, 80)
    is_red = rng.random() < 0.5
    shade = (strong, weak, other) if is_red else (weak, other, strong)
    row = {"question": "Which?", "options": ["red", "blue"], "answer": "red" if is_red else "blue"}
    return Image.new("RGB", (SIDE, SIDE), shade), row


def count(rng: random.Random) -> tuple[Image.Image, dict[str, Any]]:
    """One or three white squares on a dark ground, asked for by number."""
    picture, number = Image.new("RGB", (SIDE, SIDE), (rng.randint(0, 60),) * 3), rng.choice([1, 3])
    draw = ImageDraw.Draw(picture)
    for corner in rng.sample([(2, 2), (18, 2), (2, 18), (18, 18)], number):
        draw.rectangle((*corner, corner[0] + 11, corner[1] + 11), fill="white")
    return picture, {"question": "How many squares?", "answer": number}


KINDS: dict[str, tuple[Draw, str]] = {"choice": (colour, "by_type/choice"), "number": (count, "by_type/number")}


def write(folder: Path, name: str, draw: Draw, seed: int, rows: int) -> Path:
    rng, lines = random.Random(seed), list[str]()
    for i in range(rows):
        picture, row = draw(rng)
        picture.save(folder / f"{name}{i}.png")
        lines.append(json.dumps({"image": f"{name}{i}.png", **row}))
    (folder / f"{name}.jsonl").write_text("\n".join(lines))
    return folder / f"{name}.jsonl"


def share_right(folder: Path, kind: str, seed: int, steps: int) -> tuple[float, float]:
    """Before and after training, on held-out pictures."""
    draw, figure = KINDS[kind]
    train, test = write(folder, "train", draw, 2 * seed, 64), write(folder, "test", draw, 2 * seed + 1, 32)
    template = ["data.template={question}", "evaluation.data.template={question}"]
    words = [*SHORT, f"steps={steps}", f"seed={seed}", *template, f"output={folder / 'run'}"]
    run = run_training(one_line("qa", "tiny:qwen3_vl", str(train), ["by_type"], words, str(test)))
    found = [line for line in run.read_metrics().lines if f"eval/{figure}" in line]
    return found[0][f"eval/{figure}"], found[-1][f"eval/{figure}"]


@pytest.mark.slow
def test_questions_with_options_are_learnt(tmp_path: Path):
    before, after = share_right(tmp_path, "choice", 0, steps=24)
    assert before < 0.2 and after > 0.6


@pytest.mark.evidence
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_questions_are_learnt_on_three_seeds(kind: str, seed: int, tmp_path: Path):
    before, after = share_right(tmp_path, kind, seed, steps=60)
    assert before < 0.2 and after > 0.6
