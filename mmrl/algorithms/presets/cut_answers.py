"""Answers cut in places, so that pieces of them are credited, and more samples for the prompts that need them."""

from dataclasses import replace

from mmrl.algorithms.advantages.entropy import MostSpread, NoveltyBonus
from mmrl.algorithms.advantages.remembered import Downsampled
from mmrl.algorithms.advantages.segments import SegmentGains
from mmrl.algorithms.advantages.tree import PrefixValues, TreeValues
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.planners.extra_samples import UntilMixed, WhereHard, WhereUncertain
from mmrl.algorithms.planners.helped import SerialExits
from mmrl.algorithms.planners.segments import SegmentValues, TreeBranches
from mmrl.algorithms.presets.baselines import CENTRED, CLIPPED, dr_grpo, grpo
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


reinforce_ada = replace(grpo, planner=UntilMixed(), advantage=Downsampled(), objective=((1.0, Clip()),), minibatches=4)
"""Rounds of 8 samples until two are right and two wrong; statistics of all of them, training on four.

Reinforce-Ada: An Adaptive Sampling Framework for Reinforce-Style LLM Training, arXiv:2510.04996. Balanced form, at most 4
rounds; `algorithm.planner.wrong = 0` is its form that only asks for right ones. No KL. 4 updates per step are ours; with one
the clip never acts. Nothing else is left out.
"""

dars = replace(dr_grpo, planner=WhereHard(), aggregation=TokenMean(), epochs=2, minibatches=1)
"""A second round of samples for prompts that are solved less than half of the time, the more the harder they are.

Depth-Breadth Synergy in RLVR: Unlocking LLM Reasoning Gains with Adaptive Exploration (DARS), arXiv:2508.13755.
All samples of a prompt are one group, so hard prompts count more. 2 updates per step, passes over the whole step, as in its
script; with one the clip never acts. Not implemented: dropping prompts that stay all right or all wrong (their advantage is 0).
"""

xrpo = replace(CLIPPED, planner=WhereUncertain(), advantage=NoveltyBonus())
"""More samples where the mean reward is uncertain, and a bonus for right answers that were unlikely.

XRPO: Pushing the limits of GRPO with Targeted Exploration and Exploitation, arXiv:2510.06672. From a review of the paper.
Rounds add 4 samples to each of 4 prompts, twice: ours. No KL. 4 updates per step are ours; with one the clip never acts. Not
implemented: solved examples in prompts that fail altogether.
"""

d3s = replace(CLIPPED, advantage=MostSpread(), aggregation=TokenMean())
"""The rows of a step whose advantages differ most train, and of their tokens those that were unsure; ever more of both.

D3S: Dynamic dual-level down-sampling, arXiv:2509.22115. From summaries. The shares that train, 0.5 of rows and 0.2 of tokens at
first and all after 100 steps, are ours. 4 updates per step are ours; with one the clip never acts. Nothing else is left out.
"""
