"""Published algorithms by name, as deltas of each other: those of text first."""

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.presets import flow, text, text_methods, text_more, text_planners, text_state, video

FILES = (text, text_methods, text_planners, text_state, text_more, video, flow)
PRESETS: dict[str, Algorithm] = {name: algorithm for file in FILES for name, algorithm in file.PRESETS.items()}
assert len(PRESETS) == sum(len(file.PRESETS) for file in FILES), "two presets have one name"
