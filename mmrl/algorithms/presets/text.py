"""Published algorithms as deltas of each other.

The string under each assignment is its documentation: first a one-line summary, then the paper with its arXiv id, what
differs from the preset it replaces, and what is not implemented. `mmrl ls algorithms` reads it without running this file.
Updates are minibatches x epochs per step. What a clip, a gate or a trust region does with ratios shows from the second update
on; with one update every one of them is REINFORCE with the preset's advantages and aggregation.
"""

from dataclasses import replace

from mmrl.algorithms.advantages.decoupled import Decoupled
from mmrl.algorithms.advantages.group import (
    GroupNorm,
    LeaveOneOut,
    LengthBaseline,
    MedianNorm,
    NonZeroScaled,
    PassK,
    ReinforcePlusPlus,
)
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.covariance import ClipCov, KlCov
from mmrl.algorithms.objectives.penalties import ReferenceKL
from mmrl.algorithms.objectives.surrogates import Cispo, Clip, Dppo, Dro, Gmpo, Reinforce, Sapo, Vespo
from mmrl.algorithms.planners.base import DynamicSampling
from mmrl.algorithms.shaping.length import OverlongPenalty
from mmrl.algorithms.weights.aggregate import FixedLength, SequenceSum, TokenMean
from mmrl.algorithms.weights.importance import HighEntropy

grpo = Algorithm(objective=((1.0, Clip(low=0.2, high=0.2)), (0.04, ReferenceKL(estimator="k3"))))
"""Rewards standardized within a prompt's group, PPO clip, KL to the reference.

DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models, arXiv:2402.03300.
KL coefficient 0.04 as in the paper; advantages divide by the unbiased deviation + 1e-4 as in TRL 1.16. One update
per step as in the paper: the ratio is 1 and the clip never acts. Not implemented: process rewards, iterated reward models.
"""

dr_grpo = replace(grpo, advantage=GroupNorm(scale="none"), aggregation=FixedLength(), objective=((1.0, Clip()),), minibatches=8)
"""GRPO without its two biases: no division by the group's deviation, none by the rollout's length.

Understanding R1-Zero-Like Training: A Critical Perspective (Dr. GRPO), arXiv:2503.20783.
Divides by the run's max_new_tokens; no KL. 8 updates per step as in the authors' script; with one the clip never acts. Nothing
is left out.
"""

dapo = replace(
    grpo,
    objective=((1.0, Clip(low=0.2, high=0.28)),),
    aggregation=TokenMean(),
    planner=DynamicSampling(),
    shaping=(OverlongPenalty(),),
    group_size=16,
    minibatches=16,
)
"""Clip higher, every token the same weight, sample until groups are informative, soft penalty for length.

DAPO: An Open-Source LLM Reinforcement Learning System at Scale, arXiv:2503.14476.
No KL. 16 updates per step; with one the clip, high or not, never acts. Not implemented: its filter on accuracy strictly between
0 and 1 (name the accuracy in DynamicSampling.reward); overlong filtering is DropTruncated in `masks`.
"""

gspo = replace(grpo, objective=((1.0, Clip(low=3e-4, high=4e-4, level="rollout")),), minibatches=4)
"""One length-normalized ratio per rollout, clipped tightly.

Group Sequence Policy Optimization, arXiv:2507.18071.
No KL. 4 updates per step; with one the ratio is 1 and this is grpo without its KL. Nothing is left out.
"""

gspo_token = replace(gspo, objective=((1.0, Clip(low=3e-4, high=4e-4, level="rollout", token_gradient=True)),))
"""GSPO whose actions keep their own gradient, for advantages or weights that differ between the actions of a rollout.

Group Sequence Policy Optimization, section GSPO-token, arXiv:2507.18071.
The same value and gradient as gspo while advantages and weights are the same along a rollout. 4 updates per step; with one the
clip never acts. Nothing is left out.
"""

rloo = replace(grpo, advantage=LeaveOneOut(), objective=((1.0, Reinforce()), (0.04, ReferenceKL(estimator="k3"))))
"""Plain policy gradient, each sample compared with the mean of the others.

Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs, arXiv:2402.14740.
No ratio, so it is exact for one update per step only. Not implemented: the KL inside the reward (here a term of the loss) and the
completion as one action (here rollouts are averaged over their actions).
"""

cispo = replace(grpo, objective=((1.0, Cispo(low=None, high=5.0)),), aggregation=TokenMean(), minibatches=16)
"""Every token keeps its gradient, its importance weight is bounded above.

MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention (CISPO), arXiv:2506.13585.
The bound 5 on the ratio is TRL's reading; verl clips to [0.8, 1.28], Cispo(low=0.8, high=1.28). No KL. 16 updates per step;
with one every weight is 1. Not implemented: the paper's dynamic sampling and length penalty (take them from dapo).
"""

opo = replace(grpo, advantage=LengthBaseline(), objective=((1.0, Reinforce()),), aggregation=TokenMean())
"""Exactly on-policy gradient with the length-weighted baseline that minimizes its variance.

On-Policy RL with Optimal Reward Baseline, arXiv:2505.23585.
No KL, no ratio: one update per step. Nothing is left out; the optimal baseline is the paper's length approximation.
"""

sapo = replace(grpo, objective=((1.0, Sapo()),), minibatches=4)
"""A sigmoid gate around ratio 1 in place of the clip, a little steeper for negative advantages.

Soft Adaptive Policy Optimization, arXiv:2511.20347.
No KL. 4 updates per step; with one every gate is open. Nothing is left out.
"""

