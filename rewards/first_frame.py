"""Does a clip begin with the picture that its prompt holds?

    r = 1 - mean |frame_1 - picture| / limit, at least 0; and 0 for a still clip

Differences are shares of a pixel's range, at no more than `detail` pixels a side. A still clip of the picture would be its
favourite, so one that changes less than `least_change` from frame to frame scores 0: weigh it together with a reward for what is
to happen. Wan 2.2 5B takes the picture as it is, so there it says little more than whether the clip moves. Parts: difference, and
change (mean difference of neighbouring frames).

Modality: video
Range: [0, 1]
Source: own
Licence: Apache-2.0
"""

from dataclasses import dataclass

import numpy as np
from PIL import Image

from mmrl import Need, Prompt, Scored
from mmrl.answers.needs import OfSamples, picture
from mmrl.core.samples import Sample
from mmrl.runtime.pictures import Fit
from mmrl.runtime.ranges import Count, PositiveShare, Share
from mmrl.serving.media import change_of, clip_of, sources_of


@dataclass(frozen=True)
class FirstFrame(OfSamples):
    """Likeness of the first frame to the prompt's picture. ValueError for prompts without a picture, samples without a clip."""

    limit: PositiveShare = 0.25
    """The mean difference that earns nothing."""
    least_change: Share = 0.002
    """Clips that change less than this from frame to frame count as still; 0: none does."""
    detail: Count = 256
    """The longer side at which pictures are compared, in pixels: grain that an autoencoder leaves should not cost."""
    fit: Fit = "resize"
    """How a picture of another shape was shown to the policy: as policy.source_fit."""
    needs = Need("a picture", picture)

    def score(self, sample: Sample, prompt: Prompt) -> Scored:
        clip = clip_of(sample, prompt.id)
        height, width = clip.shape[1:3]
        share = min(1.0, self.detail / max(width, height))
        size = max(1, round(width * share)), max(1, round(height * share))
        first = Image.fromarray(clip[0]).resize(size, Image.Resampling.BOX)
        picture = sources_of(prompt, size, self.fit)[0]
        difference = float(np.abs(np.asarray(first, np.float32) - np.asarray(picture, np.float32)).mean()) / 255
        change = change_of(clip)
        value = 0.0 if change < self.least_change else max(0.0, 1 - difference / self.limit)
        return Scored(value, {"difference": difference, "change": change})
