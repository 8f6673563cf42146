"""Synthetic run folders, written by the same code that writes real ones."""

import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageDraw

from mmrl.answers.boxes.box import Box
from mmrl.app.run.folder import RunDir
from mmrl.app.run.trackers import JsonlTracker
from mmrl.core.types import Group, MediaSize, Prompt, Sample, Scores, Status
from mmrl.training.callbacks import Examples

CONFIG = """steps = {steps}
prompts_per_step = 4
[algorithm]
preset = "grpo"
[policy]
model = "tiny"
box_space = "norm1000"
[data]
use = "shapes"
[[reward]]
use = "iou"
[[reward]]
use = "format"
weight = 0.1
"""
COLOURS = {"red": (205, 60, 50), "green": (60, 150, 80), "blue": (50, 90, 200), "yellow": (225, 180, 50)}


def random_box(rng: random.Random, size: tuple[int, int]) -> Box:
    width, height = size
    w, h = width * rng.uniform(0.15, 0.4), height * rng.uniform(0.15, 0.4)
    x, y = rng.uniform(0, width - w), rng.uniform(0, height - h)
    return Box(x, y, x + w, y + h)


def scene(rng: random.Random, size: tuple[int, int]) -> tuple[Image.Image, str, Box]:
    """A picture of three shapes, the colour asked for, and its box in pixels."""
    picture = Image.radial_gradient("L").resize(size).convert("RGB")
    draw = ImageDraw.Draw(picture)
    colours = rng.sample(sorted(COLOURS), 3)
    boxes = [random_box(rng, size) for _ in colours]
    for colour, box in zip(colours, boxes, strict=True):
        draw.ellipse((box.x1, box.y1, box.x2, box.y2), fill=COLOURS[colour])
    return picture, colours[-1], boxes[-1]


def guess(rng: random.Random, truth: Box, size: tuple[int, int], error: float) -> str:
    """A completion in norm1000 whose corners are off by up to `error` of the box."""
    width, height = size
    corners = [
        1000 * (x + rng.uniform(-error, error) * side) / full
        for x, side, full in zip(truth.corners, (truth.x2 - truth.x1, truth.y2 - truth.y1) * 2, (width, height) * 2, strict=True)
    ]
    return f"<answer>[{', '.join(f'{x:.0f}' for x in corners)}]</answer>"


def group_of(rng: random.Random, index: int, kind: str, size: tuple[int, int], count: int, error: float) -> Group:
    picture, colour, truth = scene(rng, size)
    if kind == "images":
        samples = tuple(Sample(image=scene(rng, size)[0]) for _ in range(count))
        return Group(index, Prompt(f"p{index}", f"a {colour} ball"), samples)
    if kind == "text":
        samples = tuple(Sample(text=f"<answer>{rng.randint(0, 9)}</answer>") for _ in range(count))
        return Group(index, Prompt(f"p{index}", f"What is {index} + 1?", answer=str(index + 1)), samples)
    sizes = (MediaSize(*size, *size),)
    texts = [guess(rng, truth, size, error) for _ in range(count)]
    if index == 1:
        texts[0] = "I see <script>alert('x')</script> & nothing else"
    samples = tuple(Sample(text=text, media_sizes=sizes, truncated=rng.random() < 0.1) for text in texts)
    return Group(index, Prompt(f"p{index}", f"Where is the {colour} ball?", (picture,), truth), samples)


def scores_of(rng: random.Random, num_rows: int, level: float) -> Scores:
    values = torch.tensor([[min(1.0, max(0.0, rng.gauss(level, 0.2))), float(rng.random() < 0.9)] for _ in range(num_rows)])
    return Scores(("iou", "format"), values, torch.full((num_rows, 2), int(Status.OK)), torch.tensor([1.0, 0.1]))


