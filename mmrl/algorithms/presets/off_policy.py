"""Samples that are older than the weights they train."""

from dataclasses import replace

from mmrl.algorithms.objectives.off_policy import Rec
from mmrl.algorithms.objectives.surrogates import Dro, Vespo
from mmrl.algorithms.presets.baselines import CENTRED, grpo
from mmrl.algorithms.weights.aggregate import TokenMean

vespo = replace(grpo, objective=((1.0, Vespo()),), aggregation=TokenMean(), minibatches=8)
"""Policy gradient weighted by a smooth function of the rollout's whole ratio, for stale samples.

VESPO: Variational Sequence-Level Soft Policy Optimization for Stable Off-Policy LLM Training, arXiv:2602.10693.
No KL. 8 updates per step, from the 4 to 64 of the paper; with one every weight is 1. Not implemented: the asynchronous sampler
it is meant for; set Vespo(sampler=True) where the sampler's probabilities are its own.
"""

dro = replace(grpo, objective=((1.0, Dro()),), minibatches=4)
"""Policy gradient with a quadratic pull towards the weights that sampled.

Offline Regularised Reinforcement Learning for Large Language Models Alignment (DRO), arXiv:2405.19107.
4 updates per step are ours, for the paper trains offline; with one nothing pulls. Not implemented: the learned value function
(the group's mean stands for it) and offline data.
"""

rec = replace(grpo, advantage=CENTRED, objective=((1.0, Rec()),), aggregation=TokenMean(), minibatches=4)
"""REINFORCE that stops at actions whose ratio has already gone where the advantage wants it, for stale samples.

Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm (REC-OneSide-NoIS), arXiv:2509.24203.
`algorithm.objective.0.weight = "ratio"` is its form with importance sampling. 4 updates per step are ours (the paper lets samples
grow 20 steps old); with one it is REINFORCE. Not implemented: samples from earlier steps.
"""
