"""Clips as the model's processor takes them: mp4, mkv, webm or pictures in a row -> frames with their true times."""

from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from mmrl.answers.spans.sounds import Ear
from mmrl.core.samples import ClipTime, Video
from mmrl.policies.video.cache import FrameCache
from mmrl.policies.video.decode import Frames, fetch
from mmrl.policies.video.sampling import FrameRule, VideoSettings
from mmrl.policies.video.workers import Workers


@dataclass
class VideoInput:
    """Video -> Frames, from the cache, from a worker that was asked before, or decoded now."""

    settings: VideoSettings
    rule: FrameRule
    ear: Ear = field(default_factory=Ear)
    """What the model takes of sounds."""
    cache: FrameCache = field(init=False)
    workers: Workers = field(init=False)
    used: bool = field(default=False, init=False)
    """True once a clip was asked for."""
    _asked: dict[Video, "Future[Frames]"] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.cache = FrameCache(self.settings.cache_mb * 2**20)
        self.workers = Workers(self.settings.workers, self.settings.timeout)

    def ask(self, videos: Iterable[Video]) -> None:
        """Let workers begin with these clips; an error is raised when the clip is taken."""
        for video in dict.fromkeys(map(without_changes, videos)):
            if self.settings.workers and video not in self._asked and not self._has_cached(video):
                self._asked[video] = self.workers.ask(video, self.rule, self.settings.cache_mb > 0)

    def __call__(self, video: Video) -> Frames:
        """Raises FileNotFoundError, ValueError for a wrong clip, WorkerError where workers died or hung twice."""
        self.used = True
        own = without_changes(video)
        frames = self.cache.get(own, self.rule) if self.settings.cache_mb and exists(own) else None
        future = self._asked.pop(own, None)
        if frames is None:
            if future is None and self.settings.workers:
                future = self.workers.ask(own, self.rule, self.settings.cache_mb > 0)
            frames = fetch(own, self.rule, self.settings.cache_mb > 0) if future is None else future.result()
            if self.settings.cache_mb:
                self.cache.put(own, self.rule, frames)
        return change_frames(frames, video)

    def _has_cached(self, video: Video) -> bool:
        return bool(self.settings.cache_mb) and exists(video) and self.cache.get(video, self.rule) is not None


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
