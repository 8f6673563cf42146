"""Right and wrong answers set apart by their likelihood, in place of a surrogate."""

from dataclasses import replace

from mmrl.algorithms.advantages.group import RightOrWrong
from mmrl.algorithms.objectives.off_policy import KeepLikely, NegativeAwareText
from mmrl.algorithms.objectives.regression import Discriminative, TrustHinge
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.presets.baselines import CLIPPED, grpo
from mmrl.algorithms.presets.clipping import dapo
from mmrl.algorithms.weights.aggregate import FixedLength, GroupSum

disco = replace(
    grpo,
    advantage=RightOrWrong(),
    objective=((1.0, Discriminative()), (1.0, TrustHinge())),
    aggregation=GroupSum(),
    minibatches=4,
)
"""Right answers separated from wrong ones by their mean log-probability, the hardest wrong ones counting most; a hinge on KL.

DisCO: Reinforcing Large Reasoning Models with Discriminative Constrained Optimization, arXiv:2505.12366.
Temperature 10 over wrong answers, hinge from 1e-4 nats with slope 1000. Its rewards are 0 and 1: here a total above 0.5 is right
(`algorithm.advantage.right_above`). 4 updates per step, as 128 prompts in minibatches of 32; with one the hinge never acts. On
one process only, for the hinge is a mean over the minibatch. Nothing else is left out.
"""

drpo = replace(disco, objective=((1.0, Discriminative(short=0.1)), (1.0, TrustHinge(estimator="k1"))))
"""DisCO in which short right answers count more.

DRPO: Efficient Reasoning via Decoupled Reward Policy Optimization, arXiv:2510.04474.
Lengths in units of the run's max_new_tokens, where the code takes the longest of the batch. Right is a total above 0.5, as in
disco. 4 updates per step as in disco; with one the hinge never acts. Nothing else is left out.
"""

nft_text = replace(
    dapo,
    advantage=RightOrWrong(),
    objective=((1.0, NegativeAwareText()),),
    aggregation=FixedLength(1000),
    shaping=(),
)
"""Supervised learning on right answers and, through their complement, on wrong ones.

Bridging Supervised Learning and Reinforcement Learning in Math Reasoning (NFT), arXiv:2505.18116.
Its rewards are -1 and 1: here a total above 0.5 is right (`algorithm.advantage.right_above`). Groups without any difference in
their totals are sampled again. 16 updates per step as in its script (512 prompts in minibatches
of 32); with one it is GRPO. Not implemented: its filter on accuracy as a reward of its own.
"""

llds = replace(CLIPPED, objective=((1.0, Clip()), (0.2, KeepLikely())))
"""GRPO with a penalty on good answers that get rarer.

On GRPO Collapse in Search-R1: The Lazy Likelihood-Displacement Death Spiral (LLDS), arXiv:2512.04220.
Its form that gates by whole answers, and its 0.2; the penalty is divided as the loss is. 4 updates per step are ours; with one
neither clip nor penalty acts. Not implemented: gates per turn, the form without the answer's tokens.
"""
