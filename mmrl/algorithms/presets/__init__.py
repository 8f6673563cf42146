"""Published algorithms by name, as deltas of each other: those of text first."""

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.presets import flow, text, text_methods, text_planners, text_state, video

MODULES = (text, text_methods, text_planners, text_state, video, flow)
PRESETS: dict[str, Algorithm] = {name: preset for one in MODULES for name, preset in one.PRESETS.items()}
assert len(PRESETS) == sum(len(one.PRESETS) for one in MODULES), "two presets have one name"
