"""Baselines: a sample is compared with its group, with the step, or with what its prompt earned before."""

from dataclasses import replace

from mmrl.algorithms.advantages.group import GroupNorm, LeaveOneOut, LengthBaseline, MedianNorm, NonZeroScaled, ReinforcePlusPlus
from mmrl.algorithms.advantages.remembered import SingleStream
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.penalties import ReferenceKL
from mmrl.algorithms.objectives.surrogates import Clip, Reinforce
from mmrl.algorithms.weights.aggregate import FixedLength, TokenMean

grpo = Algorithm(objective=((1.0, Clip(low=0.2, high=0.2)), (0.04, ReferenceKL(estimator="k3"))))
"""Rewards standardized within a prompt's group, PPO clip, KL to the reference.

DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models, arXiv:2402.03300.
KL coefficient 0.04 as in the paper; advantages divide by the unbiased deviation + 1e-4 as in TRL 1.16. One update
per step as in the paper: the ratio is 1 and the clip never acts. Not implemented: process rewards, iterated reward models.
"""

CENTRED = GroupNorm(scale="none")
CLIPPED = replace(grpo, objective=((1.0, Clip()),), minibatches=4)

dr_grpo = replace(grpo, advantage=GroupNorm(scale="none"), aggregation=FixedLength(), objective=((1.0, Clip()),), minibatches=8)
"""GRPO without its two biases: no division by the group's deviation, none by the rollout's length.

Understanding R1-Zero-Like Training: A Critical Perspective (Dr. GRPO), arXiv:2503.20783.
Divides by the run's max_new_tokens; no KL. 8 updates per step as in the authors' script; with one the clip never acts. Nothing
is left out.
"""

rloo = replace(grpo, advantage=LeaveOneOut(), objective=((1.0, Reinforce()), (0.04, ReferenceKL(estimator="k3"))))
"""Plain policy gradient, each sample compared with the mean of the others.

Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback in LLMs, arXiv:2402.14740.
No ratio, so it is exact for one update per step only. Not implemented: the KL inside the reward (here a term of the loss) and the
completion as one action (here rollouts are averaged over their actions).
"""

opo = replace(grpo, advantage=LengthBaseline(), objective=((1.0, Reinforce()),), aggregation=TokenMean())
"""Exactly on-policy gradient with the length-weighted baseline that minimizes its variance.

On-Policy RL with Optimal Reward Baseline, arXiv:2505.23585.
No KL, no ratio: one update per step. Nothing is left out; the optimal baseline is the paper's length approximation.
"""

gpg = replace(grpo, advantage=NonZeroScaled(), objective=((1.0, Reinforce()),), aggregation=TokenMean())
"""Bare policy gradient on centred rewards, scaled up for samples without a signal.

GPG: A Simple and Strong Reinforcement Learning Baseline for Model Reasoning, arXiv:2504.02546.
No KL, no ratio: one update per step. Not implemented: the threshold on the share of valid samples.
"""

reinforce_pp = replace(grpo, advantage=ReinforcePlusPlus(), aggregation=TokenMean(), group_size=1, minibatches=8)
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

mc_grpo = replace(grpo, advantage=MedianNorm(), group_size=9)
"""One sample more, rewards centred on the group's median, the median sample dropped: for small groups.

MC-GRPO: Median-Centered Group Relative Policy Optimization for Small-Rollout Reinforcement Learning, arXiv:2601.22582.
The deviation has a floor of 0.25, without which binary rewards give advantages of 1000 (MedianNorm(floor=0) is the paper's
code). group_size counts the extra sample. One update per step as in grpo: the method is its advantage. Nothing else is
left out.
"""

spo = replace(CLIPPED, objective=((1.0, Clip(high=0.28)),), advantage=SingleStream(), aggregation=TokenMean(), group_size=1)
"""One sample per prompt, compared with a success rate that is tracked for every prompt.

Single-stream Policy Optimization (SPO), arXiv:2509.13232.
Rewards in [0, 1]. Take `sampler.kind = "Prioritized"` with it, which draws prompts by how uncertain their rate is. 4 updates per
step are ours; with one the clip never acts. Not implemented: 8 real samples of every prompt before training (imagined ones
stand for them); the sampler's own tracker forgets at a fixed rate.
"""
