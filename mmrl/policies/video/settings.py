"""Settings of clips."""

from dataclasses import dataclass
from typing import Annotated, Literal

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
    """The decoder; auto = decord, or PyAV if decord is missing or cannot read the file."""
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
