"""Samples that are older than the weights they train, and samples of earlier steps that train again."""

from dataclasses import replace

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.advantages.remembered import AmongSeen
from mmrl.algorithms.objectives.off_policy import Rec
from mmrl.algorithms.objectives.penalties import BetweenReferences
from mmrl.algorithms.objectives.surrogates import Clip, Dro, MovingClip, Vespo
from mmrl.algorithms.planners.replay import ReplayGroups, ReplayInformative, ReplaySuccess
from mmrl.algorithms.presets.baselines import CENTRED, CLIPPED, grpo
from mmrl.algorithms.weights.aggregate import TokenMean

vespo = replace(grpo, objective=((1.0, Vespo()),), aggregation=TokenMean(), minibatches=8)
"""Policy gradient weighted by a smooth function of the rollout's whole ratio, for stale samples.

VESPO: Variational Sequence-Level Soft Policy Optimization for Stable Off-Policy LLM Training, arXiv:2602.10693.
No KL. 8 updates per step, from the 4 to 64 of the paper; with one every weight is 1. Not implemented: the asynchronous sampler
it is meant for; set Vespo(sampler=True) where the sampler's probabilities are its own.
"""

dro = replace(grpo, objective=((1.0, Dro()),), minibatches=4)
"""Policy gradient with a quadratic pull towards the weights that sampled.

Offline Regularised Reinforcement Learning for Large Language Models Alignment (DRO), arXiv:2405.19107.
4 updates per step are ours, for the paper trains offline; with one nothing pulls. Not implemented: the learned value function
(the group's mean stands for it) and offline data.
"""

rec = replace(grpo, advantage=CENTRED, objective=((1.0, Rec()),), aggregation=TokenMean(), minibatches=4)
"""REINFORCE that stops at actions whose ratio has already gone where the advantage wants it, for stale samples.

Group-Relative REINFORCE Is Secretly an Off-Policy Algorithm (REC-OneSide-NoIS), arXiv:2509.24203.
`algorithm.objective.0.weight = "ratio"` is its form with importance sampling. 4 updates per step are ours (the paper lets samples
grow 20 steps old); with one it is REINFORCE. Not implemented: samples from earlier steps.
"""

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
