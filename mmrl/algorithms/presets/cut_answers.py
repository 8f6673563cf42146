"""Answers cut in places, so that pieces of them are credited: early exits and segments."""

from dataclasses import replace

from mmrl.algorithms.advantages.segments import SegmentGains
from mmrl.algorithms.advantages.tree import PrefixValues, TreeValues
from mmrl.algorithms.planners.helped import SerialExits
from mmrl.algorithms.planners.segments import SegmentValues, TreeBranches
from mmrl.algorithms.presets.baselines import CENTRED, CLIPPED
from mmrl.algorithms.shaping.thinking import ExitDecay
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

tempo = replace(CLIPPED, advantage=PrefixValues())
"""Tokens at which the answers of a group part ways are credited with how much better those that go this way do.

Tree-Estimated Mean Prefix Value for Policy Optimization (TEMPO), arXiv:2509.18314.
From its abstract and reviews; the deviation's ddof and eps are ours. No new samples. No KL. 4 updates per step are ours; with one
the clip never acts. Nothing else is left out.
"""

treerl = replace(CLIPPED, planner=TreeBranches(), advantage=TreeValues(), aggregation=TokenMean(), group_size=6)
"""Answers branch before their least likely tokens, and each piece is credited with what it and its parent are worth.

TreeRL: LLM Reinforcement Learning with On-Policy Tree Search, arXiv:2506.11902.
6 answers, 2 places each, 2 branches from each, one round: 30 samples of a prompt. No KL; its temperature of 1.2 is
policy.sampling.temperature. 4 updates per step are ours; with one the clip never acts. Not implemented: several rounds of
branches.
"""
