"""Generated videos of handwritten digits that appear, move, collide and disappear: when, which, how many, in what order?

The handwriting is real (scikit-learn's `load_digits`, needs `pip install "mmrl[demo]"`). A file is written when its prompt is
first read, always the same for the same seed, into a folder of the cache. Held-out clips show other handwriting.
Licence: the digits are from the UCI repository, CC BY 4.0; the drawing is own code, Apache-2.0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import numpy as np

from mmrl import Interval, Prompt, Video
from mmrl.answers.spans.parsing import format_interval
from mmrl.data.drawn import moving, scenes
from mmrl.data.files.mp4 import clip_folder, write_once
from mmrl.data.sources import lazily
from mmrl.runtime.ranges import Count, Seed

__all__ = ["load"]
LOOSEN = 0.6
"""Both ends of a hurried span are pushed out by up to this share of its length."""
CONFUSED, CARELESS = 0.5, 0.75
"""Share of hurried spans that are another digit's, and of hurried answers that name one digit, where there are two."""
_TYPES = {"when": "temporal grounding", "which": "multiple choice", "how_many": "numerical", "order": "multiple choice"}


def load(
    split: str = "train",
    size: Count = 1024,
    seed: Seed = 0,
    questions: Sequence[str] = moving.KINDS,
    clip: moving.ClipStyle | Mapping[str, Any] | None = None,
    template: str = "{question}",
    folder: str | Path | None = None,
    written: Literal["", "right", "hurried"] = "",
) -> Sequence[Prompt]:
    """Prompts with one clip; the answer is an Interval in seconds (when), letters such as "A,C" (which, order) or a number.

    Columns: problem_type, question, question_kind, duration, fps, options, spans (digit -> seconds, of all that appear).

    Args:
        split: train or held_out.
        size: the number of prompts.
        seed: another seed gives other clips of the same kind.
        questions: when, which, how_many, order; a clip's is drawn from this list, in which a kind may stand repeatedly.
        clip: what clips look like: any field of mmrl.data.drawn.moving.ClipStyle, as in `clip = {side = 32, seconds = 6.0}`.
        template: the prompt's text, with {question} in it.
        folder: where to keep the files, in a folder named by a hash of what they show; by default MMRL_CACHE or ~/.cache/mmrl.
        written: right: a column `completion` holds the answer to when and which as a model is to write it. hurried: as an
            annotator in a hurry would: spans too long, half of them another digit's, and mostly one digit named where two are.

    Raises:
        ValueError: no such split or question, or clips that cannot be drawn.
    """
    if written and not {"when", "which"}.issuperset(questions):
        raise ValueError(f"written is {written!r}, and questions are {list(questions)}: answers are written to when and which")
    if "{question}" not in template:
        raise ValueError(f"template {template!r} must contain {{question}}")
    style, kinds = clip if isinstance(clip, moving.ClipStyle) else moving.style_of(clip or {}), tuple(questions)
    shown = {"style": asdict(style), "kinds": kinds}
    root = None if folder is None else Path(folder)
    files = clip_folder("moving-digits", shown, (moving.__file__, scenes.__file__), root)

    def prompt(index: int) -> Prompt:
        drawn = moving.plan_clip(seed, index, split, style, kinds)
        name = f"{split}-{seed}-{index}"
        file = write_once(files / f"{name}.mp4", style.fps, lambda: moving.draw(drawn))
        columns = {
            "problem_type": _TYPES[drawn.kind],
            "question": drawn.question,
            "question_kind": drawn.kind,
            "duration": drawn.duration,
            "fps": float(style.fps),
            "options": drawn.options,
            "spans": {actor.digit: drawn.span(actor) for actor in drawn.digits},
        } | ({"completion": _written(drawn, np.random.default_rng([*drawn.key, 2]), written == "hurried")} if written else {})
        text = template.replace("{question}", drawn.text)
        return Prompt(name, text, (Video(str(file)),), drawn.answer, columns)

    return lazily(size, prompt)


def _written(clip: moving.DigitClip, rng: np.random.Generator, is_hurried: bool) -> str:
    """An annotator's answer, the same at every reading of the prompt: a span (when) or letters (which)."""
    sloppy = is_hurried and len(clip.digits) > 1 and rng.random() < (CONFUSED if clip.kind == "when" else CARELESS)
    if clip.kind == "when":
        span = clip.span(clip.digits[rng.integers(1, len(clip.digits)) if sloppy else 0])
        before, after = (rng.uniform(0, LOOSEN * is_hurried, 2) * span.length).tolist()
        return format_interval(Interval(max(0.0, span.start - before), min(clip.duration, span.end + after)))
    letters = str(clip.answer).split(",")
    return str(rng.choice(letters)) if sloppy else ",".join(letters)
