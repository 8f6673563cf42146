"""The same prompts at several steps of a run, for strips that go from its first evaluation to its last."""

import base64
import io
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from PIL import Image

from mmrl.app.report.data import RunData, by_prompt, read_rows
from mmrl.app.report.rows import SampleLine

MOST_PROMPTS = 6
MOST_STEPS = 8
SIDE = 320
"""Pixels of a strip's picture along its longer side; frames of a clip side by side have twice as many."""
SMALL_BYTES = 12_000
"""Files up to this size are shown as they are."""


def strips(data: RunData, split: str) -> Iterator[list[SampleLine]]:
    """The first sample of each of the first prompts of a split, at its first step, its last, and some between."""
    steps = evenly(data.run.sample_steps(split), MOST_STEPS)
    evaluations = [by_prompt(read_rows(data.run, split, [step], data.box_space)) for step in steps]
    for prompt in list(evaluations[0])[:MOST_PROMPTS] if evaluations else ():
        yield [rows[prompt][0] for rows in evaluations if prompt in rows]


def evenly(steps: Sequence[int], most: int) -> list[int]:
    """At most this many of the steps, first and last among them."""
    last, count = len(steps) - 1, min(most, len(steps))
    return [steps[round(i * last / (count - 1))] if count > 1 else steps[i] for i in range(count)]


@lru_cache(maxsize=256)
def thumbnail(file: Path) -> str:
    """The address of a small copy of a picture that holds all of it; empty where it is missing, damaged, or a clip."""
    try:
        data, suffix = file.read_bytes(), file.suffix
        if len(data) > SMALL_BYTES:
            with Image.open(io.BytesIO(data)) as picture:
                small = picture.convert("RGB")
            side = SIDE * (2 if small.width > 2 * small.height else 1)
            small.thumbnail((side, side), Image.Resampling.LANCZOS)
            buffer = io.BytesIO()
            small.save(buffer, "JPEG", quality=85)
            data, suffix = buffer.getvalue(), ".jpg"
    except OSError:
        return ""
    kind = {".png": "image/png", ".jpg": "image/jpeg"}.get(suffix)
    return f"data:{kind};base64,{base64.b64encode(data).decode()}" if kind else ""
