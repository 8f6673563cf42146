"""Generated sounds of noise in which one tone is heard: when? For models that hear. No download.

A file is written when its prompt is first read, always the same for the same seed, into a folder of the cache. The tone begins
and ends at whole seconds.
Licence: own code, Apache-2.0.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from mmrl import Audio, Prompt
from mmrl.answers.spans.parsing import format_interval
from mmrl.data.drawn import scenes
from mmrl.data.drawn.sounds import beeps
from mmrl.data.files import wav
from mmrl.data.files.mp4 import clip_folder
from mmrl.data.sources import lazily
from mmrl.runtime.ranges import Count, Seed

__all__ = ["load"]
OFF = (0, 1, 1, 2)
"""Seconds by which a hurried answer begins too early, and ends too late; each as likely."""


def load(
    split: str = "train",
    size: Count = 1024,
    seed: Seed = 0,
    seconds: Count = 10,
    heard: Literal["its own", "another", "noise"] = "its own",
    folder: str | Path | None = None,
    written: Literal["", "right", "hurried"] = "",
) -> Sequence[Prompt]:
    """Prompts with one sound, whose answer is an Interval in whole seconds.

    Columns: problem_type, question, duration.

    Args:
        split: train or held_out.
        size: the number of prompts.
        seed: another seed gives other sounds of the same kind.
        seconds: how long a sound lasts.
        heard: another: the prompt's sound is that of the next prompt, and its answer stays. noise: the tone is left out. What a
            model scores then it owes to guessing.
        folder: where to keep the files, in a folder named by a hash of what they hold; by default MMRL_CACHE or ~/.cache/mmrl.
        written: right: a column `completion` holds the answer as a model is to write it. hurried: as an annotator in a hurry
            would, up to two seconds too early and too late.

    Raises:
        ValueError: no such split, or sounds too short for their tones.
    """
    code = (beeps.__file__, scenes.__file__, wav.__file__)
    files = clip_folder("beeps", {"seconds": seconds}, code, None if folder is None else Path(folder))

    def sound(index: int) -> Audio:
        name = f"{split}-{seed}-{index}{'-noise' if heard == 'noise' else ''}.wav"
        if not (files / name).is_file():
            beep = beeps.plan_beep(seed, index, split, seconds)
            wav.write_wav(files / name, beeps.draw(beep, is_silent=heard == "noise"), beeps.RATE)
        return Audio(str(files / name))

    def prompt(index: int) -> Prompt:
        beep = beeps.plan_beep(seed, index, split, seconds)
        columns = {"problem_type": "temporal grounding", "question": beeps.QUESTION, "duration": float(seconds)}
        if written:
            early, late = np.random.default_rng([*beep.key, 2]).choice(OFF, 2).tolist() if written == "hurried" else (0, 0)
            told = replace(beep.span, start=max(0.0, beep.span.start - early), end=min(float(seconds), beep.span.end + late))
            columns["completion"] = format_interval(told, digits=0)
        return Prompt(f"{split}-{seed}-{index}", beeps.QUESTION, (sound(index + (heard == "another")),), beep.span, columns)

    return lazily(size, prompt)
