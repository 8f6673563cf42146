"""More methods of single papers for text: what is read or weighed is new, the update that of a usual preset.

The string under each assignment is its documentation, as in text.py: a one-line summary, then the paper, what it sets, how many
updates it takes, and what is not implemented.
"""

from dataclasses import replace

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.advantages.spread import WhereSpread
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.presets.text import grpo
from mmrl.algorithms.shaping.reference import ReferenceProbability
from mmrl.algorithms.weights.aggregate import FixedLength
from mmrl.algorithms.weights.prompts import SmallTarget
from mmrl.algorithms.weights.rhythm import AttentionRhythm

rlpr = replace(
    grpo,
    shaping=(ReferenceProbability(),),
    advantage=WhereSpread(),
    objective=((1.0, Clip(low=0.2, high=0.27)),),
    minibatches=4,
)
"""Thoughts rewarded by how likely they make the true answer, for answers that no verifier can judge.

RLPR: Extrapolating RLVR to General Domains without Verifiers, arXiv:2506.18254.
Weight 0.9 for that; give it a `format` reward of weight 0.1, and answers that are texts or numbers. Completions need answer tags.
From step 11 on, prompts whose rewards deviate by less than half of the running mean leave. No KL. 4 updates per step as in its
script; with one the clip never acts. Nothing else is left out.
"""

attention_rhythm = replace(
    grpo,
    importance=(AttentionRhythm(),),
    objective=((1.0, Clip()),),
    minibatches=16,
)
"""Tokens where a right completion plans, and those that it is anchored at, count more.

Attention Illuminates LLM Reasoning: The Preplan-and-Anchor Rhythm Enables Fine-Grained Policy Optimization, arXiv:2510.13554.
The coupled form; `algorithm.importance.0.kind` takes local and global. No KL. 16 updates per step as in the paper; with one the
weights act, the clip does not. Not implemented: looks at the prompt and at pictures, which are left out of both measures.
"""

gui_g1 = replace(
    grpo,
    advantage=GroupNorm(scale="none"),
    importance=(SmallTarget(),),
    objective=((1.0, Clip()),),
    aggregation=FixedLength(64),
    minibatches=1,
)
"""Clicks on small targets count more; no length and no spread enters the update.

GUI-G1: Understanding R1-Zero-Like Training for Visual Grounding in GUI Agents, arXiv:2505.15810.
Take the reward `point_in_box` with its size terms, answer_format "direct" and temperature 0.9. How much a target of some size
counts is ours; the part Difficulty with column "rate" reads it from the data, as its code does. No KL. One update per step, so
the clip never acts. Nothing else is left out.
"""

PRESETS: dict[str, Algorithm] = {
    name: value for name, value in globals().items() if isinstance(value, Algorithm) and name != "grpo"
}
