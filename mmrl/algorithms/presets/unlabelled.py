"""Rewards without labels or without a verifier."""

from dataclasses import replace

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.advantages.spread import WhereSpread
from mmrl.algorithms.objectives.penalties import ReferenceKL
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.presets.baselines import grpo
from mmrl.algorithms.shaping.reference import ReferenceProbability
from mmrl.algorithms.weights.aggregate import TokenMean

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
