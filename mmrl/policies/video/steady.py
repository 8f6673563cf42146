"""Clips of the data as a generator draws them: its number of frames, at its rate and its size. Imports no torch."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from mmrl.answers.sources import picture_at
from mmrl.answers.spans.timelines import Timeline, read_timeline
from mmrl.core.samples import VIDEO, Video, kind_of
from mmrl.policies.video.decode import decode
from mmrl.policies.video.sampling import Budget, FrameRule, nearest

CLOSE_RATE = 0.1
"""A file whose rate is another by this share at most is taken frame by frame, as it is."""


def is_clip(source: object) -> bool:
    """Is it a clip of the data: a file, a `Video`, or bytes (frames, height, width, 3)?"""
    return isinstance(source, np.ndarray) or kind_of(source) is VIDEO


@dataclass(frozen=True)
class Covering(Budget):
    """The smallest frame of a clip's own shape in which one of this width and height has room."""

    width: int = 1
    height: int = 1

    def size(self, frames: int, height: int, width: int) -> tuple[int, int]:
        scale = max(self.width / width, self.height / height)
        return max(self.height, round(height * scale)), max(self.width, round(width * scale))


def clip_at(source: object, frames: int, fps: float | None, size: tuple[int, int], prompt_id: str) -> np.ndarray:
    """The first frames of a clip, or of the part that a `Video` names: bytes (frames, y, x, 3), their middle at the size (x, y).

    Frames that are there already, as an array, are taken as they are.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it holds too few frames, or shows fewer a second than `fps`.
    """
    name = f"prompt {prompt_id!r}"
    if isinstance(source, np.ndarray):
        if source.dtype != np.uint8 or source.ndim != 4 or source.shape[-1] != 3 or len(source) < frames:
            raise ValueError(
                f"{name}: its clip is {source.dtype} of the shape {source.shape}, and must be uint8 (frames, height, width, 3) "
                f"with {frames} frames (policy.frames) or more"
            )
        pixels = source[:frames]
    else:
        video = source if isinstance(source, Video) else Video(str(source))
        timeline, indices = frames_to_take(video, frames, fps, name)
        rule = FrameRule(budget=Covering(1, width=size[0], height=size[1]))
        pixels = decode(str(video.source), timeline, indices, rule)
    return np.stack([np.asarray(picture_at(Image.fromarray(frame), size, "crop")) for frame in pixels])


def frames_to_take(video: Video, frames: int, fps: float | None, name: str) -> tuple[Timeline, Sequence[int]]:
    """A file's times, and the indices of the frames to show, one every 1 / fps seconds from the beginning of the part on.

    A file of about that rate is taken frame by frame. Raises what `clip_at` does.
    """
    if not isinstance(video.source, str | Path):
        raise ValueError(f"{name}: its clip is a sequence of pictures, and clips are taught from files: make it an .mp4")
    label = f"{name}: the clip {str(video.source)!r}"
    timeline = read_timeline(video.source)
    fps = timeline.fps if fps is None else fps
    try:
        inside = timeline.inside(*timeline.part(video.start, video.end))
    except ValueError as error:
        raise ValueError(f"{label}: {error}") from None
    if timeline.fps < fps * (1 - CLOSE_RATE):
        raise ValueError(
            f"{label} shows {timeline.fps:.4g} frames a second, and the policy draws {fps:.4g}: set policy.fps = "
            f"{timeline.fps:.4g}, or leave it out"
        )
    if timeline.fps > fps * (1 + CLOSE_RATE):
        own = np.asarray(timeline.times)[inside]
        there = min(frames, int((own[-1] - own[0] + 0.5 / timeline.fps) * fps) + 1) if len(own) else 0
        inside = [inside[i] for i in nearest(own, own[0] + np.arange(there) / fps)] if there else []
    if len(inside) < frames:
        raise ValueError(
            f"{label} gives {len(inside)} frames at {fps:.4g} a second, and policy.frames is {frames}: lower policy.frames, or "
            "leave out clips that are shorter"
        )
    return timeline, inside[:frames]
