"""More samples for the prompts that need them."""

from dataclasses import replace

from mmrl.algorithms.advantages.entropy import MostSpread, NoveltyBonus
from mmrl.algorithms.advantages.remembered import Downsampled
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.planners.extra_samples import UntilMixed, WhereHard, WhereUncertain
from mmrl.algorithms.presets.baselines import CLIPPED, dr_grpo, grpo
from mmrl.algorithms.weights.aggregate import TokenMean

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
