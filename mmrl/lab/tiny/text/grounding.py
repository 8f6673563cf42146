"""A Qwen3-VL of 0.9 M parameters for boxes round handwritten digits, and its real processor.

The config tiny/hurried_boxes teaches it by imitation, from boxes as hurried people draw them: too large, and half of them round
the wrong digit. What such boxes cannot teach is left to reinforcement learning. The model answers as Qwen3-VL does:
`[{"bbox_2d": [x1, y1, x2, y2]}]`, in thousandths of width and height.
"""

from pathlib import Path

from mmrl.data.drawn.scenes import question
from mmrl.lab.tiny.text import student

SIDE = 64
"""Pictures of 64 x 64 pixels: 64 patches of 8 x 8, merged 2 by 2 into 16 tokens."""
_PIXELS = 0.16, 0.25
"""Mean and deviation of the scenes' pixels."""
ANSWER = '[{"bbox_2d": [125, 125, 625, 625]}]'


def build(folder: Path, seed: int = 0) -> Path:
    """Save model and processor, untaught, to `folder` and return it."""
    texts = [*map(question, range(10)), "user\nassistant\n", ANSWER]
    return student.save(student.build(texts, SIDE, _PIXELS, seed), folder)
