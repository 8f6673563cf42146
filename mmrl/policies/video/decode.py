"""From a file to the frames that were asked for, or that a generator draws. Imports no torch, because workers import this."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from mmrl.answers.spans.displays import beyond_turns
from mmrl.answers.spans.timelines import MissingError, Timeline, by_pyav, read_timeline, sequence
from mmrl.core.samples import VIDEO, Video, kind_of
from mmrl.policies.video.sampling import Budget, BudgetError, FrameRule, choose, nearest
from mmrl.runtime.blame import about
from mmrl.runtime.disk import sha256_of
from mmrl.runtime.pictures import open_upright, picture_at

PIECE = 16
"""Frames that exist at their full size at the same time."""
Decoder = Callable[[str, Timeline, Sequence[int]], Iterator[np.ndarray]]


@dataclass(frozen=True)
class Frames:
    """The frames of one clip."""

    pixels: np.ndarray
    """(n, height, width, 3), uint8."""
    times: tuple[float, ...]
    """When each is shown, in seconds from the start of the part that is shown."""
    step: float
    """Seconds between frames that the sampler aimed at."""
    seconds: float
    """How long the part lasts."""
    fps: float
    """Frames per second of the file, on average."""
    digest: str = ""
    """A digest of the file's content."""


def fetch(video: Video, rule: FrameRule, hashed: bool = True) -> Frames:
    """Open, sample, decode, resize; raises FileNotFoundError, or ValueError with the file's name for all else that is wrong."""
    if isinstance(video.source, str):
        timeline = read_timeline(video.source)
        name, read = f"the video {video.source!r}", lambda indices: decode(str(video.source), timeline, indices, rule)
        digest = sha256_of(video.source) if hashed else ""
    else:
        timeline = sequence_timeline(video, rule)
        name, read = f"the sequence {video.source[0]!r} ...", lambda indices: pictures(video.source, indices, rule.budget)
        digest = "".join(sha256_of(source) for source in video.source) if hashed else ""
    with about(name):
        chosen = choose(timeline, video, rule)
        pixels = read(chosen.indices)
    times = tuple(timeline.times[i] - chosen.start for i in chosen.indices)
    return Frames(pixels, times, chosen.step, chosen.seconds, timeline.fps, digest)


def decode(path: str, timeline: Timeline, indices: Sequence[int], rule: FrameRule) -> np.ndarray:
    """The frames with these ascending indices, resized; ValueError with what each decoder said where none can read them."""
    said: list[str] = []
    for name in ("decord", "pyav") if rule.backend == "auto" else (rule.backend,):
        try:
            return resize(DECODERS[name](path, timeline, indices), len(indices), rule.budget)
        except MissingError as error:
            said.append(f"{name} is not installed ({error})")
        except BudgetError:
            raise
        except ValueError as error:
            said.append(f"{name} says: {error}")
    raise ValueError("it cannot be decoded: " + "; ".join(said))


def by_decord(path: str, timeline: Timeline, indices: Sequence[int]) -> Iterator[np.ndarray]:
    """Raises MissingError; ValueError in the words of decord, or where it counts or shows frames otherwise than the file says."""
    try:
        import decord
    except ImportError as error:
        raise MissingError(error) from None
    try:
        if (odd := beyond_turns(path)) is not None:
            raise ValueError(f"the file {odd}, which it does not show")
        decord.logging.set_level(decord.logging.FATAL)
        reader = decord.VideoReader(path, num_threads=1)
        if len(reader) != len(timeline.times):
            raise ValueError(f"it counts {len(reader)} frames, the container {len(timeline.times)}")
        for start in range(0, len(indices), PIECE):
            yield reader.get_batch(list(indices[start : start + PIECE])).asnumpy()
    except (RuntimeError, decord.DECORDError) as error:
        raise ValueError(brief(error)) from None


DECODERS: dict[str, Decoder] = {"decord": by_decord, "pyav": by_pyav}


def pictures(sources: Sequence[str], indices: Sequence[int], budget: Budget | None) -> np.ndarray:
    """Pictures of a sequence. Raises FileNotFoundError, or ValueError for a file that is no picture or of another size."""

    def pieces() -> Iterator[np.ndarray]:
        shape = None
        for i in indices:
            frame = np.asarray(open_upright(sources[i]))
            shape = shape or frame.shape
            if frame.shape != shape:
                raise ValueError(f"{sources[i]!r} is not as large as the first picture: pictures of a sequence have one size")
            yield frame[None]

    return resize(pieces(), len(indices), budget)


def sequence_timeline(video: Video, rule: FrameRule) -> Timeline:
    """Pictures taken `video.fps` times a second, or as often as the policy shows frames."""
    if not video.source:
        raise ValueError("a sequence of pictures holds none")
    for source in video.source:
        if not Path(source).is_file():
            raise FileNotFoundError(f"there is no picture {source!r}")
    return sequence(len(video.source), video.fps or rule.fps)


def resize(pieces: Iterator[np.ndarray], number: int, budget: Budget | None) -> np.ndarray:
    """All frames in one array; bicubic, as the processors resize."""
    out: np.ndarray | None = None
    place = 0
    for piece in pieces:
        high, wide = piece.shape[1:3] if budget is None else budget.size(number, *piece.shape[1:3])
        if out is None:
            out = np.empty((number, high, wide, 3), np.uint8)
        if (high, wide) != piece.shape[1:3]:
            frames = [Image.fromarray(frame).resize((wide, high), Image.Resampling.BICUBIC) for frame in piece]
            piece = np.stack([np.asarray(frame) for frame in frames])
        out[place : place + len(piece)] = piece
        place += len(piece)
    if out is None or place != number:
        raise ValueError(f"{place} of {number} frames came out of the decoder")
    return out


def brief(error: Exception) -> str:
    """decord's words without the list of its own calls."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.strip().startswith(("[bt]", "Stack"))]
    return " ".join(lines)[:300]


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
    with about(label):
        inside = timeline.inside(*timeline.part(video.start, video.end))
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
