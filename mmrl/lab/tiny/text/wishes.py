"""A Qwen3-VL of some 0.9 M parameters that writes for a painter, and its real processor.

The config tiny/hurried_words teaches it to say a wish in other words, any that people use. Which of them the painter understands
is left to reinforcement learning.
"""

from pathlib import Path

from mmrl.data.drawn.wishes import OPENINGS, OTHER
from mmrl.lab.tiny.text import student

SIDE = 32
"""It sees pictures as large as the painter's: 4 tokens."""
_PIXELS = 0.85, 0.2
"""Mean and deviation of the pixels of drawn shapes."""


def build(folder: Path, seed: int = 0) -> Path:
    """Save model and processor, untaught, to `folder` and return it."""
    words = sorted({f" {word}" for known, others in OTHER.items() for word in (known, *others)} | {" on", " the"})
    return student.save(student.build(["user\nassistant\n", *OPENINGS], SIDE, _PIXELS, seed, tags=words), folder)