vespo = replace(grpo, objective=((1.0, Vespo()),), aggregation=TokenMean(), minibatches=8)
"""Policy gradient weighted by a smooth function of the rollout's whole ratio, for stale samples.

VESPO: Variational Sequence-Level Soft Policy Optimization for Stable Off-Policy LLM Training, arXiv:2602.10693.
No KL. 8 updates per step, from the 4 to 64 of the paper; with one every weight is 1. Not implemented: the asynchronous sampler
it is meant for; set Vespo(sampler=True) where the sampler's probabilities are its own.
"""

luspo = replace(gspo, aggregation=SequenceSum())
"""GSPO that does not favour short answers: each rollout weighs as much as it is long.

Length-Unbiased Sequence Policy Optimization: Revealing and Controlling Response Length Variation in RLVR, arXiv:2602.05261.
The loss grows with the mean length: choose the learning rate for that. 4 updates per step as in gspo; with one the clip never
acts, only the aggregation is its own. Nothing is left out.
"""

gmpo = replace(grpo, objective=((1.0, Gmpo()),), minibatches=8)
"""The geometric mean of clipped token ratios in place of their arithmetic mean.

Geometric-Mean Policy Optimization, arXiv:2507.20673.
Bounds exp(-0.4) and exp(0.4). No KL. 8 updates per step as in the authors' script; with one both means are 1. Nothing is left
out.
"""

gpg = replace(grpo, advantage=NonZeroScaled(), objective=((1.0, Reinforce()),), aggregation=TokenMean())
"""Bare policy gradient on centred rewards, scaled up for samples without a signal.

GPG: A Simple and Strong Reinforcement Learning Baseline for Model Reasoning, arXiv:2504.02546.
No KL, no ratio: one update per step. Not implemented: the threshold on the share of valid samples.
"""

kl_cov = replace(grpo, objective=((1.0, KlCov()),), aggregation=TokenMean(), minibatches=8)
"""A KL penalty on the few tokens that would cost the most entropy.

The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models (KL-Cov), arXiv:2505.22617.
No clip, no reference. 8 updates per step as in the authors' script, of whole groups; with one the penalty is 0. The tokens are
chosen in one rank's minibatch, which is never cut: mind its memory. Nothing is left out.
"""

clip_cov = replace(grpo, objective=((1.0, ClipCov()),), aggregation=TokenMean(), minibatches=8)
"""PPO clip, and no gradient for a few random tokens among those that would cost the most entropy.

The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models (Clip-Cov), arXiv:2505.22617.
No reference. 8 updates per step as in the authors' script, of whole groups; with one the clip never acts, the choice of tokens
does. The tokens are chosen in one rank's minibatch, which is never cut: mind its memory. Nothing is left out.
"""

dppo = replace(grpo, objective=((1.0, Dppo()),), aggregation=TokenMean(), minibatches=8)
"""A trust region on probabilities instead of ratios, so rare tokens may move.

Rethinking the Trust Region in LLM Reinforcement Learning (DPPO), arXiv:2602.04879.
Binary total variation, truncated importance weights. 8 updates per step as in the authors' script; with one all is trusted. Not
implemented: top-k and KL divergences.
"""

dro = replace(grpo, objective=((1.0, Dro()),), minibatches=4)
"""Policy gradient with a quadratic pull towards the weights that sampled.

Offline Regularised Reinforcement Learning for Large Language Models Alignment (DRO), arXiv:2405.19107.
4 updates per step are ours, for the paper trains offline; with one nothing pulls. Not implemented: the learned value function
(the group's mean stands for it) and offline data.
"""

reinforce_pp = replace(
    grpo,
    advantage=ReinforcePlusPlus(),
    objective=((1.0, Clip()), (0.04, ReferenceKL(estimator="k3"))),
    aggregation=TokenMean(),
    group_size=1,
    minibatches=8,
)
"""One sample per prompt, rewards whitened over the whole step.

REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage Normalization, arXiv:2501.03262.
8 updates per step, as the authors' trainer does by default; with one the clip never acts. Not implemented: the KL inside the
reward (here a term of the loss).
"""

reinforce_pp_baseline = replace(
    reinforce_pp,
    advantage=ReinforcePlusPlus(baseline=True),
    objective=((1.0, Clip()), (0.04, ReferenceKL(estimator="k2"))),
    group_size=8,
)
"""REINFORCE++ for several samples per prompt: the group's mean is subtracted before whitening.

REINFORCE++: Stabilizing Critic-Free Policy Optimization with Global Advantage Normalization, arXiv:2501.03262.
KL by the k2 estimate, whose gradient is right. 8 updates per step, as in reinforce_pp. Nothing else is left out.
"""

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

mc_grpo = replace(grpo, advantage=MedianNorm(), group_size=9)
"""One sample more, rewards centred on the group's median, the median sample dropped: for small groups.

MC-GRPO: Median-Centered Group Relative Policy Optimization for Small-Rollout Reinforcement Learning, arXiv:2601.22582.
The deviation has a floor of 0.25, without which binary rewards give advantages of 1000 (MedianNorm(floor=0) is the paper's
code). group_size counts the extra sample. One update per step as in grpo: the method is its advantage. Nothing else is
left out.
"""

high_entropy = replace(dapo, importance=(HighEntropy(quantile=0.2),))
"""DAPO on the fifth of the tokens with the highest entropy.

Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective Reinforcement Learning for LLM Reasoning, arXiv:2506.01939.
Entropy under the weights that sampled, threshold over one rank's minibatch. 16 updates per step as in dapo; with one the choice
of tokens acts, the clip does not. Nothing else is left out.
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

PRESETS: dict[str, Algorithm] = {name: value for name, value in globals().items() if isinstance(value, Algorithm)}
