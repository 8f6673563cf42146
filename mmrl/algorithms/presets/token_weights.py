"""Weights of tokens and of prompts."""

from dataclasses import replace

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.presets.baselines import grpo
from mmrl.algorithms.presets.clipping import dapo
from mmrl.algorithms.weights.aggregate import FixedLength
from mmrl.algorithms.weights.importance import HighEntropy
from mmrl.algorithms.weights.prompts import SmallTarget
from mmrl.algorithms.weights.rhythm import AttentionRhythm

high_entropy = replace(dapo, importance=(HighEntropy(quantile=0.2),))
"""DAPO on the fifth of the tokens with the highest entropy.

Beyond the 80/20 Rule: High-Entropy Minority Tokens Drive Effective Reinforcement Learning for LLM Reasoning, arXiv:2506.01939.
Entropy under the weights that sampled, threshold over one rank's minibatch. 16 updates per step as in dapo; with one the choice
of tokens acts, the clip does not. Nothing else is left out.
"""

attention_rhythm = replace(
    grpo,
    importance=(AttentionRhythm(),),
    objective=((1.0, Clip()),),
    minibatches=16,
)
"""Tokens where a right completion plans, and those that it is anchored at, count more.

Attention Illuminates LLM Reasoning: The Preplan-and-Anchor Rhythm Enables Fine-Grained Policy Optimization, arXiv:2510.13554.
The coupled form; `algorithm.importance.0.kind_` takes local and global. No KL. 16 updates per step as in the paper; with one the
weights act, the clip does not. Not implemented: looks at the prompt and at pictures, which are left out of both measures.
"""

gui_g1 = replace(
    grpo, advantage=GroupNorm(scale="none"), importance=(SmallTarget(),), objective=((1.0, Clip()),), aggregation=FixedLength(64)
)
"""Clicks on small targets count more; no length and no spread enters the update.

GUI-G1: Understanding R1-Zero-Like Training for Visual Grounding in GUI Agents, arXiv:2505.15810.
Take the reward `point_in_box` with its size terms, answer_format "direct" and temperature 0.9. How much a target of some size
counts is ours; the part Difficulty with column "rate" reads it from the data, as its code does. No KL. One update per step, so
the clip never acts. Nothing else is left out.
"""
