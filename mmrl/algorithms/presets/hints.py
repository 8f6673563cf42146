"""Help while sampling: hints, rules, critiques and answers of experts."""

from dataclasses import replace

from mmrl.algorithms.advantages.experts import ExpertWhereFew
from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.objectives.surrogates import Clip, WithImitation, WithRefinements
from mmrl.algorithms.planners.helped import Refinements, WithExpert
from mmrl.algorithms.planners.hints import BesideHint, HintLadder, KeptHints, Scaffold, SelfHints
from mmrl.algorithms.presets.baselines import CENTRED, CLIPPED, grpo
from mmrl.algorithms.weights.aggregate import FixedLength

ghpo = replace(
    CLIPPED,
    planner=HintLadder(column="solution", cut=True, hint_text="Go on from this beginning of a solution:\n{hint}"),
)
"""A prompt that fails altogether is sampled anew with 25, 50, then 75 % of its solution, and trained so.

GHPO: Adaptive Guidance for Stable and Efficient LLM Reinforcement Learning, arXiv:2507.10628.
Needs a column `solution`. Letters are counted, not tokens. No KL. 4 updates per step are ours; with one the clip never acts. Not
implemented: its cold start with hints for all prompts.
"""

scaf_grpo = replace(CLIPPED, planner=Scaffold())
"""After 50 steps, the right answer under the weakest hint takes the place of one in groups that fail altogether.

Scaf-GRPO: Scaffolded Group Relative Policy Optimization for Enhancing LLM Reasoning, arXiv:2510.19807.
Needs a column `hints`, the weakest first. `algorithm.planner.train_view = "plain"` trains the answer without its hint. No KL.
4 updates per step are ours; with one the clip never acts. Not implemented: writing the hints (its data brings 12 per prompt).
"""

nurl = replace(CLIPPED, planner=HintLadder(column="hint", rungs=1, plain=1))
"""All but one sample of a group that fails altogether are drawn again under a hint, and trained with it.

NuRL: Nudging the Boundaries of LLM Reasoning, arXiv:2509.25666. From notes on the paper.
Needs a column `hint`; an abstract cue that holds no answer helped most. Begin from weights that GRPO improves no more. 4 updates
per step are ours; with one the clip never acts. Not implemented: writing the hints, leaving out prompts that are always right.
"""

sage = replace(CLIPPED, objective=((1.0, Clip(low=0.2, high=0.28)),), planner=SelfHints())
"""The policy writes three hints from the solution for a prompt it fails, and climbs them until an answer is right.

SAGE: Self-Hinting Language Models Enhance Reinforcement Learning, arXiv:2602.03143. The solution is the column `solution`, or
else the answer. Hints that hold the answer are left out, which is ours. No KL. 4 updates per step are ours; with one the clip
never acts. Nothing else is left out.
"""

sage_light = replace(sage, planner=KeptHints())
"""A level of hints per prompt that moves with its success rate from visit to visit, in place of sampling again.

SAGE-light: Self-Hinting Language Models Enhance Reinforcement Learning, arXiv:2602.03143. Hints are written at the end of a visit
for the next one, in its code at the beginning. No KL. 4 updates per step are ours; with one the clip never acts. Nothing else is
left out.
"""

critique_grpo = replace(
    grpo,
    planner=Refinements(),
    advantage=CENTRED,
    objective=((1.0, WithRefinements()),),
    aggregation=FixedLength(),
    minibatches=4,
)
"""Every answer is refined after a critique, and the best refinement is learnt in place of one, rare tokens damped.

Critique-GRPO: Advancing LLM Reasoning with Natural Language and Numerical Feedback, arXiv:2506.03106.
The critique says right or wrong and the right answer; `algorithm.planner.critique = "right_or_wrong"` leaves it out. No clip, no
KL. 4 updates per step are ours; with one the policy's own answers train as in REINFORCE. Not implemented: critiques of a model.
"""

policy_rollout = replace(CLIPPED, planner=BesideHint(), advantage=GroupNorm(eps=1e-4), group_size=16)
"""Half of a group reads the rules that an answer follows from, and all of it trains without them.

PolicyRollout of TriMPI: Multimodal Policy Internalization for Conversational Agents, arXiv:2510.09474. From notes on the paper.
Needs a column `policy`. Answers under the rules count as if they had been sampled without. No KL. 4 updates per step are ours;
with one the clip never acts. Not implemented: its two stages of supervised training before.
"""

ahpo = replace(CLIPPED, planner=WithExpert(), advantage=ExpertWhereFew(), objective=((1.0, WithImitation()),), group_size=5)
"""An expert's answer is learnt by its likelihood as long as fewer than two of a prompt's own answers are right.

AHPO of MM-HELIX: Boosting Multimodal Long-Chain Reflective Reasoning with Holistic Platform and Adaptive Hybrid Policy
Optimization, arXiv:2510.08540. Needs a column `solution`, written as the model should; prompts without one are trained plainly.
No KL. 4 updates per step are ours; with one the clip never acts. Nothing else is left out.
"""
