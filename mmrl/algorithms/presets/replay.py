"""Samples of earlier steps that train again."""

from dataclasses import replace

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.advantages.remembered import AmongSeen
from mmrl.algorithms.objectives.moving_clip import MovingClip
from mmrl.algorithms.objectives.penalties import BetweenReferences
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.planners.replay import ReplayGroups, ReplayInformative, ReplaySuccess
from mmrl.algorithms.presets.baselines import CLIPPED, grpo
from mmrl.algorithms.weights.aggregate import TokenMean

arpo_gui = replace(CLIPPED, planner=ReplaySuccess(keep_old=False), objective=((1.0, Clip(low=0.2, high=0.3)),))
"""Groups that fail altogether get an old success of their prompt in place of a sample.

ARPO: End-to-End Policy Optimization for GUI Agents with Experience Replay, arXiv:2505.16282. Old log-probabilities of replayed
rows are read again, as in its code; `algorithm.planner.keep_old = true` keeps those of when they were sampled. No KL. 4 updates
per step are ours; with one the clip never acts. With `[environment]` an old success comes back with its screenshots. Not
implemented: its filter of tasks.
"""

remix = replace(
    grpo,
    objective=((1.0, MovingClip()), (0.04, BetweenReferences())),
    planner=ReplayGroups(until=100),
    aggregation=TokenMean(),
    epochs=2,
)
"""Two fifths of the rows come from the last two steps, clipped around where this step found them; KL to two references.

Squeeze the Soaked Sponge: Efficient Off-policy Reinforcement Finetuning for Large Language Model (ReMix), arXiv:2507.06892.
2 updates per step, passes over all rows, as in the paper; with one fresh rows are plain REINFORCE. The clip range 0.2 and the
KL's coefficient 0.04 were not found and are grpo's. After 100 steps only new rows train, and the policy of then is the base:
`algorithm.planner.until` and `algorithm.objective.1.switch`. Nothing else is left out.
"""

ssr = replace(CLIPPED, planner=ReplayInformative(), advantage=AmongSeen(GroupNorm(drop_zero=True)), aggregation=TokenMean())
"""Groups whose answers are all right or all wrong give their place to rows of earlier steps with large advantages.

VL-Rethinker: Incentivizing Self-Reflection of Vision-Language Models with Reinforcement Learning (SSR), arXiv:2504.08837.
Selective sample replay alone. Rows without an advantage leave every count. Replayed rows keep their old log-probabilities and the
statistics of their first group. 4 updates per step are ours; with one, fresh rows are plain REINFORCE and replayed ones are
clipped. Not implemented: forced rethinking.
"""
