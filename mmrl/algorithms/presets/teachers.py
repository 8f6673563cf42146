"""Algorithms that follow teachers instead of rewards, or beside them, on what the policy writes or draws itself."""

from dataclasses import replace

from mmrl.algorithms.advantages.experts import Demonstrated, ExceptTaught, Told
from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.ema_decay import SteadyDecay
from mmrl.algorithms.objectives.flow import FlowKL
from mmrl.algorithms.objectives.given import FollowTeacher
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.presets.baselines import grpo
from mmrl.algorithms.presets.flow import flow_grpo
from mmrl.algorithms.views import TOLD, Privileged
from mmrl.algorithms.weights.aggregate import TokenMean
from mmrl.algorithms.weights.importance import SureTeacher
from mmrl.flow.schedules import OwnPath

diffusion_opd = replace(
    flow_grpo,
    objective=((0.5, FlowKL(form="mean_mse", model="teacher")),),
    advantage=Demonstrated(unscored=False),
    schedule=OwnPath(num_steps=10),
    group_size=1,
    minibatches=1,
)
"""Several teachers, each an adapter for its kind of prompts, are joined in one policy, on the policy's own path.

DiffusionOPD: On-Policy Distillation, arXiv:2605.15055 (code: UniRL 2586b6c).
The loss is (mean - teacher's mean)^2 / 2 per element at the first 99 % of the steps, dt^2 / 2 times the distance of velocities.
Teachers are policy.teachers, chosen by the column `teacher` of prompts. Rewards are logged; advantage.unscored = true asks for
none. One update per step; it has no ratio. The code draws ODE paths by noise of 1e-6, and adds up the gradients of as many
batches as there are teachers: take prompts_per_step large enough for all. On noisy steps (schedule.kind = "Full") take FlowKL
with form = "true" at 1; verl-omni's is no_dt, another scale. Nothing is left out.
"""

opd = replace(grpo, objective=((1.0, FollowTeacher()),), advantage=Demonstrated(), aggregation=TokenMean(), group_size=1)
"""Every token that the policy writes is compared with the distribution of a teacher that reads along.

On-Policy Distillation of Language Models (GKD), arXiv:2306.13649.
The teacher is policy.teachers: another model, or another adapter. Exact over the vocabulary, beta = 0.5; reverse KL on the token
that was written (Thinking Machines' form) is objective.0.form = "sampled" with beta = 1. No reward is asked; add a surrogate and
advantage.kind = "GroupNorm" for both. The paper's mixture with texts of the teacher is planner.kind = "PartlyTaught". One update
per step; it has no ratio. Nothing is left out.
"""

opsd = replace(opd, objective=((1.0, FollowTeacher(model="ref", view=Privileged(column="solution"))),))
"""The model as it was teaches itself: the teacher reads the solution under the prompt, the policy does not.

Self-Distilled Reasoner: On-Policy Self-Distillation, arXiv:2601.18734.
The solution is the column `solution` (objective.0.view.column). The frozen teacher of two that the paper has; model = "policy" is
the live one. beta and the sentence around the solution are ours. One update per step; it has no ratio. Nothing else is left out.
"""

vision_opd = replace(opd, objective=((1.0, FollowTeacher(model="ref", view=Privileged(media="crop"))),))
"""The model as it was teaches itself: the teacher looks at a crop, or another picture that shows more, the policy does not.

Vision-OPD, arXiv:2605.18740.
The pictures are the column `crop` (objective.0.view.media); no rewards, no labels. Which weights teach and beta are ours, for the
paper was read in summaries alone. One update per step; it has no ratio. Not implemented: how it finds its crops.
"""

sdpo = replace(
    opd,
    objective=((1.0, FollowTeacher(model="ema", top=100, ratio_bound=2.0, view=Privileged(column=TOLD))),),
    advantage=Told(),
    group_size=8,
    ema_decay=SteadyDecay(0.95),
)
"""Averaged weights that are told a right sample of the same prompt teach the policy, which is not.

Reinforcement Learning via Self-Distillation, arXiv:2601.20802 (code: lasgroup/SDPO 0e6d510).
beta = 0.5, the 100 likeliest tokens and the rest as one, ratio at most 2, averages that follow by 0.05; a sample is right from a
reward of 0.5 on and is never told itself. Rows that are told nothing leave loss and counts; a step without any does not
train. One update per step, where the ratio is 1. Not implemented: telling the words of an environment.
"""

srpo = replace(
    sdpo,
    objective=(
        (1.0, Clip(low=0.2, high=0.28)),
        (1.0, FollowTeacher(model="ema", top=100, rows="wrong", weighed=True, view=Privileged(column=TOLD))),
    ),
    advantage=ExceptTaught(GroupNorm(scale="none")),
    importance=(SureTeacher(),),
)
"""Wrong samples of a prompt with a right one go to sdpo's teacher, all others to GRPO.

SRPO: Sample-Routed Policy Optimization, arXiv:2604.02288.
A teacher's token weighs exp(-entropy of the teacher) over its mean in the minibatch; one denominator, all tokens. Advantages
without deviation. The bounds of the clip are DAPO's. One update per step: the clip never acts, and sdpo's ratio would be 1.
Nothing is left out.
"""
