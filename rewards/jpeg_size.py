"""Does the picture take few bytes, or many, as a JPEG file?

    r = -s / scale (compressible) or s / scale (incompressible), s = kB of the picture as a JPEG of quality 95

A kB is 1000 bytes: a plain picture of 512 x 512 takes about 20, one of noise over 300. It needs no model, so it is a quick
test whether training works at all.

Modality: image
Range: below 0 (compressible) or above 0 (incompressible)
Source: compressibility and incompressibility of DDPO, arXiv:2305.13301
Licence: own code Apache-2.0
"""

import io
from dataclasses import dataclass
from typing import Annotated, Literal

from mmrl import Need, Prompt, Sample, Scored
from mmrl.answers.needs import OfSamples
from mmrl.runtime.pictures import upright_rgb
from mmrl.runtime.ranges import Positive, Range


@dataclass(frozen=True)
class JpegSize(OfSamples):
    """The size of the compressed picture. ValueError for a sample without a picture."""

    goal: Literal["compressible", "incompressible"] = "compressible"
    """Small files (compressible) or large ones (incompressible)."""
    scale: Positive = 1.0
    """kB that are worth 1."""
    quality: Annotated[int, Range(1, 95)] = 95
    """Quality of the JPEG file, 1 to 95."""
    needs = Need()

    def score(self, sample: Sample, prompt: Prompt) -> Scored:
        if not hasattr(sample.image, "save"):
            raise ValueError(f"a sample of prompt {prompt.id!r} has no picture: this reward is for policies that draw")
        file = io.BytesIO()
        upright_rgb(sample.image, lent=True).save(file, "JPEG", quality=self.quality)
        size = len(file.getvalue()) / 1000
        return Scored(size / self.scale if self.goal == "incompressible" else -size / self.scale, {"kb": size})
