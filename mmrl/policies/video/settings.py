"""Settings of clips."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class VideoSettings:
    """How clips become frames; what a prompt's `Video` says of fps, frames, start and end comes first."""

    fps: float = 2.0
    """Frames shown per second of a clip."""
    min_frames: int = 4
    """A short clip is shown at a higher rate; one with fewer frames than this is an error."""
    max_frames: int = 768
    """A long clip is shown at a lower rate."""
    min_pixels: int | None = None
    max_pixels: int | None = None
    """Qwen-VL: frames are resized to an area between these; unset = what the model's own processor says."""
    total_pixels: int | None = None
    """Qwen-VL: the frames of a clip together have at most this area; it comes before min_pixels."""
    backend: Literal["auto", "decord", "pyav"] = "auto"
    """Who decodes; auto = decord, and PyAV where decord is missing or cannot read the file."""
    cache_mb: int = 512
    """Decoded and resized frames kept, found again by the content of their file; 0 = none."""
    workers: int = 2
    """Processes that decode while the policy works; 0 = decode where it is needed."""
    timeout: float = 120.0
    """Seconds a worker may take for one clip; then it is killed, and training stops with an error."""

    def __post_init__(self) -> None:
        pixels = {name: getattr(self, name) for name in ("min_pixels", "max_pixels", "total_pixels")}
        checks = {
            "fps": (self.fps > 0, "more than 0"),
            "min_frames": (self.min_frames >= 1, "1 or more"),
            "max_frames": (self.max_frames >= self.min_frames, f"min_frames ({self.min_frames}) or more"),
            "cache_mb": (self.cache_mb >= 0, "0 (no cache) or more"),
            "workers": (self.workers >= 0, "0 (decode where it is needed) or more"),
            "timeout": (self.timeout > 0, "more than 0"),
            **{name: (value is None or value >= 1, "1 or more") for name, value in pixels.items()},
        }
        for name, (fine, wanted) in checks.items():
            if not fine:
                raise ValueError(f"policy.video.{name} is {getattr(self, name)!r}: it must be {wanted}")
        if self.min_pixels is not None and self.max_pixels is not None and self.min_pixels > self.max_pixels:
            raise ValueError(
                f"policy.video.min_pixels ({self.min_pixels}) is larger than policy.video.max_pixels ({self.max_pixels}): "
                "lower one or raise the other"
            )
