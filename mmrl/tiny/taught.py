"""Small models that are taught a task on this machine, by kind of policy and name: `tiny:grounding`, `tiny:shapes`."""

from collections.abc import Callable, Mapping
from pathlib import Path

from mmrl.data.drawn.digit_text import Prints
from mmrl.data.drawn.gliding import Glides
from mmrl.data.drawn.shapes import Sketches
from mmrl.tiny.flow import clip_generator, editor, generator
from mmrl.tiny.keep import Progress
from mmrl.tiny.text import clips, grounding

Teach = Callable[[int, Progress | None], Path]
"""(seed, progress) -> the folder of the model, taught once and then kept in the cache."""


def boxes(seed: int = 0, progress: Progress | None = None) -> Path:
    """A Qwen3-VL that draws boxes round digits as hurried annotators do."""
    return grounding.warm_start(grounding.WarmStart(seed=seed), progress=progress)


def shapes(seed: int = 0, progress: Progress | None = None) -> Path:
    """A Stable Diffusion 3 that draws coloured shapes, from pictures of which half are stained and half have a wrong caption."""
    settings = generator.WarmStart(data=Sketches(), name="shapes", seed=seed, steps=900, max_tokens=8)
    return generator.warm_start(settings, progress=progress)


def numbers(seed: int = 0, progress: Progress | None = None) -> Path:
    """A Stable Diffusion 3 that prints numbers, from pictures of which half are smeared and half have a wrong caption."""
    settings = generator.WarmStart(data=Prints(), name="numbers", seed=seed, patch=2, max_tokens=6)
    return generator.warm_start(settings, progress=progress)


def edits(seed: int = 0, progress: Progress | None = None) -> Path:
    """A FLUX.1-Kontext that edits coloured shapes, from targets of which half are stained and half follow another instruction."""
    return editor.warm_start(editor.EditorStart(seed=seed), progress=progress)


def glides(seed: int = 0, progress: Progress | None = None) -> Path:
    """A Wan that draws clips of moving shapes, from clips of which half flicker and half have a wrong caption."""
    return clip_generator.warm_start(clip_generator.WarmStart(Glides(), seed=seed), progress=progress)


def spans_and_letters(seed: int = 0, progress: Progress | None = None) -> Path:
    """A Qwen3-VL that tells when a digit is to be seen in a clip, and which digits are, as hurried annotators do."""
    return clips.warm_start(clips.WarmStart(seed=seed), progress=progress)


TAUGHT: Mapping[str, Mapping[str, Teach]] = {
    "text": {"grounding": boxes, "clips": spans_and_letters},
    "flow": {"shapes": shapes, "numbers": numbers, "edits": edits, "glides": glides},
}
"""Kind of policy -> name -> how it is taught."""
