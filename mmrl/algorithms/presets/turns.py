"""Samples of several turns: credit for each, and rewards for looking before answering."""

from dataclasses import replace

from mmrl.algorithms.advantages.segments import HGPO, GiGPO
from mmrl.algorithms.objectives.penalties import ReferenceKL
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.planners.hints import AskedHalves
from mmrl.algorithms.planners.replay import ReplaySuccess
from mmrl.algorithms.planners.segments import BranchWhereUnsure
from mmrl.algorithms.presets.baselines import CLIPPED, grpo
from mmrl.algorithms.shaping.thinking import SeldomTools, WhereToolsHelp
from mmrl.algorithms.weights.aggregate import TokenMean

gigpo = replace(
    CLIPPED, objective=((1.0, Clip()), (0.01, ReferenceKL())), advantage=GiGPO(), aggregation=TokenMean(), needs_turns=True
)
"""Turns compared with turns that began from the same state, on top of episodes compared with episodes.

Group-in-Group Policy Optimization for LLM Agent Training (GiGPO), arXiv:2505.10978.
Discount 0.95 and weight 1 as in its scripts, and means without deviations. A total counts once per sample, as in the paper; in
its code it counts once per turn: advantage.over = "turns". The KL's coefficient 0.01 and 4 updates per step are ours; with one
the clip never acts. Not implemented: states that are alike without being equal.
"""

hgpo = replace(gigpo, advantage=HGPO())
"""Turns compared with those that began from the same state, the more so the more of the way there was the same.

Hierarchy-of-Groups Policy Optimization for Long-Horizon Agentic Tasks (HGPO), arXiv:2602.22817.
Two earlier states, weights k + 1, without the episode's own advantage. As in gigpo the KL's coefficient 0.01 and 4 updates per
step are ours; with one the clip never acts. Nothing else is left out.
"""

deepeyes = replace(
    grpo, objective=((1.0, Clip()),), aggregation=TokenMean(), group_size=16, needs_rewards=("tool_bonus",), needs_turns=True
)
"""Looking closer is rewarded where the answer is right; no demonstrations.

DeepEyes: Incentivizing "Thinking with Images" via Reinforcement Learning, arXiv:2505.14362.
Its reward is 0.8 of one for right answers, 0.2 of `turn_format` with whole = true, and 1.2 of `tool_bonus`; `zoom` is its tool.
No KL; one update per step. Not implemented: its system prompt (write it in your data), crops of a first picture alone.
"""

thyme = replace(
    grpo,
    objective=((1.0, Clip(low=0.2, high=0.2)), (0.01, ReferenceKL(estimator="k3"))),
    group_size=4,
    needs_rewards=("turn_format", "consistency"),
    needs_turns=True,
)
"""The model writes code that changes its picture; form and consistency are rewarded besides the answer.

Thyme: Think Beyond Images, arXiv:2508.11630.
Its reward is 1 for a right answer, 1 of `turn_format` with form = "code" and whole = true (0.5 for or against), and 0.1 of
`consistency`. One update per step. Not implemented: code written at temperature 0 (GRPO-ATS), the stages of supervised training.
"""

openthinkimg = replace(grpo, needs_rewards=("turn_format",), needs_turns=True)
"""Tools are called as JSON, turn by turn, and the form of the calls is rewarded besides the answer.

OpenThinkIMG: Learning to Think with Images via Visual Tool Reinforcement Learning (V-ToolRL), arXiv:2505.08617.
`turn_format` with form = "json" is its reward of form. The KL's coefficient 0.04 and the group of 8 are grpo's. One update per
step. Not implemented: tools over HTTP beside those of the environments, the stage of supervised training.
"""

vr_thinker = replace(grpo, shaping=(SeldomTools(),), needs_turns=True)
"""As long as few of a group look, those that look get more.

VR-Thinker: Boosting Video Reward Models through Thinking-with-Image Reasoning, arXiv:2510.10518.
From summaries: the share from which looking brings nothing more, 0.5, and the weight 1 are ours. One update per step. Not
implemented: frames that leave the context after some turns, rewards of interim answers, the stages before reinforcement.
"""

arpo = replace(CLIPPED, planner=BranchWhereUnsure(), aggregation=TokenMean(), group_size=16, minibatches=8, needs_turns=True)
"""Half of a group are episodes that begin where another one got unsure after an answer of the world.

Agentic Reinforced Policy Optimization (ARPO), arXiv:2507.19849.
8 of 16 samples are whole episodes; weight 0.2, chance 0.5, no KL and 8 updates per step as in its scripts; with one the clip
never acts. Turns that several episodes share train in each of them, which is its soft attribution of advantages. Not
implemented: the hard attribution, by which they train on the mean.
"""

mobile_agent_v3 = replace(CLIPPED, planner=ReplaySuccess(), aggregation=TokenMean(), needs_turns=True)
"""One advantage for all turns of a trajectory, from its outcome; where all of a group failed, a stored success stands in for one.

Mobile-Agent-v3: Fundamental Agents for GUI Automation (Trajectory-aware Relative Policy Optimization), arXiv:2508.15144.
From summaries. No KL; every token of the step counts the same; the ratio of a success that comes back is to the weights that
sampled it. Which sample it replaces, the size of the buffer and 4 updates per step are ours; with one update the clip never acts.
Nothing else is left out.
"""

ui_s1 = replace(gigpo, advantage=GiGPO(gamma=0.5, over="turns", alike="number", cut="wrong"))
"""Returns of steps end at a wrong action, and are compared with those of steps of the same number.

UI-S1: Advancing GUI Automation via Semi-online Reinforcement Learning, arXiv:2509.11543.
Discount 0.5 and both weights 1 as in its code; the world states the fact `wrong`. Its code can divide by deviations, which is
algorithm.advantage.deviation. As in gigpo the KL's coefficient 0.01 and 4 updates per step are ours; with one the clip never
acts. Not implemented: putting an expert's action in place of a wrong one, which a world may do.
"""

geometry_zero = replace(grpo, planner=AskedHalves(), shaping=(WhereToolsHelp(asked=True),), needs_turns=True)
"""Half of a group is asked to use a tool; its use is rewarded where that half did better, and punished where it did worse.

GeometryZero: Improving Geometry Solving for LLM with Group Contrastive Policy Optimization, arXiv:2506.07160.
From summaries: the weight 0.5, the least difference 0.1 and the words of both requests are ours. One update per step. Not
implemented: its reward for long answers, which was not found.
"""
