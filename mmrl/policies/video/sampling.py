"""Which frames of a clip are shown, how large, and the settings that say so. Imports no torch, because workers import this."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from mmrl.answers.spans.timelines import CLOSE, Timeline
from mmrl.core.samples import Video
from mmrl.runtime.ranges import Count, CountOrNone, Large, Positive, Range, check_ranges


@dataclass(frozen=True)
class VideoSettings:
    """How clips become frames; fps, frames, start and end of a prompt's `Video` take precedence."""

    fps: Positive = 2.0
    """Frames shown per second of a clip, spread evenly from its first to its last."""
    min_frames: Count = 4
    """A short clip is shown at a higher rate; one with fewer frames than this is an error."""
    max_frames: Count = 768
    """A long clip is shown at a lower rate."""
    min_pixels: Large | None = None
    """Qwen-VL: least area of a frame, in pixels; None: as the model's own processor says."""
    max_pixels: Large | None = None
    """Qwen-VL: largest area of a frame, in pixels; None: as the model's own processor says."""
    total_pixels: Large | None = None
    """Qwen-VL: most pixels of all frames of a clip together; takes precedence over min_pixels."""
    backend: Literal["auto", "decord", "pyav"] = "auto"
    """The decoder; auto = decord, or PyAV if decord is missing or cannot read or show the file."""
    cache_mb: CountOrNone = 512
    """Size of the cache of decoded and resized frames, found again by the content of their file; 0 = none."""
    workers: Annotated[int, Range(0, 256)] = 2
    """Number of processes that decode in the background; 0 = decode in the main process when needed."""
    timeout: Positive = 120.0
    """Seconds a worker may take for one clip; then it is killed, and after a second try the run stops with an error."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.max_frames < self.min_frames:
            raise ValueError(f"policy.video.max_frames is {self.max_frames}: it must be min_frames ({self.min_frames}) or more")
        if self.min_pixels is not None and self.max_pixels is not None and self.min_pixels > self.max_pixels:
            raise ValueError(
                f"policy.video.min_pixels ({self.min_pixels}) is larger than policy.video.max_pixels ({self.max_pixels}): "
                "lower one or raise the other"
            )


class BudgetError(ValueError):
    """No frame fits into the budget, whoever decodes it."""


@dataclass(frozen=True)
class Budget:
    """How large a frame may be: sides are multiples of `side`, areas lie between the bounds. Totals are over all frames.

    The rule of qwen_vl_utils and of the Qwen video processors: round both sides, then scale both when the area is outside.
    """

    side: int
    min_pixels: float = 0.0
    max_pixels: float = math.inf
    min_total: float = 0.0
    max_total: float = math.inf

    def size(self, frames: int, height: int, width: int) -> tuple[int, int]:
        """(height, width) of each of n frames.

        Raises:
            BudgetError: no frame fits.
        """
        side, most = self.side, min(self.max_pixels, self.max_total / frames)
        least = min(max(self.min_pixels, self.min_total / frames), most)
        if most < side * side:
            raise BudgetError(
                f"{frames} frames of {most:.0f} pixels each are all the budget allows, and the model's smallest frame has "
                f"{side * side}: raise policy.video.total_pixels or max_pixels, or show fewer frames"
            )
        if max(height, width) > 200 * min(height, width):
            raise BudgetError(f"its frames are {width} x {height}, and the longer side may be 200 times the shorter one at most")
        rounded = max(side, round(height / side) * side), max(side, round(width / side) * side)
        if math.prod(rounded) > most:
            return self._largest(most, height, width)
        if math.prod(rounded) < least:
            grow = math.sqrt(least / (height * width))
            high, wide = (math.ceil(x * grow / side) * side for x in (height, width))
            return (high, wide) if high * wide <= most else self._largest(most, height, width)
        return rounded

    def _largest(self, most: float, height: int, width: int) -> tuple[int, int]:
        side, scale = self.side, math.sqrt(most / (height * width))
        high, wide = (max(side, math.floor(x * scale / side) * side) for x in (height, width))
        # A side that was too short was raised to the minimum, so the other one shrinks.
        longest = math.floor(most / side**2) * side
        return (min(high, longest), wide) if wide == side else (high, min(wide, longest) if high == side else wide)


@dataclass(frozen=True)
class FrameRule:
    """The frames that a policy wants of every clip."""

    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = 768
    multiple: int = 1
    """The number of frames is a multiple of this: models that merge frames in pairs need 2."""
    budget: Budget | None = None
    """None: frames keep their size."""
    backend: str = "auto"


@dataclass(frozen=True)
class Choice:
    """Frames to show, by their index in the file, in order of time."""

    indices: tuple[int, ...]
    step: float
    """Seconds between frames that the sampler aimed at."""
    start: float
    seconds: float
    """The length of the part of the file that is shown."""


def choose(timeline: Timeline, video: Video, rule: FrameRule) -> Choice:
    """Frames nearest to n moments that are evenly spaced from the first frame to the last (qwen_vl_utils' rule).

    n is the seconds times fps, rounded down to the rule's multiple, unless the video asks for a number. No frame is shown twice.

    Raises:
        ValueError: a span outside the file, contradicting wishes, or a clip with too few frames.
    """
    start, stop = timeline.part(video.start, video.end)
    inside = timeline.inside(start, stop)
    asked = own_frames(video, rule)
    least = asked or -(-rule.min_frames // rule.multiple) * rule.multiple
    if len(inside) < least:
        wanted = "its `frames`" if video.frames is not None else "policy.video.min_frames"
        raise ValueError(
            f"the part from {start:.2f} s to {stop:.2f} s holds {len(inside)} frames, and {wanted} is {least}: "
            "lower that, show a longer part, or drop the prompt"
        )
    own = np.asarray(timeline.times)[inside]
    number = asked or max(least, by_rate(len(own), stop - start, video, rule))
    picked = nearest(own, np.linspace(own[0], own[-1], number))
    if len(picked) < least:
        picked = spread(np.arange(len(own)), least)
    picked = spread(picked, len(picked) // rule.multiple * rule.multiple)
    step = (own[-1] - own[0]) / (number - 1) if number > 1 else stop - start
    return Choice(tuple(inside[i] for i in picked.tolist()), float(step), start, stop - start)


def own_frames(video: Video, rule: FrameRule) -> int | None:
    """The number of frames that the video asks for; None where it names none."""
    if video.frames is None:
        return None
    if isinstance(video.source, str) and video.fps is not None:
        raise ValueError("it names both fps and frames: name one of them")
    below = video.frames // rule.multiple * rule.multiple
    if below < 1:
        raise ValueError(f"it asks for {video.frames} frames: ask for {rule.multiple} or more")
    if below < video.frames:
        raise ValueError(
            f"it asks for {video.frames} frames, and this model takes multiples of {rule.multiple}: "
            f"ask for {below} or {below + rule.multiple}"
        )
    return video.frames


def by_rate(available: int, seconds: float, video: Video, rule: FrameRule) -> int:
    """Number of frames at the rate that is asked for, within what the clip has and the rule takes."""
    fps = rule.fps if video.fps is None or not isinstance(video.source, str) else video.fps
    if fps <= 0:
        raise ValueError(f"its fps is {fps:g}, and must be more than 0")
    return min(math.floor(seconds * fps + CLOSE), rule.max_frames, available) // rule.multiple * rule.multiple


def nearest(own: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """Index of the frame nearest to each moment, every frame once. Half way between two frames: the even index."""
    places = np.interp(moments, own, np.arange(len(own)))
    return np.unique(places.round(6).round().astype(int))


def spread(indices: np.ndarray, number: int) -> np.ndarray:
    """n of the indices, from the first to the last."""
    return indices[np.linspace(0, len(indices) - 1, number).round().astype(int)]
