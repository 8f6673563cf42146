"""Generated videos of handwritten digits that appear, move, collide and disappear: when, which, how many, in what order?

The handwriting is real (scikit-learn's `load_digits`, needs `pip install "mmrl[demo]"`). A file is written when its prompt is
first read, always the same for the same seed, into a folder of the cache. Held-out clips show other handwriting.
Licence: the digits are from the UCI repository, CC BY 4.0; the drawing is own code, Apache-2.0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mmrl import Prompt, Video
from mmrl.core.ranges import Count, Positive, Seed
from mmrl.data.drawn import moving, scenes
from mmrl.data.files.mp4 import clip_folder, write_once
from mmrl.data.lazy import LazyPrompts

__all__ = ["load"]
_TYPES = {"when": "temporal grounding", "which": "multiple choice", "how_many": "numerical", "order": "multiple choice"}


def load(
    split: str = "train",
    size: Count = 1024,
    seed: Seed = 0,
    questions: Sequence[str] = moving.KINDS,
    clip: moving.ClipStyle | Mapping[str, Any] | None = None,
    template: str = "{question}",
    sample_fps: Positive | None = None,
    folder: str | Path | None = None,
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
        sample_fps: frames per second the model is to see; the policy's setting by default.
        folder: where to keep the files, in a folder named by a hash of what they show; by default MMRL_CACHE or ~/.cache/mmrl.

    Raises:
        ValueError: no such split or question, or clips that cannot be drawn.
    """
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
        }
        text = template.replace("{question}", drawn.text)
        return Prompt(name, text, (Video(str(file), fps=sample_fps),), drawn.answer, columns)

    prompts = LazyPrompts(size, prompt)
    if size:
        prompts[0]
    return prompts
