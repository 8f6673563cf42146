"""Answers cut in places, so that pieces of them are credited: early exits and segments."""

from dataclasses import replace

from mmrl.algorithms.advantages.segments import SegmentGains
from mmrl.algorithms.planners.helped import SerialExits
from mmrl.algorithms.planners.segments import SegmentValues
from mmrl.algorithms.presets.baselines import CENTRED, CLIPPED
from mmrl.algorithms.shaping.exits import ExitDecay
from mmrl.algorithms.weights.aggregate import TokenMean

s_grpo = replace(CLIPPED, planner=SerialExits(), shaping=(ExitDecay(),), advantage=CENTRED)
"""Answers that leave one thought at different places: the earliest right one earns most, each later one half of it.

S-GRPO: Early Exit via Reinforcement Learning in Reasoning Models, arXiv:2505.07686. From notes on the paper.
For models that think before `</think>`. A shared thought trains in every answer that goes on from it; trained once, in the whole
answer alone (`algorithm.planner.train_thought = false`), tiny policies forgot to end their thoughts. No KL. 4 updates per step
are ours; with one the clip never acts. Nothing else is left out.
"""

spo_segment = replace(CLIPPED, planner=SegmentValues(), advantage=SegmentGains(), aggregation=TokenMean())
"""Answers are cut where the policy was unsure, and each piece is credited with how much it changed what comes of the answer.

SPO-chain of Segment Policy Optimization: Effective Segment-Level Credit Assignment in RL for Large Language Models,
arXiv:2505.23564. Cuts before every fifth token less likely than 0.9, four continuations from each; surer tokens do not train. 1 +
4 cuts samples in place of one: raise `algorithm.planner.interval` for long answers. No KL (its base config has 0.05). 4 updates
per step are ours; with one the clip never acts. Not implemented: the tree form.
"""
