"""Methods of single papers for text: another comparison within a group, or another objective, as deltas of the usual presets.

The string under each assignment is its documentation, as in text.py: a one-line summary, then the paper, what it sets, how many
updates it takes, and what is not implemented.
"""

from dataclasses import replace

from mmrl.algorithms.advantages.answers import Consistency, Polychromic, SemanticEntropy
from mmrl.algorithms.advantages.asymmetric import Asymmetric
from mmrl.algorithms.advantages.beta import BetaNorm
from mmrl.algorithms.advantages.entropy import EntropyControl, NoveltyBonus
from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.advantages.lengths import WhereLengthPays
from mmrl.algorithms.advantages.parts_of_groups import Halves, Strata
from mmrl.algorithms.advantages.seen import Downsampled
from mmrl.algorithms.advantages.virtual import VirtualBest
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.discriminative import Discriminative, TrustHinge
from mmrl.algorithms.objectives.off_policy import KeepLikely, NegativeAwareText, Rec, VarianceBound
from mmrl.algorithms.objectives.penalties import ReferenceKL
from mmrl.algorithms.objectives.surrogates import Clip, Reinforce
from mmrl.algorithms.planners.more import UntilMixed, WhereHard, WhereUncertain
from mmrl.algorithms.presets.text import dapo, dr_grpo, grpo
from mmrl.algorithms.weights.aggregate import FixedLength, GroupSum, TokenMean
from mmrl.algorithms.weights.conflict import ConflictTokens

CENTRED = GroupNorm(scale="none")
CLIPPED = replace(grpo, objective=((1.0, Clip()),), minibatches=4)

ngrpo = replace(CLIPPED, objective=((1.0, Clip(low=0.16, high=0.24)),), advantage=VirtualBest(), aggregation=TokenMean())
"""Groups of only wrong answers teach too: a perfect sample nobody drew is counted with them.

NGRPO: Negative-enhanced Group Relative Policy Optimization, arXiv:2509.18851.
The best total reward must be known, `algorithm.advantage.best`, 1 by default. No KL. 4 updates per step are ours; with one the
clip never acts. Groups of only perfect answers are kept with an advantage of 0; its code leaves them out of the counts. Nothing
else is left out.
"""

bnpo = replace(
    CLIPPED,
    objective=((1.0, Clip(low=0.2, high=0.28, dual=10.0)),),
    advantage=BetaNorm(),
    aggregation=FixedLength(),
    group_size=16,
)
"""Rewards less the group's mean, divided by how common the group's success rate is among the prompts of the step.

BNPO: Beta Normalization Policy Optimization, arXiv:2506.02864.
Rewards in [0, 1]; with one prompt per step it is the plain difference to the mean. 4 updates per step are ours; with one the clip
never acts. Not implemented: the same for every reward apart.
"""

canon = replace(dr_grpo, advantage=Halves(by="length"))
"""Samples compared with the longer or shorter half of their group as well as with their own half.

Conditional Advantage Estimation for Reinforcement Learning in Large Reasoning Models (CANON), arXiv:2509.23962.
By length; `algorithm.advantage.by = "entropy"` compares by mean entropy. With even groups, cross = 0.5 and favour = 1 it is
dr_grpo: set `algorithm.advantage.cross` or `favour`. 8 updates per step as in dr_grpo; with one the clip never acts. Not
implemented: the paper's schedules of cross.
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

adora = replace(
    grpo,
    advantage=WhereLengthPays(),
    objective=((1.0, Clip()), (1e-3, ReferenceKL(estimator="k3"))),
    minibatches=4,
)
"""Groups in which thinking longer did not pay count a tenth.

ADORA: Training Reasoning Models with Dynamic Advantage Estimation on Reinforcement Learning, arXiv:2602.10019.
As in its code for pictures and text (geometry problems); `algorithm.advantage.empty = "text"` is the other. 4 updates per step
are ours; with one the clip never acts. Nothing else is left out.
"""

disco = replace(
    grpo, advantage=CENTRED, objective=((1.0, Discriminative()), (1.0, TrustHinge())), aggregation=GroupSum(), minibatches=4
)
"""Right answers told apart from wrong ones by their mean log-probability, the hardest wrong ones counting most; a hinge on KL.