def figures_of(rng: random.Random, step: int, level: float) -> dict[str, float]:
    return {
        "reward/iou": level + rng.gauss(0, 0.04),
        "reward/format": 0.9,
        "reward/total": level + 0.09 + rng.gauss(0, 0.04),
        "reward/no_spread": max(0.0, rng.gauss(0.2, 0.1)),
        "rollout/length": 17 + rng.gauss(0, 2),
        "rollout/actions": 544.0,
        "policy/kl": 0.0004 * step,
        "policy/entropy": 1.2 * math.exp(-step / 60) + rng.gauss(0, 0.03),
        "policy/clip_frac": abs(rng.gauss(0.02, 0.01)),
        "policy/grad_norm": math.exp(rng.gauss(0, 0.4)),
        "policy/lr": 2e-4,
        "loss": rng.gauss(0, 0.01),
        "time/step_s": 0.5,
        "time/rollout_s": 0.26,
        "time/reward_s": 0.03,
        "time/update_s": 0.18,
    }


def evaluated(
    run: RunDir, prompt: Prompt, samples: Mapping[int, Sequence[Sample]], space: str | None = None, value: float = 1.0
) -> RunDir:
    """Keep evaluations of one prompt: step -> what was answered, all of it with this reward."""
    run.metrics_file.touch()
    for step, answers in samples.items():
        count = len(answers)
        scores = Scores(("r",), torch.full((count, 1), value), torch.zeros(count, 1, dtype=torch.long), torch.ones(1))
        JsonlTracker(run, space).write(step, Examples([Group(0, prompt, tuple(answers))], scores), "eval")
    return run


def numbers(run: RunDir, of: str = "loss") -> list[dict[str, float]]:
    """What was written of each step that trained, or has this number, but for what depends on the clock and on the machine."""
    lines = [line for line in run.read_metrics().lines if of in line]
    return [{name: x for name, x in line.items() if not name.startswith(("time/", "memory/", "gpu/"))} for line in lines]


def assert_same_numbers(run: RunDir, other: RunDir, steps: Sequence[int]) -> None:
    """Both took these steps, and wrote the same of them and of the last evaluation."""
    assert [line["step"] for line in numbers(run)] == [*steps]
    for one, another in zip(numbers(run), numbers(other), strict=True):
        assert one == pytest.approx(another, abs=1e-6, nan_ok=True)
    last, expected = (numbers(of, "eval/total")[-1] for of in (run, other))
    assert last["step"] == steps[-1]
    assert last == pytest.approx({name: expected[name] for name in last}, abs=1e-6, nan_ok=True)


def write_run(
    folder: Path,
    steps: int = 40,
    kind: str = "boxes",
    evaluate: bool = True,
    size: tuple[int, int] = (160, 120),
    num_prompts: int = 16,
    seed: int = 0,
) -> RunDir:
    """A run whose answers get better; kind is boxes, text or images."""
    rng = random.Random(seed)
    run = RunDir.create(folder)
    run.config_file.write_text(CONFIG.format(steps=steps))
    tracker = JsonlTracker(run, box_space="norm1000" if kind == "boxes" else None)

    def level(step: int) -> float:
        return 0.3 + 0.4 * step / max(1, steps)

    for step in range(steps + 1):
        if step:
            run.append(step, figures_of(rng, step, level(step)))
        if step and (step == 1 or step % 10 == 0):
            groups = [group_of(rng, 100 * step + i, kind, size, 4, 0.5 - 0.4 * step / steps) for i in range(4)]
            tracker.write(step, Examples(groups, scores_of(rng, 16, level(step))), "train")
        if evaluate and (step % 20 == 0 or step == steps):
            held_out = random.Random(seed + 1)
            groups = [group_of(held_out, i, kind, size, 1, 0.6 - 0.5 * step / max(1, steps)) for i in range(num_prompts)]
            scores = scores_of(rng, num_prompts, level(step))
            run.append(
                step, {"eval/iou": level(step), "eval/total": float(scores.total().mean()), "eval/completion_length": 17.0}
            )
            tracker.write(step, Examples(groups, scores), "eval")
    return run
