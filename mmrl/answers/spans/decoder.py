"""The frames of a file with these numbers, by PyAV. Imports no torch."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mmrl.answers.spans.timelines import Timeline


class MissingError(Exception):
    """A decoder cannot be imported."""


def by_pyav(path: str, timeline: Timeline, indices: Sequence[int]) -> Iterator[NDArray[Any]]:
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
            place, ready, decoded = 0, None, iter(())
            while place < len(wanted):
                key = max((k for k in keys if k <= wanted[place]), default=None)
                if ready is None or (key is not None and key > ready):
                    file.seek(moments[0] if key is None else key, stream=stream)
                    decoded = file.decode(stream)
                frame = next((frame for frame in decoded if frame.pts is not None and frame.pts >= wanted[place]), None)
                if frame is None or frame.pts != wanted[place]:
                    raise ValueError(f"the frame at {timeline.times[indices[place]]:.3f} s does not come out of the decoder")
                ready, place = frame.pts, place + 1
                # Turned as the camera noted: decord does so by itself.
                yield np.ascontiguousarray(np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90))[None]
    except FFmpegError as error:
        raise ValueError(f"{error.strerror} ({error})") from None


def moments_of(file: Any, stream: Any) -> tuple[list[int], list[int]]:
    """Presentation times of all frames in order, and of key frames, in the stream's own clock."""
    packets = [
        (packet.dts if packet.pts is None else packet.pts, packet.is_keyframe)
        for packet in file.demux(stream)
        if packet.size and not packet.is_discard
    ]
    known = sorted((moment, key) for moment, key in packets if moment is not None)
    return sorted({moment for moment, _ in known}), [moment for moment, key in known if key]
