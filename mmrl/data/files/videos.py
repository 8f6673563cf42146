"""A look at videos before training: the length and frames of a file, and checks that a prompt's clip is in it."""

from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, cast

from mmrl.answers.spans.displays import decoded, shown
from mmrl.answers.spans.timelines import read_timeline, sequence
from mmrl.core.samples import VIDEO, Video
from mmrl.data.files.ahead import FileMemory
from mmrl.data.files.paths import path_below
from mmrl.data.files.pictures import picture_size

WISHES = ("video_start", "video_end", "fps", "nframes")
"""What a clip is to be shown of, as Qwen's messages call it."""
MOST_WISHED = 1e6
"""Seconds or frames."""
_DECODED: FileMemory[None] = FileMemory()


class VideoFacts(NamedTuple):
    """Length and frames of a file, or of a part of one: `VideoFacts(12.0, 25.0, 300, False)`."""

    seconds: float
    fps: float
    """Frames per second, on average."""
    frames: int
    varies: bool
    """Does the frame rate vary?"""


def video_of(root: Path, cell: object, anywhere: bool) -> Video:
    """The clip of a cell: a path below a folder, or Qwen's words for a part of one, {"video": "a.mp4", "video_start": 2.0}.

    Raises ValueError for anything else, and wishes that are no numbers.
    """
    asked = cast(Mapping[str, object], cell) if isinstance(cell, Mapping) else {VIDEO.name: cell}
    source, wishes = asked.get(VIDEO.name), dict[str, float]()
    if not isinstance(source, str) or not source:
        raise ValueError(f"a {VIDEO.noun} must be a path, not {str(source)[:80]!r}")
    for name, value in asked.items():
        if name not in (VIDEO.name, *WISHES):
            raise ValueError(f"a {VIDEO.noun} asks for {name}, which is not known: {', '.join(WISHES)} are")
        if name != VIDEO.name:
            if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MOST_WISHED:
                raise ValueError(f"{name} of a {VIDEO.noun} is {str(value)[:80]!r}: it must be a number")
            wishes[name] = value
    start, end, fps, frames = map(wishes.get, WISHES)
    if frames is not None and frames != int(frames):
        raise ValueError(f"nframes of a {VIDEO.noun} is {frames:g}: it must be a whole number")
    path = path_below(root, source, "image_root", anywhere)
    return Video(path, start, end, fps, None if frames is None else int(frames))


def cell_of(clip: Video, path: str) -> str | dict[str, str | float]:
    """The cell that `video_of` reads as this clip of the file at `path`."""
    wishes = zip(WISHES, (clip.start, clip.end, clip.fps, clip.frames), strict=True)
    asked = {name: value for name, value in wishes if value is not None}
    return {VIDEO.name: path, **asked} if asked else path


def probe_video(source: str | Path | Video) -> VideoFacts:
    """Length and frames of a file, or of the part that a `Video` names; read from the container without decoding.

    Raises FileNotFoundError, or ValueError for a file without video, an empty or cut one, an unknown codec, or a part outside it.
    """
    video = source if isinstance(source, Video) else Video(str(source))
    if not isinstance(video.source, str):
        return probe_sequence(video)
    timeline = read_timeline(video.source)
    start, end = timeline.part(video.start, video.end)
    times = [timeline.times[i] for i in timeline.inside(start, end)]
    gaps = [b - a for a, b in pairwise(times)]
    # Containers round to their own clock: a millisecond in mkv and webm.
    return VideoFacts(end - start, timeline.fps, len(times), bool(gaps) and max(gaps) - min(gaps) > 0.0021)


def probe_sequence(video: Video) -> VideoFacts:
    """Length and frames of pictures of one size, taken `video.fps` times a second (once a second if it is None)."""
    sizes = {source: picture_size(source) for source in video.source}
    if not sizes:
        raise ValueError("a sequence of pictures holds none")
    first = next(iter(sizes.values()))
    for source, size in sizes.items():
        if size != first:
            raise ValueError(f"picture {source} is {size[0]} x {size[1]}, the first of its sequence {first[0]} x {first[1]}")
    timeline = sequence(len(video.source), video.fps or 1.0)
    start, end = timeline.part(video.start, video.end)
    return VideoFacts(end - start, timeline.fps, len(timeline.inside(start, end)), False)


def check_video(source: str | Path | Video, min_frames: int = 2, decode: bool = True) -> VideoFacts:
    """Raise FileNotFoundError or ValueError, naming the file, for a clip that cannot be shown.

    `min_frames` is the run's; a Video's own `frames` wins. `decode` reads the first and the last frame too, which finds
    codecs that cannot be decoded.
    """
    video = source if isinstance(source, Video) else Video(str(source))
    name = repr(video.source if isinstance(video.source, str) else video.source[:1])
    facts = probe_video(video)
    if isinstance(video.source, str) and video.fps is not None and video.frames is not None:
        raise ValueError(f"the video {name} names both fps and frames: name one of them")
    if (video.fps is not None and video.fps <= 0) or (video.frames is not None and video.frames < 1):
        raise ValueError(
            f"the video {name} asks for {video.fps if video.frames is None else video.frames} frames: they must be more than 0"
        )
    wanted = video.frames or min_frames
    if facts.frames < wanted:
        raise ValueError(f"the video {name} holds {facts.frames} frames in the part that is shown, fewer than {wanted}")
    if decode and isinstance(video.source, str):
        _DECODED(video.source, partial(decode_ends, video.source))
    return facts


def decode_ends(path: str) -> None:
    """Raise ValueError unless the first and the last frame come out of the decoder."""
    import av
    from av.error import FFmpegError

    try:
        with av.open(path) as file:
            stream = file.streams.video[0]
            first = next(decoded(file, stream), None)
            if first is not None:
                shown(first, stream)
            file.seek(file.duration or 0)
            last = max((1 for _ in file.decode(stream)), default=None)
    except FFmpegError as error:
        raise ValueError(f"the video {path!r} cannot be decoded: {error.strerror}") from None
    except ValueError as error:
        raise ValueError(f"the video {path!r} {error}") from None
    if first is None or last is None:
        raise ValueError(f"the video {path!r} cannot be decoded: no frame comes out")
