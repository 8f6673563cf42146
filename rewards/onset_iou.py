"""Does a sound ring when it should, and only then?

    r = |loud and wanted| / |loud or wanted|

over frames of 10 ms. A frame is loud above `share` of the loudest frame's root mean square; a silent sound scores 0. Frames that
the wanted span covers in part count by that part. Parts: start and end, the seconds at which it first and last is loud.

Modality: sound
Range: [0, 1]
Source: own
Licence: Apache-2.0
"""

from dataclasses import dataclass

import numpy as np

from mmrl import Interval, Need, Prompt, Sample, Scored
from mmrl.answers.needs import OfSamples
from mmrl.runtime.ranges import PositiveShare
from mmrl.serving.media import FRAME, QUIET, loudness, pair_of, sound_of


@dataclass(frozen=True)
class OnsetIoU(OfSamples):
    """Overlap of the loud time with the wanted span. ValueError for samples without a sound, and spans beyond its end."""

    share: PositiveShare = 0.2
    """Of the loudest frame: 0.2 is 14 decibels below it."""
    needs = Need("the column span, [start, end] in seconds, or a span as answer", lambda prompt, *_: _span(prompt))

    def score(self, sample: Sample, prompt: Prompt) -> Scored:
        wave, rate = sound_of(sample, prompt.id)
        start, end = _span(prompt)
        seconds = len(wave) / rate
        if end > seconds + FRAME:
            raise ValueError(
                f"prompt {prompt.id!r} wants a sound until {end:g} s, and those drawn last {seconds:g} s: raise policy.seconds, "
                "or policy.frames of clips"
            )
        levels = loudness(wave, rate)
        if levels.max() < QUIET:
            return Scored(0.0)
        loud = levels > self.share * levels.max()
        begins = np.arange(len(levels)) * FRAME
        ends = np.minimum(begins + FRAME, seconds)
        covered = (np.minimum(ends, end) - np.maximum(begins, start)).clip(min=0)
        lasts = ends - begins
        both, either = float(covered[loud].sum()), float(np.where(loud, lasts, covered).sum())
        return Scored(both / either, {"start": float(begins[loud][0]), "end": float(ends[loud][-1])})


def _span(prompt: Prompt) -> tuple[float, float]:
    if "span" not in prompt.columns and isinstance(prompt.answer, Interval):
        return prompt.answer.start, prompt.answer.end
    return pair_of(prompt, "span", "[start, end] in seconds")
