"""Published algorithms by name, as deltas of each other: those of text first."""

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.presets import flow, text, text_methods, text_planners, video

PRESETS: dict[str, Algorithm] = {**text.PRESETS, **text_methods.PRESETS, **text_planners.PRESETS, **video.PRESETS, **flow.PRESETS}
assert len(PRESETS) == sum(len(one.PRESETS) for one in (text, text_methods, text_planners, video, flow)), (
    "two presets have one name"
)
