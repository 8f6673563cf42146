"""Does a clip sound when its picture changes?

    r = 1 - |heard - seen| / limit, at least 0; and 0 for a still or a silent clip

in seconds. Seen is the frame that differs most from the one before it; heard is where loudness, over frames of 10 ms, rises most.
A flash with a click would be its favourite: weigh it together with a reward for what is to happen. Parts: heard, seen, change
(mean difference of neighbouring frames).

Modality: video with sound
Range: [0, 1]
Source: own
Licence: Apache-2.0
"""

import itertools
from dataclasses import dataclass

import numpy as np

from mmrl import Need, Prompt, Sample, Scored
from mmrl.answers.needs import OfSamples
from mmrl.runtime.ranges import Positive, Share
from mmrl.serving.media import FRAME, QUIET, change_of, clip_of, loudness, sound_of


@dataclass(frozen=True)
class InSync(OfSamples):
    """Nearness of a sound's onset to the largest change of the picture. ValueError for samples without a clip or a sound."""

    limit: Positive = 0.5
    """The seconds apart that earn nothing; people notice some 0.1."""
    least_change: Share = 0.002
    """Clips that change less than this from frame to frame count as still."""
    needs = Need()

    def score(self, sample: Sample, prompt: Prompt) -> Scored:
        clip, (wave, rate) = clip_of(sample, prompt.id), sound_of(sample, prompt.id)
        if not sample.fps or len(clip) < 2:
            raise ValueError(f"a clip of prompt {prompt.id!r} has {len(clip)} frames at {sample.fps} a second: it needs a time")
        change, levels = change_of(clip), loudness(wave, rate)
        if change < self.least_change or levels.max() < QUIET:
            return Scored(0.0, {"change": change})
        steps = [np.abs(after.astype(np.int16) - before).mean() for before, after in itertools.pairwise(clip)]
        seen = (1 + int(np.argmax(steps))) / sample.fps
        heard = int(np.argmax(np.diff(levels, prepend=0.0))) * FRAME
        return Scored(max(0.0, 1 - abs(heard - seen) / self.limit), {"heard": heard, "seen": seen, "change": change})
