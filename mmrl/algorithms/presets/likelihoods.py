"""Likelihoods in place of a surrogate or of a verifier, and rewards without labels."""

from dataclasses import replace

from mmrl.algorithms.advantages.group import GroupNorm, RightOrWrong
from mmrl.algorithms.advantages.spread import WhereSpread
from mmrl.algorithms.objectives.off_policy import KeepLikely, NegativeAwareText
from mmrl.algorithms.objectives.penalties import ReferenceKL
from mmrl.algorithms.objectives.regression import Discriminative, TrustHinge
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.presets.baselines import CLIPPED, grpo
from mmrl.algorithms.presets.clipping import dapo
from mmrl.algorithms.shaping.reference import ReferenceProbability
from mmrl.algorithms.weights.aggregate import FixedLength, GroupSum, TokenMean

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

mm_upt = replace(
    grpo,
    advantage=GroupNorm(eps=1e-6),
    objective=((1.0, Clip()), (0.01, ReferenceKL(estimator="k3"))),
    aggregation=TokenMean(),
    group_size=10,
    minibatches=4,
    needs_rewards=("majority_vote",),
)
"""GRPO without labels: the group's most frequent answer is the truth.

Unsupervised Post-Training for Multi-Modal LLM Reasoning via GRPO (MM-UPT), arXiv:2505.22453.
The vote is the reward majority_vote, without which a run is refused. Numbers are those of the authors' config: 4 updates per
step (with one the clip never acts), temperature 0.7, top-p 0.99. Not implemented: questions that the model makes up itself.
"""

rlpr = replace(
    grpo, shaping=(ReferenceProbability(),), advantage=WhereSpread(), objective=((1.0, Clip(high=0.27)),), minibatches=4
)
"""Thoughts rewarded by how likely they make the true answer, for answers that no verifier can judge.

RLPR: Extrapolating RLVR to General Domains without Verifiers, arXiv:2506.18254.
Weight 0.9 for that; give it a `format` reward of weight 0.1, and answers that are texts or numbers. Completions need answer tags.
From step 11 on, prompts whose rewards deviate by less than half of the running mean leave. No KL. 4 updates per step as in its
script; with one the clip never acts. Nothing else is left out.
"""
