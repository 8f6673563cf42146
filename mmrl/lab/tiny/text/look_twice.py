"""A Qwen3-VL of 0.9 M parameters that can look closer, and its real processor.

The config tiny/hurried_looks teaches it two skills first: to read the digit in a part that is cut from the file, and to point at
the digit in the overview, where it is too small to be read. Then it imitates people in a hurry: most answer at once, mostly "1";
of those who look, many look at the wrong place. That looking pays is left to reinforcement learning. A call is written as the
environment `zoom` takes it: `<tool_call>[312,62,437,187]</tool_call>`.
"""

from pathlib import Path

from mmrl.data.drawn.small_digits import QUESTION, box_of
from mmrl.lab.tiny.text import student

SIDE = 64
"""The model sees pictures of 64 x 64 pixels, and parts of them as large."""
TAGS = "<tool_call>", "</tool_call>"
_TEXTS = QUESTION, "Which digit is this?", "Zoom in on the digit.", "\nYour answer?", "user\nassistant\n"
"""What is said to it, whose words become single tokens."""
_PIXELS = 0.11, 0.13
"""Mean and deviation of the pixels of pictures and parts."""


def build(folder: Path, seed: int = 0) -> Path:
    """Save model and processor, untaught, to `folder` and return it."""
    texts = [*_TEXTS, ",".join(map(str, box_of((1, 2))))]
    return student.save(student.build(texts, SIDE, _PIXELS, seed, tags=TAGS), folder)
