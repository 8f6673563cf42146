"""Captions of short tones, as prompts for sounds of a second: "a low tone comes first". No download.

Four pitches and four quarters of a second make 16 captions; four of them, in which every pitch and quarter occurs once, are held
out. Columns: pitch, place, band ([low, high] in Hz) and span ([start, end] in seconds). For the rewards `band_energy` and
`onset_iou`. Licence: Apache-2.0.
"""

from collections.abc import Sequence
from dataclasses import replace

from mmrl import Prompt
from mmrl.data.drawn.shapes import captions_of
from mmrl.data.drawn.sounds.tones import HELD_OUT, TRAIN, Tone
from mmrl.runtime.ranges import Count, Seed

SPLITS = {"train": TRAIN, "held_out": HELD_OUT}


def load(split: str = "train", size: Count | None = None, seed: Seed = 0) -> Sequence[Prompt]:
    """All captions of a split, in an order that the seed decides.

    Args:
        split: train or held_out.
        size: only the first n; None: all.
        seed: seed of the order.

    Raises:
        ValueError: no such split, or more captions than it has.
    """
    found = [(prompt, Tone(**prompt.columns)) for prompt in captions_of(SPLITS, split, size, seed)]
    return [replace(prompt, columns={**prompt.columns, "band": tone.band, "span": tone.span}) for prompt, tone in found]
