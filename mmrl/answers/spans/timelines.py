"""Video files: the moment at which each frame is shown, as the container says, and the frames, by PyAV. Imports no torch."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from mmrl.answers.spans.displays import AvObject, decoded, shown

CLOSE = 1e-6
"""Seconds that count as none."""
SLACK = 1.0
"""Seconds by which a file may promise more than it holds before it counts as cut short."""


@dataclass(frozen=True)
class Timeline:
    """The times of a file's frames: `Timeline((0.0, 0.04), 0.08)`.

    Second 0 is the first frame, whatever the container counts from.
    """

    times: tuple[float, ...]
    """When each frame appears, in order; not evenly spaced where the frame rate varies."""
    seconds: float
    """When the last frame ends."""

    @property
    def fps(self) -> float:
        """Frames per second, on average."""
        return len(self.times) / self.seconds

    def part(self, start: float | None, end: float | None) -> tuple[float, float]:
        """Start and end of the part that a prompt asks for, in seconds; None: the file's own. ValueError without such a part.

        An end beyond the file by a tenth of a second and two frames is the file's end: containers and data sets round.
        """
        first, last = start or 0.0, self.seconds if end is None else end
        slack = 0.1 + 2 / self.fps
        if not 0 <= first < min(last, self.seconds) or last > self.seconds + slack:
            raise ValueError(f"it asks for {first:g} s to {last:g} s, and the file lasts from 0 to {self.seconds:.2f} s")
        return first, min(last, self.seconds)

    def inside(self, start: float, end: float) -> list[int]:
        """Indices of the frames that appear from `start` on and before `end`."""
        return [i for i, time in enumerate(self.times) if start - CLOSE <= time < end - CLOSE]


def read_timeline(path: str | Path) -> Timeline:
    """Read the timeline of a file from its packets, without decoding one.

    Raises FileNotFoundError, or ValueError for a file that is no video, has no picture, an unknown codec or was cut short, or
    where PyAV is missing.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no video {str(path)!r}")
    if path.stat().st_size == 0:
        raise ValueError(f"the video {str(path)!r} is an empty file")
    try:
        import av
        from av.error import FFmpegError
    except ImportError as error:
        raise ValueError(f"reading videos needs the package 'av': pip install av ({error})") from None
    try:
        with av.open(str(path)) as file:
            return _timeline(file)
    except FFmpegError as error:
        raise ValueError(f"the video {str(path)!r} cannot be opened: {error.strerror} (is it cut short, or no video?)") from None
    except ValueError as error:
        raise ValueError(f"the video {str(path)!r} {error}") from None


def _timeline(file: AvObject) -> Timeline:
    """The timeline of an open file; ValueError with the rest of a sentence that starts with the file's name."""
    if not file.streams.video:
        raise ValueError("holds no pictures, only " + (", ".join(stream.type for stream in file.streams) or "nothing"))
    stream = file.streams.video[0]
    if stream.codec_context is None:
        raise ValueError("is in a codec that this FFmpeg does not know: convert it to H.264")
    shown: dict[int, int] = {}
    last = 0.0
    damaged = False
    for packet in file.demux():
        moment = packet.dts if packet.pts is None else packet.pts
        if moment is None or packet.time_base is None:
            continue
        last = max(last, float((moment + (packet.duration or 0)) * packet.time_base))
        if packet.stream is stream and packet.size and not packet.is_discard:
            shown[moment] = packet.duration or 0
            damaged = damaged or packet.is_corrupt
    if not shown:
        raise ValueError("holds no frame")
    promised = (file.duration or 0) / 1_000_000
    if damaged or stream.frames > len(shown) + 2 or last + SLACK < promised + min(0, file.start_time or 0) / 1_000_000:
        raise ValueError(
            f"is cut short: it promises {promised:.2f} seconds and {stream.frames or 'unnumbered'} frames, "
            f"and holds {last:.2f} seconds and {len(shown)} frames: fetch it again"
        )
    moments = sorted(shown)
    base = float(stream.time_base)
    times = tuple((moment - moments[0]) * base for moment in moments)
    gaps = [b - a for a, b in pairwise(times)]
    end = times[-1] + (shown[moments[-1]] * base or (median(gaps) if gaps else 0.0))
    if end <= 0:
        raise ValueError("lasts 0 seconds")
    return Timeline(times, end)


def sequence(number: int, rate: float) -> Timeline:
    """The times of pictures in a row, taken `rate` times a second."""
    return Timeline(tuple(i / rate for i in range(number)), number / rate)


class MissingError(Exception):
    """A decoder cannot be imported."""


def by_pyav(path: str, timeline: Timeline, indices: Sequence[int]) -> Iterator[NDArray[np.uint8]]:
    """Seeks to the key frame before a wanted frame when one lies between. Raises MissingError, ValueError with FFmpeg's words."""
    try:
        import av.logging
        from av.error import FFmpegError
    except ImportError as error:
        raise MissingError(error) from None
    # A decoder's threads need the interpreter to log damaged frames, while whoever closes it waits for them:
    # torchvision.io turns that log on for the whole process.
    av.logging.set_level(None)
    try:
        with av.open(path) as file:
            stream = file.streams.video[0]
            stream.thread_type = "AUTO"
            moments, keys = moments_of(file, stream)
            wanted = [moments[i] for i in indices]
            place, ready, frames = 0, None, iter(())
            while place < len(wanted):
                key = max((k for k in keys if k <= wanted[place]), default=None)
                if ready is None or (key is not None and key > ready):
                    file.seek(moments[0] if key is None else key, stream=stream)
                    frames = decoded(file, stream)
                frame = next((frame for frame in frames if frame.pts is not None and frame.pts >= wanted[place]), None)
                if frame is None or frame.pts != wanted[place]:
                    raise ValueError(f"the frame at {timeline.times[indices[place]]:.3f} s does not come out of the decoder")
                ready, place = frame.pts, place + 1
                yield shown(frame, stream)[None]
    except FFmpegError as error:
        raise ValueError(f"{error.strerror} ({error})") from None


def moments_of(file: AvObject, stream: AvObject) -> tuple[list[int], list[int]]:
    """Presentation times of all frames in order, and of key frames, in the stream's own clock."""
    packets = [
        (packet.dts if packet.pts is None else packet.pts, packet.is_keyframe)
        for packet in file.demux(stream)
        if packet.size and not packet.is_discard
    ]
    known = sorted((moment, key) for moment, key in packets if moment is not None)
    return sorted({moment for moment, _ in known}), [moment for moment, key in known if key]