DisCO: Reinforcing Large Reasoning Models with Discriminative Constrained Optimization, arXiv:2505.12366.
Temperature 10 over wrong answers, hinge from 1e-4 nats with slope 1000. Answers above the group's mean reward are right. 4
updates per step, as 128 prompts in minibatches of 32; with one the hinge never acts. On one process only, for the hinge is a
mean over the minibatch. Nothing else is left out.
"""

drpo = replace(disco, objective=((1.0, Discriminative(short=0.1)), (1.0, TrustHinge(estimator="k1"))))
"""DisCO in which short right answers count more.

DRPO: Efficient Reasoning via Decoupled Reward Policy Optimization, arXiv:2510.04474.
Lengths in units of the run's max_new_tokens, where the code takes the longest of the batch. 4 updates per step as in disco; with
one the hinge never acts. Nothing else is left out.
"""

rec = replace(grpo, advantage=CENTRED, objective=((1.0, Rec()),), aggregation=TokenMean(), minibatches=4)
"""REINFORCE that stops at actions whose ratio has already gone where the advantage wants it, for stale samples.

Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm (REC-OneSide-NoIS), arXiv:2509.24203.
`algorithm.objective.0.weight = "ratio"` is its form with importance sampling. 4 updates per step are ours (the paper lets samples
grow 20 steps old); with one it is REINFORCE. Not implemented: samples from earlier steps.
"""

r2vpo = replace(grpo, objective=((1.0, VarianceBound()),), minibatches=4)
"""No clip: the second moment of the ratio about 1 is held down by a penalty.

Ratio-Variance Regularized Policy Optimization for Efficient LLM Fine-tuning (R2VPO), arXiv:2601.03320.
The multiplier stays at 0.04; `algorithm.objective.0.rate = 0.1` moves it by dual ascent, whose rate and bound were not found. 4
updates per step are ours; with one nothing is penalized. For replayed samples set `algorithm.planner.kind = "ReplayGroups"`.
Nothing else is left out.
"""

nft_text = replace(
    dapo,
    advantage=CENTRED,
    objective=((1.0, NegativeAwareText()),),
    aggregation=FixedLength(1000),
    shaping=(),
)
"""Supervised learning on right answers and, through their complement, on wrong ones.

Bridging Supervised Learning and Reinforcement Learning in Math Reasoning (NFT), arXiv:2505.18116.
Rewards of 0 and 1 only; groups without both are sampled again. 16 updates per step as in its script (512 prompts in minibatches
of 32); with one it is GRPO. Not implemented: its filter on accuracy as a reward of its own.
"""

llds = replace(CLIPPED, objective=((1.0, Clip()), (0.2, KeepLikely())))
"""GRPO with a penalty on good answers that get rarer.

On GRPO Collapse in Search-R1: The Lazy Likelihood-Displacement Death Spiral (LLDS), arXiv:2512.04220.
Its form that gates by whole answers, and its 0.2; the penalty is divided as the loss is. 4 updates per step are ours; with one
neither clip nor penalty acts. Not implemented: gates per turn, the form without the answer's tokens.
"""

reinforce_ada = replace(
    grpo, planner=UntilMixed(), advantage=Downsampled(), objective=((1.0, Clip()),), group_size=8, minibatches=4
)
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

gtpo = replace(grpo, advantage=EntropyControl(), objective=((1.0, Reinforce()),), importance=(ConflictTokens(),))
"""Tokens that right and wrong answers share are never pushed down; answers of high entropy are left out.

GTPO: Trajectory-Based Policy Optimization in Large Language Models, arXiv:2508.03772. No ratio, no KL: one update per step.
Answers above 0.7 nats are left out in steps whose mean is below, in the paper for models that begin below ln 2. Nothing else is
left out.
"""

PRESETS: dict[str, Algorithm] = {
    name: value
    for name, value in globals().items()
    if isinstance(value, Algorithm) and name.islower() and name not in ("dapo", "dr_grpo", "grpo")
}
