"""A Qwen3-VL of 0.8 M parameters that watches mp4 files of handwritten digits, and its real processor.

The config tiny/hurried_spans teaches it by imitation, from answers as hurried people give them: spans too long, half of them of
the wrong digit where there are two, and of two digits mostly one named. What such answers cannot teach is left to reinforcement.
"""

from pathlib import Path

from mmrl.data.drawn.moving import ClipStyle
from mmrl.lab.tiny.text import student

FPS = 2.2
"""Frames asked for per second: of the demo's clips 12, from the first to the last, half a second apart."""
STYLE = ClipStyle(
    side=32,
    glyph=(20, 24),
    seconds=5.6,
    time_grid=1.0,
    stay=(1.2, 4.0),
    speed=10.0,
    digits=(0, 3, 4, 7),
    asked=(7,),
    shown=(1, 2),
    num_discs=0,
)
"""The look of the demo's clips; no span begins or ends near a multiple of the second that a pair of frames is."""
_PIXELS = 0.13, 0.18
"""Mean and deviation of the clips' pixels."""


def build(folder: Path, seed: int = 0) -> Path:
    """Save model and processor, untaught, to `folder` and return it."""
    return student.save(student.build(_texts(STYLE), STYLE.side, _PIXELS, seed, frames=64), folder)


def _texts(style: ClipStyle) -> list[str]:
    """Words that become single tokens."""
    moments = [f"<{second + tenth / 10:.1f} seconds>" for second in range(10) for tenth in (2, 5, 8)]
    options = " ".join(f"{letter}: {digit}" for letter, digit in zip("ABCDEFGH", style.digits, strict=False))
    asked = [f"When is the {digit} visible?" for digit in style.asked or style.digits]
    return [*asked, f"Which digits appear? {options}", "user\nassistant\n", "3.2 to 4.5", "A,B,C,D", *moments]
