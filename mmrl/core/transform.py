"""Rewards brought to another scale."""

from dataclasses import dataclass

from mmrl.core.ranges import Number, check_ranges


@dataclass(frozen=True)
class Transform:
    """clamp((r - shift) / scale, low, high); the reward as it was is logged as its part `raw`."""

    scale: Number = 1.0
    shift: Number = 0.0
    low: Number | None = None
    high: Number | None = None

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.scale == 0:
            raise ValueError(f"{self}: scale must not be 0")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"{self}: low is above high")

    def __call__(self, value: float) -> float:
        moved = (value - self.shift) / self.scale
        moved = moved if self.low is None else max(moved, self.low)
        return moved if self.high is None else min(moved, self.high)
