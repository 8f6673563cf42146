"""Algorithms that follow teachers instead of rewards, on what the policy draws itself."""

from dataclasses import replace

from mmrl.algorithms.advantages.experts import Demonstrated
from mmrl.algorithms.objectives.flow import FlowKL
from mmrl.algorithms.presets.flow import flow_grpo
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
