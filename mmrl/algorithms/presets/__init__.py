"""Published algorithms by name, as deltas of each other: those of text first."""

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.presets import flow, text, video

PRESETS: dict[str, Algorithm] = {**text.PRESETS, **video.PRESETS, **flow.PRESETS}
assert len(PRESETS) == len(text.PRESETS) + len(video.PRESETS) + len(flow.PRESETS), "two presets have one name"
