"""Other comparisons inside a group, or between the groups of a step."""

from dataclasses import replace

from mmrl.algorithms.advantages.answers import Consistency, Polychromic, SemanticEntropy
from mmrl.algorithms.advantages.decoupled import Decoupled
from mmrl.algorithms.advantages.group import Bold, Halves, PassK, Strata, VirtualBest
from mmrl.algorithms.advantages.spread import Asymmetric, BetaNorm, Bundles, WhereLengthPays
from mmrl.algorithms.objectives.penalties import LooserWhereGood, ReferenceKL
from mmrl.algorithms.objectives.surrogates import Clip, Reinforce
from mmrl.algorithms.presets.baselines import CLIPPED, dr_grpo, grpo
from mmrl.algorithms.weights.aggregate import FixedLength, TokenMean

pass_at_k = replace(grpo, advantage=PassK())
"""Only the best sample of a group is rewarded, by its lead over the second.

Optimizing Language Models for Inference Time Objectives using Reinforcement Learning, arXiv:2503.19595.
As in verl: k is the group size. One update per step as in grpo: the method is its advantage. Not implemented: k smaller than
the group, majority voting.
"""

gdpo = replace(grpo, advantage=Decoupled())
"""Every reward standardized on its own, then added and standardized over the step.

GDPO: Group reward-Decoupled Normalization Policy Optimization for Multi-reward RL Optimization, arXiv:2601.05242.
One update per step as in grpo: the method is its advantage. Not implemented: rewards conditioned on other rewards (write them
as one reward).
"""

ngrpo = replace(CLIPPED, objective=((1.0, Clip(low=0.16, high=0.24)),), advantage=VirtualBest(), aggregation=TokenMean())
"""Groups of only wrong answers teach too: an imagined perfect sample is counted with them.

NGRPO: Negative-enhanced Group Relative Policy Optimization, arXiv:2509.18851.
The best total reward must be known, `algorithm.advantage.best`, 1 by default. No KL. 4 updates per step are ours; with one the
clip never acts. Groups of only perfect answers are kept with an advantage of 0; its code leaves them out of the counts. Nothing
else is left out.
"""

bnpo = replace(
    CLIPPED, objective=((1.0, Clip(high=0.28, dual=10.0)),), advantage=BetaNorm(), aggregation=FixedLength(), group_size=16
)
"""Rewards less the group's mean, divided by how common the group's success rate is among the prompts of the step.

BNPO: Beta Normalization Policy Optimization, arXiv:2506.02864.
Rewards in [0, 1]; with one prompt per step it is the plain difference to the mean. 4 updates per step are ours; with one the clip
never acts. Not implemented: the same for every reward apart.
"""

canon = replace(dr_grpo, advantage=Halves(by="length", cross=1.0))
"""Samples compared with the longer or shorter half of their group, not with their own half.

Conditional Advantage Estimation for Reinforcement Learning in Large Reasoning Models (CANON), arXiv:2509.23962.
By length; `algorithm.advantage.by = "entropy"` compares by mean entropy. cross = 1 is ours: at the code's own cross = 0.5 and
favour = 1 a group of even size gets dr_grpo's advantages. Below 1 `algorithm.advantage.favour` makes long answers worth less. 8
updates per step as in dr_grpo; with one the clip never acts. Not implemented: the paper's schedules of cross.
"""

stratified_grpo = replace(CLIPPED, advantage=Strata())
"""Samples standardized among those of their group that made as many tool calls, blended with the whole group.

Stratified GRPO: Handling Structural Heterogeneity in Reinforcement Learning of LLM Search Agents, arXiv:2510.06214.
From summaries; the share of the stratum, 0.8, is ours. No KL. 4 updates per step are ours; with one the clip never acts. Not
implemented: tool calls themselves, only their marks in the text are counted.
"""

a_grae = replace(CLIPPED, advantage=Asymmetric())
"""Right answers held back and hard prompts weighed less as long as most of the step is wrong.

Unveiling Implicit Advantage Symmetry: Why GRPO Struggles with Exploration and Difficulty Adaptation (A-GRAE), arXiv:2602.05548.
Rewards in [0, 1]. No KL. 4 updates per step are ours; with one the clip never acts. Nothing else is left out.
"""

seed_grpo = replace(CLIPPED, advantage=SemanticEntropy(), aggregation=FixedLength())
"""Prompts whose answers scatter move the policy a little less.

SEED-GRPO: Semantic Entropy Enhanced GRPO for Uncertainty-Aware Policy Optimization, arXiv:2505.12346.
The effect is alpha at most, 2 %. No KL. 4 updates per step are ours; with one the clip never acts. Not implemented: clusters by
meaning (answers must be equal), the focal and exponential forms.
"""

copo = replace(CLIPPED, objective=((1.0, Clip(dual=3.0)),), advantage=Consistency(), group_size=6)
"""Where a group's answers agree, prompts are compared with prompts; where they scatter, samples with samples.

COPO: Consistency-Aware Policy Optimization, arXiv:2508.04138.
No KL. The two advantages are mixed inside one clipped loss. 4 updates per step are ours; with one the clip never acts. Not
implemented: the hard switch and its form that drops wrong answers.
"""

polychromic = replace(CLIPPED, advantage=Polychromic())
"""Sets of samples rewarded for being right and different from each other.

Polychromic Objectives for Reinforcement Learning, arXiv:2509.25424.
Sets of 4 from the group of 8; the text form is ours. Rewards in [0, 1]. 4 updates per step are ours; with one the clip never
acts. Not implemented: vine sampling, the critic, the KL to the weights that sampled.
"""

adora = replace(grpo, advantage=WhereLengthPays(), objective=((1.0, Clip()), (1e-3, ReferenceKL())), minibatches=4)
"""Groups in which thinking longer did not pay count a tenth.

ADORA: Training Reasoning Models with Dynamic Advantage Estimation on Reinforcement Learning, arXiv:2602.10019.
As in its code for pictures and text (geometry problems); `algorithm.advantage.empty = "text"` is the other. 4 updates per step
are ours; with one the clip never acts. Nothing else is left out.
"""

riskpo = replace(CLIPPED, advantage=Bundles(), aggregation=TokenMean())
"""Five prompts are one exam: what counts is the lower part of the exams' scores, against quantiles of all steps.

RiskPO: Risk-based Policy Optimization via Verifiable Reward for LLM Post-Training, arXiv:2510.00911.
Quantile levels 0.2 and 0.8, tail weight 1.5, as in its script. No KL. prompts_per_step is best a multiple of 5. 4 updates per
step are ours; with one the clip never acts. Nothing else is left out.
"""

hart = replace(grpo, objective=((1.0, Reinforce()), (0.04, LooserWhereGood())), advantage=Bold())
"""Samples above their group's mean count more, and may leave the reference further.

Annotation-Free Visual Reasoning for High-Resolution Large Multimodal Models via Reinforcement Learning (HART, AP-GRPO),
arXiv:2602.23615. The gain is the paper's 0.6; the KL's coefficient 0.04 is ours. No clip is printed in the paper: one update per
step. Its turn that asks for a crop is `[environment] use = "zoom"` with `limits.turns = 2`. Not implemented: taking the whole
picture away while the crop is looked at, the stage of supervised training.
"""
