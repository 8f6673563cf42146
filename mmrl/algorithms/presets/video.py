"""Published algorithms for video as deltas of those for text; all of them train on pictures and plain text, too.

Rewards are the run's: soft multiple choice, temporal IoU and the rest are plug-in files.
"""

from dataclasses import replace

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.ema_decay import SteadyDecay
from mmrl.algorithms.objectives.penalties import Perception, ReferenceKL, Surprise
from mmrl.algorithms.objectives.regression import AdvantageRegression
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.planners.video import DifficultyAware, Probed, WithTruth
from mmrl.algorithms.presets.baselines import grpo
from mmrl.algorithms.presets.clipping import dapo
from mmrl.algorithms.shaping.video import ConsistencyBonus, LengthBonus, SoftReward, TemporalBonus
from mmrl.algorithms.weights.aggregate import TokenMean
from mmrl.algorithms.weights.importance import GroupDivergence

tw_grpo = replace(grpo, objective=((1.0, Clip(high=0.28)),), aggregation=TokenMean(), importance=(GroupDivergence(),))
"""Tokens weigh more where a group's samples part ways; for rewards that give part of the points.

TW-GRPO: Reinforcing Video Reasoning with Focused Thinking, arXiv:2505.24718.
GRPO with clip-higher, token mean and no KL; alpha is the script's 1.7. Weights come from the weights that sampled, once per step,
without gradient; the authors' code takes the moving ones and their gradient, too. Its soft reward is `choice` with
kind_ = "soft", its question-answer inversion `invert = 0.5` of clevrer, next_gqa and video_r1. One update per step as in that
script, so the clip never acts and the weights are the method. Nothing else is left out.
"""

reg_grpo = replace(
    grpo, advantage=GroupNorm(ddof=0, eps=1e-6), objective=((1.0, AdvantageRegression()), (0.1, ReferenceKL())), epochs=4
)
"""Regresses standardized log-ratios of whole rollouts on advantages: no ratio, no clip.

DeepVideo-R1: Video Reinforcement Fine-Tuning via Difficulty-aware Regressive GRPO, arXiv:2506.07464.
After the paper's formulas, without official code. 4 updates per step on the same rollouts (epochs=4): the first finds log-ratios
of 0 and is plain policy gradient, the others regress; with one it is REINFORCE of whole rollouts. The paper names no number.
eps = 0.1 nats in the spread of the log-ratios, where the paper has none. Not implemented: its difficulty-aware
augmentation, which is deepvideo_r1.
"""

deepvideo_r1 = replace(reg_grpo, planner=DifficultyAware())
"""Reg-GRPO on prompts made easier by a hint or harder by noise, by how they compare with the latest rewards.

DeepVideo-R1: Video Reinforcement Fine-Tuning via Difficulty-aware Regressive GRPO, arXiv:2506.07464.
The factors from reward to hint and noise are ours. 4 updates per step, as in reg_grpo. Nothing is left out.
"""

t_grpo = replace(
    grpo,
    objective=((1.0, Clip(low=0.2, high=0.2)), (0.04, ReferenceKL(estimator="k3", log_ratio_clamp=10.0))),
    planner=Probed(),
    shaping=(TemporalBonus(), LengthBonus()),
)
"""A bonus for right answers if the group does better with frames in order than shuffled.

Video-R1: Reinforcing Video Reasoning in MLLMs (T-GRPO), arXiv:2503.21776.
The first reward is the accuracy; with one binary reward alone the bonus vanishes, see TemporalBonus. Statistics are those of a
group, not of a process's batch. One update per step as in the authors' code. Nothing else is left out.
"""

temp_samp_r1 = replace(
    grpo,
    advantage=GroupNorm(eps=1e-6),
    objective=((1.0, Clip(low=0.2, high=0.28)),),
    planner=WithTruth(direct=0.5),
    shaping=(SoftReward(),),
)
"""The ground truth is one of the group's samples; bent rewards keep it from drowning the others.

TempSamp-R1: Effective Temporal Sampling with Reinforcement Fine-Tuning for Video LLMs, arXiv:2509.18056.
The first reward is bent. Its other two stabilizers are InjectedScale and AnchoredNorm. Half of the prompts ask for the answer
alone; the paper trains without thoughts first and with them afterwards (two runs: planner.direct=1, then 0). No KL. One update
per step, for the method is its given sample; the clip then never acts. Nothing else is left out.
"""

grpo_care = replace(grpo, objective=((1.0, Clip()),), shaping=(ConsistencyBonus(),), ema_decay=SteadyDecay(0.9995))
"""A bonus for right answers that a slow average of the policy expects after the same thought.

GRPO-CARE: Consistency-Aware Reinforcement Learning for Multimodal Reasoning, arXiv:2506.16141.
The first reward is the accuracy; the answer is what stands after the last <answer>. No KL. The average keeps 0.9995 at every
update, the paper's 0.995 at every tenth. One update per step as in grpo: the method is its bonus. Nothing is left out.
"""

urpa = replace(grpo, advantage=GroupNorm(scale="batch"), needs_rewards=("pseudo_span",))
"""GRPO without labels: the group's mean span is the truth, trusted the less the wider its spans spread.

Uncertainty-quantified Rollout Policy Adaptation for Unlabelled Cross-domain Temporal Grounding, arXiv:2508.06317.
The pseudo-label is the reward pseudo_span, without which a run is refused; the paper weighs it 0.5 beside 0.5 of format. Its
trust is one factor per group: advantages are divided by the deviation of the whole step, for that of the group would divide the
trust out again. One update per step, as in grpo. Its two phases are two configs: video/qwen25vl_7b_charades_source on labels,
then video/qwen25vl_7b_activitynet_urpa from its weights on clips without any. Not implemented: the constant gamma and how the
first phase relaxes its labels, which are not known to us.
"""

papo = replace(
    dapo,
    objective=(
        (1.0, Clip(low=0.2, high=0.3, dual=3.0)),
        (0.01, ReferenceKL(estimator="k3", log_ratio_clamp=20.0, value_clamp=10.0)),
        (0.01, Perception()),
        (0.03, Surprise()),
    ),
    planner=grpo.planner,
    shaping=(),
    group_size=8,
    minibatches=3,
)
"""Rewarded for saying what it would not say with its pictures hidden. For pictures, not for clips.

Perception-Aware Policy Optimization for Multimodal Reasoning, arXiv:2507.06448.
3 updates per step as in the authors' script; with one its own terms act, the clip does not. Not implemented: the entropy loss
of the masked reading (constant by default in the authors' code), top-p token masks, annealing.
"""
