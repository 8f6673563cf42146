"""Methods of single papers whose idea is what is sampled: hints, refinements, early exits, continuations, an expert's answers.

The string under each assignment is its documentation, as in text.py: a one-line summary, then the paper, what it sets, how many
updates it takes, and what is not implemented.
"""

from dataclasses import replace

from mmrl.algorithms.advantages.experts import ExpertWhereFew
from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.advantages.segments import SegmentGains
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.mixed import WithImitation, WithRefinements
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.planners.helped import Refinements, SerialExits, WithExpert
from mmrl.algorithms.planners.hints import BesideHint, HintLadder, Scaffold
from mmrl.algorithms.planners.replay_success import ReplaySuccess
from mmrl.algorithms.planners.segments import SegmentValues
from mmrl.algorithms.planners.self_hints import KeptHints, SelfHints
from mmrl.algorithms.presets.text import grpo
from mmrl.algorithms.shaping.exits import ExitDecay
from mmrl.algorithms.weights.aggregate import FixedLength, TokenMean

CENTRED = GroupNorm(scale="none")
CLIPPED = replace(grpo, objective=((1.0, Clip()),), minibatches=4)

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

s_grpo = replace(CLIPPED, planner=SerialExits(), shaping=(ExitDecay(),), advantage=CENTRED)
"""Answers that leave one thought at different places: the earliest right one earns most, each later one half of it.

S-GRPO: Early Exit via Reinforcement Learning in Reasoning Models, arXiv:2505.07686. From notes on the paper.
For models that think before `</think>`. A shared thought trains in every answer that goes on from it; trained once, in the whole
answer alone (`algorithm.planner.train_thought = false`), tiny policies forgot to end their thoughts. No KL. 4 updates per step
are ours; with one the clip never acts. Nothing else is left out.
"""

ahpo = replace(CLIPPED, planner=WithExpert(), advantage=ExpertWhereFew(), objective=((1.0, WithImitation()),), group_size=5)
"""An expert's answer is learnt by its likelihood as long as fewer than two of a prompt's own answers are right.

AHPO of MM-HELIX: Boosting Multimodal Long-Chain Reflective Reasoning with Holistic Platform and Adaptive Hybrid Policy
Optimization, arXiv:2510.08540. Needs a column `solution`, written as the model should; prompts without one are trained plainly.
No KL. 4 updates per step are ours; with one the clip never acts. Nothing else is left out.
"""

arpo_gui = replace(CLIPPED, planner=ReplaySuccess(keep_old=False), objective=((1.0, Clip(low=0.2, high=0.3)),))
"""Groups that fail altogether get an old success of their prompt in place of a sample.

ARPO: End-to-End Policy Optimization for GUI Agents with Experience Replay, arXiv:2505.16282. Old log-probabilities of replayed
rows are read again, as in its code; `algorithm.planner.keep_old = true` keeps those of when they were sampled. No KL. 4 updates
per step are ours; with one the clip never acts. Not implemented: several turns with screenshots, its filter of tasks.
"""

spo_segment = replace(CLIPPED, planner=SegmentValues(), advantage=SegmentGains(), aggregation=TokenMean())
"""Answers are cut where the policy was unsure, and each piece is credited with how much it changed what comes of the answer.

SPO-chain of Segment Policy Optimization: Effective Segment-Level Credit Assignment in RL for Large Language Models,
arXiv:2505.23564. Cuts before every fifth token less likely than 0.9, four continuations from each; surer tokens do not train. 1 +
4 cuts samples in place of one: raise `algorithm.planner.interval` for long answers. No KL (its base config has 0.05). 4 updates
per step are ours; with one the clip never acts. Not implemented: the tree form.
"""

PRESETS: dict[str, Algorithm] = {
    name: value for name, value in globals().items() if isinstance(value, Algorithm) and name.islower() and name != "grpo"
}
