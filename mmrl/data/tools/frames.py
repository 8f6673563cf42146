"""`frames`: what a clip shows at the times that a model asks for, as pictures."""

from bisect import bisect_right
from collections.abc import Sequence

from PIL import Image

from mmrl.answers.calls import CallError
from mmrl.answers.spans.timelines import CLOSE, MissingError, Timeline, by_pyav, read_timeline, sequence
from mmrl.core.samples import Video
from mmrl.data.files.pictures import upright

MOST_FRAMES = 8


def frames(video: Video, times: Sequence[float | int], most: int = MOST_FRAMES) -> list[tuple[float, Image.Image]]:
    """For each time the frame that is on the screen: when it appeared, and its picture in the size of the file.

    Times are in seconds from the beginning of the part that is shown. A view's changes (`shuffle`, `noise`) are left out.

    Raises:
        CallError: no time, more than `most`, or one outside the part that is shown.
        FileNotFoundError, ValueError: the clip itself cannot be read.
    """
    if not 0 < len(times) <= most:
        raise CallError(f"{len(times)} times are asked for: ask for 1 to {most}")
    rate = video.fps or 1.0
    is_file = isinstance(video.source, str)
    timeline = read_timeline(str(video.source)) if is_file else sequence(len(video.source), rate)
    start, end = timeline.part(video.start, video.end)
    shown = timeline.inside(start, end)
    if not all(-CLOSE <= time <= end - start + CLOSE for time in times):
        raise CallError(f"the clip lasts from 0 to {end - start:.2f} s, and a time outside of it is asked for")
    moments = [timeline.times[i] - start for i in shown]
    places = [max(0, bisect_right(moments, time + CLOSE) - 1) for time in times]
    numbers = sorted({shown[place] for place in places})
    pictures = dict(zip(numbers, decode(video, timeline, numbers), strict=True))
    return [(moments[place], pictures[shown[place]]) for place in places]


def decode(video: Video, timeline: Timeline, numbers: Sequence[int]) -> list[Image.Image]:
    """The frames with these ascending numbers."""
    if not isinstance(video.source, str):
        return [upright(video.source[i]) for i in numbers]
    try:
        return [Image.fromarray(piece[0]) for piece in by_pyav(video.source, timeline, numbers)]
    except (MissingError, ValueError) as error:
        raise ValueError(f"the video {video.source!r} cannot be decoded: {error}") from None
