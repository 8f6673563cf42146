"""A picture reward over the frames of a clip: the mean, the least or the first of their scores.

    r = mean_k f(frame_k)    |    min_k f(frame_k)    |    f(frame_1)

The frames are spread evenly from the first to the last. A picture reward does not see movement, and a still clip of its favourite
picture would win: a clip whose neighbouring frames differ by less than `least_change` gets the lowest score of its group. Parts:
change (mean difference of neighbouring frames, in the range of a pixel), lowest, highest, and the mean of the reward's own parts.

Modality: video
Range: that of the picture reward
Source: mean as in Flow-GRPO's OCR of clips (arXiv:2505.05470) and in Flow-Factory, first as in UniRL; still clips: own
Licence: own code Apache-2.0; the picture reward's see there
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from mmrl import Group, Need, Sample, Scored
from mmrl.runtime.ranges import Count, Share
from mmrl.serving.inside import AroundPictures, mean_parts
from mmrl.serving.media import change_of, clip_of, frames_of


@dataclass(frozen=True)
class OverFrames(AroundPictures):
    """A picture reward's score of a clip. ValueError for samples without a clip, or without a picture reward."""

    frames: Count = 4
    """At most this many frames of each clip are scored; over = "first" takes one."""
    over: Literal["mean", "min", "first"] = "mean"
    """How the scores of frames become one."""
    least_change: Share = 0.002
    """Clips that change less than this from frame to frame count as still; 0: none does."""
    needs = Need(setup='picture (a reward of pictures, picture.use = "pick_score")')
    shows = "image"

    def __call__(self, group: Group) -> list[float | Scored | None]:
        self.ready()
        count = 1 if self.over == "first" else self.frames
        shown = [frames_of(sample, count, group.prompt.id) for sample in group.samples]
        frames = replace(group, samples=tuple(Sample(image=one) for own in shown for one in own))
        answers = iter(self.ask(frames, "frames"))
        found = [self._reduce([next(answers) for _ in own]) for own in shown]
        known = [one.value for one in found if one is not None and one.value is not None]
        scored: list[float | Scored | None] = []
        for sample, one in zip(group.samples, found, strict=True):
            change = change_of(clip_of(sample, group.prompt.id))
            if one is None or one.value is None:
                scored.append(None)
                continue
            value = min(known) if change < self.least_change else one.value
            scored.append(Scored(value, {**one.parts, "change": change}))
        return scored

    def _reduce(self, answers: Sequence[Scored | None]) -> Scored | None:
        """The score of one clip; None where the reward does not apply to one of its frames."""
        given = [answer for answer in answers if answer is not None]
        values = [answer.value for answer in given if answer.value is not None]
        if len(values) < len(answers):
            return None
        value = min(values) if self.over == "min" else float(np.mean(values))
        return Scored(value, {**mean_parts(given), "lowest": min(values), "highest": max(values)})
