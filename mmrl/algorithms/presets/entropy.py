"""Tokens by how unsure the policy was: penalties, temperatures, bonuses and weights; and weights of prompts."""

from dataclasses import replace

from mmrl.algorithms.advantages.entropy import EntropyBudget, EntropyControl, NearEntropy
from mmrl.algorithms.advantages.group import GoodTempered, GroupNorm, TokenAverage
from mmrl.algorithms.objectives.surrogates import Clip, ClipCov, EntropyClip, KlCov, Reinforce
from mmrl.algorithms.planners.extra_samples import ByDoubt, Tempered
from mmrl.algorithms.presets.baselines import CLIPPED, grpo
from mmrl.algorithms.presets.clipping import dapo
from mmrl.algorithms.weights.aggregate import FixedLength, TokenMean
from mmrl.algorithms.weights.importance import AttentionRhythm, ConflictTokens, HighEntropy, SmallTarget

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

gtpo = replace(grpo, advantage=EntropyControl(), objective=((1.0, Reinforce()),), importance=(ConflictTokens(),))
"""Tokens that right and wrong answers share are never pushed down; answers of high entropy are left out.

GTPO: Trajectory-Based Policy Optimization in Large Language Models, arXiv:2508.03772. No ratio, no KL: one update per step.
The mean loss of an answer is divided by its number of shared tokens, as in the code. Answers above 0.7 nats are left out in steps
whose mean is below, in the paper for models that begin below ln 2. Nothing else is left out.
"""

hapo = replace(
    grpo,
    objective=((1.0, EntropyClip()),),
    planner=ByDoubt(),
    advantage=TokenAverage(),
    aggregation=TokenMean(),
    group_size=16,
    minibatches=4,
)
"""Uncertain tokens are drawn hotter, may move further and count more, certain ones less; rewards are standardized over tokens.

From Uniform to Heterogeneous: Tailoring Policy Optimization to Every Token's Nature (HAPO), arXiv:2509.16591. As the paper's
words have it; its code's rule for certain tokens never acts (`algorithm.objective.0.sign = "code"`). On one process only, for
entropies are ranked in the minibatch, of whole groups, which is never cut. The temperature follows each token's entropy, without
an engine. 4 updates per step are ours; with one the clip never acts. Not implemented: its dynamic sampling beside these
temperatures (dapo's planner samples without them); take dapo's penalty for length with it.
"""

dcpo = replace(CLIPPED, advantage=NearEntropy(), aggregation=TokenMean())
"""Right answers count as they would be likely at another temperature, which pulls the entropy to a target.

Distribution-Centric Policy Optimization Dominates Exploration-Exploitation Trade-off (DCPO), arXiv:2601.12730.
Target 0.5 nats, temperatures 1.2 and 0.8. One reading more per step. No KL. 4 updates per step are ours; with one the clip never
acts. Nothing else is left out.
"""

aepo = replace(grpo, objective=((1.0, Reinforce()),), advantage=GoodTempered(), planner=Tempered(), aggregation=TokenMean())
"""A quarter of the prompts is sampled again hotter or colder, and the good ones of these answers train as they are.

Arbitrary Entropy Policy Optimization Breaks The Exploration Bottleneck of Reinforcement Learning, arXiv:2510.08141.
Temperature 1.2 up to the target of 0.5 nats, 0.8 above; with an engine these rows are written there too. No ratio, no KL: one
update per step. Not implemented: replacing the first rows of the batch (the rows are added).
"""

ares = replace(CLIPPED, objective=((1.0, Clip(low=0.2, high=0.28)),), advantage=EntropyBudget(), aggregation=TokenMean())
"""A bonus for as many uncertain passages as a prompt's difficulty asks for: few where it is easy, many where it is hard.

ARES: Multimodal Adaptive Reasoning via Difficulty-Aware Token-Level Entropy Shaping (AEPO), arXiv:2510.08457. The bonus is its
reward file's. No KL. 4 updates per step are ours; with one the clip never acts. Not implemented: the KL budget per difficulty, of
which no formula was found, the supervised stage, skipping prompts that are too easy.
"""

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
