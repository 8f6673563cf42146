"""Clips as the model's processor takes them: mp4, mkv, webm or pictures in a row -> frames with their true times."""

import logging
import signal
from collections import OrderedDict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np

from mmrl.answers.spans.sounds import Ear
from mmrl.core.samples import ClipTime, Video
from mmrl.policies.shared.workers.crew import Board, Crew, Death, Early
from mmrl.policies.video.decode import Frames, fetch
from mmrl.policies.video.sampling import FrameRule, VideoSettings
from mmrl.runtime.workers import SilentError, WorkerError, WorkerProcess

log = logging.getLogger("mmrl")
CRASHES = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)
"""Signals that a process brings upon itself: the clip is to blame."""
BAD_CLIP = "take the clip out of the data, or convert it to H.264"
NO_WORKERS = "set policy.video.workers = 0 to decode in the run's own process"


@dataclass
class FrameCache:
    """Frames that were decoded before, found by the content of their file; the least recently used go first.

    A file is hashed by whoever decodes it, and again when its size or date change.
    """

    max_bytes: int
    _kept: OrderedDict[Hashable, Frames] = field(default_factory=OrderedDict, init=False)
    _digests: dict[Hashable, str] = field(default_factory=dict, init=False)

    @property
    def num_bytes(self) -> int:
        return sum(frames.pixels.nbytes for frames in self._kept.values())

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, video: Video, rule: FrameRule) -> Frames | None:
        """Raises FileNotFoundError when the file is gone."""
        digest = self._digests.get(stamp(video))
        key = (digest, wishes(video), rule)
        if digest is None or key not in self._kept:
            return None
        self._kept.move_to_end(key)
        return self._kept[key]

    def put(self, video: Video, rule: FrameRule, frames: Frames) -> None:
        """Frames larger than the whole budget are not kept."""
        self._digests[stamp(video)] = frames.digest
        if frames.pixels.nbytes > self.max_bytes:
            return
        frames.pixels.setflags(write=False)
        self._kept[frames.digest, wishes(video), rule] = frames
        room = self.max_bytes - self.num_bytes
        while room < 0:
            _, old = self._kept.popitem(last=False)
            room += old.pixels.nbytes


def stamp(video: Video) -> Hashable:
    """Changes when a file is written again."""
    sources = (video.source,) if isinstance(video.source, str) else video.source
    found = [(source, Path(source).stat()) for source in sources]
    return tuple((source, stat.st_size, stat.st_mtime_ns) for source, stat in found)


def wishes(video: Video) -> Video:
    """The frames that a video asks for, regardless of its file's name, and of the order and noise in which they are shown."""
    return replace(video, source="" if isinstance(video.source, str) else (), shuffle=None, noise=None)


@dataclass
class VideoInput:
    """Video -> Frames, from the cache, from a worker that was asked before, or decoded now."""

    settings: VideoSettings
    rule: FrameRule
    ear: Ear = field(default_factory=Ear)
    """What the model takes of sounds."""
    cache: FrameCache = field(init=False)
    early: Early = field(init=False)
    """Clips that processes decode, which start with the first one."""
    used: bool = field(default=False, init=False)
    """True once a clip was asked for."""

    def __post_init__(self) -> None:
        self.cache = FrameCache(self.settings.cache_mb * 2**20)
        self.early = Early(partial(decoders, self.settings))

    def ask(self, videos: Iterable[Video]) -> None:
        """Let workers begin with these clips; an error is raised when the clip is taken."""
        if self.settings.workers:
            fresh = [video for video in map(without_changes, videos) if self.cached(video) is None]
            self.early.ask({video: (self._job(video), 0) for video in fresh})

    def __call__(self, video: Video) -> Frames:
        """Raises FileNotFoundError, ValueError for a wrong clip, WorkerError where workers died or hung twice."""
        self.used = True
        own = without_changes(video)
        frames = self.cached(own)
        asked = self.early.take(own)
        if frames is None:
            if asked is None and self.settings.workers:
                asked = self.begin(own)
            frames = fetch(*self._job(own)) if asked is None else asked.wait()[0]
            if self.settings.cache_mb:
                self.cache.put(own, self.rule, frames)
        return change_frames(frames, video)

    def begin(self, video: Video) -> Board:
        """Let a worker decode a clip; the board's one answer is its Frames."""
        return self.early.begin(*self._job(video))

    def _job(self, video: Video) -> tuple[Video, FrameRule, bool]:
        return video, self.rule, self.settings.cache_mb > 0

    def cached(self, video: Video) -> Frames | None:
        """The frames of a clip as its file has it, where they are kept."""
        return self.cache.get(video, self.rule) if self.settings.cache_mb and exists(video) else None


