"""A thinker of Qwen2.5-Omni with 0.9 M parameters for tones in noise, and its real processor.

The config tiny/hurried_beeps teaches it by imitation, from spans as hurried people write them: too early and too late. What such
spans cannot teach is left to reinforcement. It hears ten mel frames a second, so that ten seconds are one window and 25 tokens.
"""

from functools import partial
from pathlib import Path

from mmrl.data.drawn.sounds.beeps import QUESTION
from mmrl.lab.tiny.text.ears import MARKS, qwen2_5_omni_thinker
from mmrl.lab.tiny.text.vlms import save_random
from mmrl.lab.tiny.tokenizer import qwen_tokenizer

SECONDS, FRAMES, MELS = 10, 10, 32
"""Of a sound at most, mel frames in one, and their bins."""
WIDTH, LAYERS = 128, 3


def build(folder: Path, seed: int = 0) -> Path:
    """Save model and processor, untaught, to `folder` and return it."""
    tokenizer = qwen_tokenizer([QUESTION, "user\nassistant\n", "3 to 7"], named=MARKS)
    thinker = partial(qwen2_5_omni_thinker, WIDTH, MELS, FRAMES, SECONDS, tokenizer, num_hidden_layers=LAYERS)
    return save_random(thinker, folder, seed)
