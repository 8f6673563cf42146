"""Does something move, evenly and without flicker? Measured by optical flow between frames, without a model.

    r = amount x even x steady,   u_t = flow from frame t to t + 1, on the tenth of pixels that moves fastest

    amount  mean |u_t| / least, in sides of the picture per frame
    even    1 - (mean |u_(t+1)(x + u_t(x)) - u_t(x)| / mean |u_t|) / 1.5: no jumping, no sudden turns
    steady  1 - mean |frame_(t+1)(x + u_t(x)) - frame_t(x)| / 0.1: what movement does not explain is flicker

each clipped to [0, 1]. A product, so that a still clip scores 0 however smooth. What moves, and whether it should, is not judged:
add a reward that reads the prompt. Parts: the three, and change (mean difference of neighbouring frames).

Modality: video
Range: [0, 1]
Source: own; the flow is Farneback's (2003), as OpenCV has it
Licence: own code Apache-2.0; OpenCV Apache-2.0
"""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np

from mmrl import Need, Prompt, Sample, Scored
from mmrl.answers.needs import OfSamples
from mmrl.runtime.ranges import Count, Positive, PositiveShare
from mmrl.serving.files import import_package
from mmrl.serving.media import change_of, clip_of

OPENCV = "pip install opencv-python-headless"
PARTS = ("amount", "even", "steady")


@dataclass(frozen=True)
class SmoothMotion(OfSamples):
    """How evenly a clip moves. ValueError for a sample without a clip, or with fewer than three frames."""

    least: Positive = 0.005
    """Movement from one frame to the next that gives `amount` its full value, in sides of the picture."""
    moving: PositiveShare = 0.1
    """Share of pixels that is used: the fastest ones."""
    side: Count = 256
    """Frames are shrunk until their longer side has at most this many pixels."""
    needs = Need(setup="pip install opencv-python-headless", package="cv2")

    def score(self, sample: Sample, prompt: Prompt) -> Scored:
        clip: Any = clip_of(sample, prompt.id)
        if len(clip) < 3:
            raise ValueError(f"a clip of prompt {prompt.id!r} has {len(clip)} frames: evenness needs 3, so raise policy.frames")
        change = {"change": change_of(clip)}
        frames = [_grey(frame, self.side) for frame in clip]
        farneback = import_package("cv2", OPENCV).calcOpticalFlowFarneback
        # (height, width, 2) pixels, x before y, by which every pixel moves
        flows = [farneback(a, b, None, 0.5, 3, 9, 3, 5, 1.1, 0) for a, b in itertools.pairwise(frames)]
        speeds = [np.linalg.norm(flow, axis=-1) for flow in flows]
        masks = [speed >= np.quantile(speed, 1 - self.moving) for speed in speeds]
        speed = float(np.mean([one[own].mean() for one, own in zip(speeds, masks, strict=True)]))
        amount = min(1.0, speed / (self.least * max(frames[0].shape)))
        if amount == 0:
            return Scored(0.0, dict.fromkeys(PARTS, 0.0) | change)
        turns = [
            np.linalg.norm(_along(after, before) - before, axis=-1)[own].mean()
            for before, after, own in zip(flows, flows[1:], masks, strict=False)
        ]
        left = [
            np.abs(_along(after, flow) - before).mean() for before, after, flow in zip(frames, frames[1:], flows, strict=False)
        ]
        even = float(np.clip(1 - float(np.mean(turns)) / speed / 1.5, 0, 1))
        steady = float(np.clip(1 - float(np.mean(left)) / 255 / 0.1, 0, 1))
        return Scored(amount * even * steady, {"amount": amount, "even": even, "steady": steady} | change)


def _grey(frame: Any, side: int) -> Any:
    cv2 = import_package("cv2", OPENCV)
    grey = cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY)
    share = side / max(grey.shape)
    return grey if share >= 1 else cv2.resize(grey, None, fx=share, fy=share, interpolation=cv2.INTER_AREA)


def _along(values: Any, flow: Any) -> Any:
    """Values where the flow leads, in float32."""
    cv2 = import_package("cv2", OPENCV)
    rows, columns = np.indices(flow.shape[:2], np.float32)
    return cv2.remap(
        np.asarray(values, np.float32), columns + flow[..., 0], rows + flow[..., 1], cv2.INTER_LINEAR, None, cv2.BORDER_REPLICATE
    )
