"""How far an update may go: ratios that are clipped, gated or bounded."""

from dataclasses import replace

from mmrl.algorithms.objectives.off_policy import VarianceBound
from mmrl.algorithms.objectives.surrogates import Cispo, Clip, Dppo, Gmpo, Sapo
from mmrl.algorithms.planners.base import DynamicSampling
from mmrl.algorithms.presets.baselines import grpo
from mmrl.algorithms.shaping.thinking import OverlongPenalty
from mmrl.algorithms.weights.aggregate import SequenceSum, TokenMean

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

cispo = replace(grpo, objective=((1.0, Cispo(low=None, high=5.0)),), aggregation=TokenMean(), minibatches=16)
"""Every token keeps its gradient, its importance weight is bounded above.

MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention (CISPO), arXiv:2506.13585.
The bound 5 on the ratio is TRL's reading; verl clips to [0.8, 1.28], Cispo(low=0.8, high=1.28). No KL. 16 updates per step;
with one every weight is 1. Not implemented: the paper's dynamic sampling and length penalty (take them from dapo).
"""

sapo = replace(grpo, objective=((1.0, Sapo()),), minibatches=4)
"""A sigmoid gate around ratio 1 in place of the clip, a little steeper for negative advantages.

Soft Adaptive Policy Optimization, arXiv:2511.20347.
No KL. 4 updates per step; with one every gate is open. Nothing is left out.
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

dppo = replace(grpo, objective=((1.0, Dppo()),), aggregation=TokenMean(), minibatches=8)
"""A trust region on probabilities instead of ratios, so rare tokens may move.

Rethinking the Trust Region in LLM Reinforcement Learning (DPPO), arXiv:2602.04879.
Binary total variation, truncated importance weights. 8 updates per step as in the authors' script; with one all is trusted. Not
implemented: top-k and KL divergences.
"""

r2vpo = replace(grpo, objective=((1.0, VarianceBound()),), minibatches=4)
"""No clip: the second moment of the ratio about 1 is held down by a penalty.

Ratio-Variance Regularized Policy Optimization for Efficient LLM Fine-tuning (R2VPO), arXiv:2601.03320.
The multiplier stays at 0.04; `algorithm.objective.0.rate = 0.1` moves it by dual ascent, whose rate and bound were not found. 4
updates per step are ours; with one nothing is penalized. For replayed samples set `algorithm.planner.kind = "ReplayGroups"`.
Nothing else is left out.
"""