def decoders(settings: VideoSettings) -> Crew:
    """The processes that the settings ask for."""
    return Crew([Decoder(settings.timeout) for _ in range(settings.workers)], try_once_more, "decoder")


class Decoder:
    """A process that decodes clips, and says whose clip it died over."""

    def __init__(self, timeout: float) -> None:
        self.timeout, self.process = timeout, WorkerProcess(fetch, reads_main=False, OMP_NUM_THREADS="1")
        self.give_up, self.close = self.process.give_up, self.process.close

    def __call__(self, video: Video, rule: FrameRule, hashed: bool) -> Frames:
        """Raises what is wrong with the clip; WorkerError when the process died or did not answer in time."""
        try:
            return self.process(video, rule, hashed, timeout_s=self.timeout)
        except SilentError as error:
            why = silence(error.stopped_by, self.timeout)
        except WorkerError as error:
            if error.code is None:
                raise
            why = death(error.code)
        raise WorkerError(f"the process that decoded {video.source!r} {why}")


def try_once_more(worker: int, error: Death, deaths: int) -> None:
    """A clip is decoded by a second process, never by a third."""
    if deaths > 1:
        raise error
    log.warning("%s; a new process decodes the clip", str(error).rpartition(": ")[0])


def silence(stopped_by: int | None, timeout: float) -> str:
    """Why a living process does not answer, and what to do about it."""
    what = f"said nothing for {timeout:g} s"
    if stopped_by is None:
        return f"{what} and was killed: {BAD_CLIP}, or raise policy.video.timeout"
    return (
        f"was stopped by {name_of(stopped_by)}, {what} and was killed: find out what stops the run's processes, or {NO_WORKERS}"
    )


def death(code: int) -> str:
    """How a process ended by itself or was killed, and what to do about it."""
    if code >= 0:
        return f"ended with exit code {code}: {BAD_CLIP}"
    remedy = f"if memory ran out, lower policy.video.workers or policy.video.max_frames, or {NO_WORKERS}"
    return f"was killed by {name_of(-code)}: {BAD_CLIP if -code in CRASHES else remedy}"


def name_of(number: int) -> str:
    return next((one.name for one in signal.Signals if one == number), f"signal {number}")


def exists(video: Video) -> bool:
    return all(Path(source).is_file() for source in ([video.source] if isinstance(video.source, str) else video.source))


def without_changes(video: Video) -> Video:
    """The clip as its file has it."""
    return replace(video, shuffle=None, noise=None)


def change_frames(frames: Frames, video: Video) -> Frames:
    """The pictures shuffled and made noisy as the video asks for, the times as they were."""
    pixels = frames.pixels
    if video.shuffle is not None:
        pixels = pixels[np.random.RandomState(video.shuffle % 2**32).permutation(len(pixels))]
    if video.noise is not None:
        deviation, seed = video.noise
        generator = np.random.default_rng(seed)
        pixels = np.stack([add_noise(frame, 255 * deviation, generator) for frame in pixels])
    return frames if pixels is frames.pixels else replace(frames, pixels=pixels)


def add_noise(frame: np.ndarray, deviation: float, generator: np.random.Generator) -> np.ndarray:
    """A frame (height, width, 3), uint8, with Gaussian noise of this standard deviation on every colour of every pixel."""
    noisy = frame + deviation * generator.standard_normal(frame.shape, dtype=np.float32)
    return noisy.round().clip(0, 255).astype(np.uint8)


def processor_arguments(clips: list[Frames], options: dict[str, object]) -> dict[str, object]:
    """Arguments for the model's processor: frames, never a path, and a clock that ticks once a second.

    Frame k stands at `frames_indices[k]` ticks, so times are right whatever the frame rate does.
    """
    import torch
    from transformers.video_utils import VideoMetadata

    clip_facts = [
        VideoMetadata(
            total_num_frames=len(clip.times) * clip.step,  # type: ignore[arg-type] - seconds may have fractions; typed as whole frames
            fps=1.0,
            frames_indices=list(clip.times),  # type: ignore[arg-type] - likewise
            duration=clip.seconds,
            height=clip.pixels.shape[1],
            width=clip.pixels.shape[2],
        )
        for clip in clips
    ]
    videos = [torch.from_numpy(np.ascontiguousarray(clip.pixels.transpose(0, 3, 1, 2))) for clip in clips]
    # One list of clips per text: processors before transformers 5.23 compare its length with the text's markers
    return {"videos": [videos], "videos_kwargs": {"do_sample_frames": False, "video_metadata": clip_facts, **options}}


def clip_time(frames: Frames) -> ClipTime:
    return ClipTime(frames.seconds, frames.fps, len(frames.times))
