"""Algorithms that noise finished samples again, and choose among or compare those of a prompt, as deltas of DiffusionNFT."""

from dataclasses import replace

from mmrl.algorithms.advantages.flow import BestAgainstWorst, BestWorst
from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.ema_decay import RampDecay
from mmrl.algorithms.objectives.flow import FlowKL
from mmrl.algorithms.objectives.forward import Matching
from mmrl.algorithms.objectives.groups_of_errors import CenteredReward, DenoisingPreference, GroupPreference
from mmrl.algorithms.planners.flow import Scouts
from mmrl.algorithms.presets.flow import diffusion_nft, flow_grpo
from mmrl.flow.schedules import Forward
from mmrl.flow.times import TimeSampler

crd = replace(
    diffusion_nft,
    objective=((1.0, CenteredReward()), (0.1, FlowKL(form="velocity_mse", guidance=4.5, bad_share=1e-3))),
    schedule=Forward(solver="ode", times=TimeSampler("uniform", count=20, reach=0.99, shared=True)),
    ema_decay=RampDecay(first=0.25, slope=0.005, most=0.999),
    minibatches=2,
)
"""What the change of its error says a sample is worth, centred in the group, is fitted to what its reward says.

CRD, Diffusion Reinforcement Learning via Centered Reward Distillation, arXiv:2603.14128, in Flow-Factory's port.
Samples and policy are without guidance (policy.guidance = 1), the reference that holds them has 4.5. 2 updates per step. The
centre is that of a prompt at one time, where the port takes whatever a micro-batch holds at unlike times; that times are uniform
is ours. One averaged copy is both the old policy and the sampler, which has a decay of its own there (0 up to update 75, then
0.0075 more each). Not implemented: the hard, softmax and bce variants, of which the first never looks at bad samples.
"""

dgpo = replace(
    diffusion_nft,
    objective=((1.0, GroupPreference(beta=100.0, clip=1e-2)), (0.02, FlowKL(form="velocity_mse", guidance=4.5))),
    advantage=GroupNorm(ddof=0, eps=1e-4),
    schedule=Forward(num_steps=10, solver="dpm2", times=TimeSampler("discrete", count=4, reach=0.7, shared=True)),
    ema_decay=RampDecay(most=0.3),
    group_size=16,
)
"""The samples of a prompt are preferred by their advantages, all at once: DPO of a whole group, with samples of any solver.

DGPO, Reinforcing Diffusion Models by Direct Group Preference Optimization, arXiv:2510.08425.
One update per step; it has no ratio of densities. beta is the brake: 10 for PickScore, with 0.001 of KL; groups of 24 are better.
Both are for latents of 10^4 to 10^5 elements: errors are means over them, so with a few hundred take beta 5 and a clip of 0.2.
Samples and policy are without guidance (policy.guidance = 1) and the reference of the KL has 4.5, the code's second mode.
The averaged copy samples from the start, where the code lets it after 200 to 500 updates. objective.0.ref = "ema" is TDM-R1's
dynamic reference (beta 2000, clip 1e-5). Not implemented: the first mode, whose rollouts are guided while training is not.
"""

flow_sft = replace(
    diffusion_nft,
    objective=((1.0, Matching()),),
    advantage=BestWorst(worst=False),
    planner=flow_grpo.planner,
    schedule=Forward(num_steps=40, solver="ode", times=TimeSampler("logit_normal", count=1)),
    ema_decay=None,
)
"""Rejection fine-tuning: the policy is taught the best sample of every group, by flow matching at one noised time.

Online SFT as Flow-GRPO's authors compare it (arXiv:2505.05470, code ac4c86e) and UniRL has it (4154868).
All that share the maximum are best, so a group of equal rewards teaches all its samples. The mean is over all rows: the best of G
weighs 1 / G, and a learning rate does not carry over from supervised runs. Samples are drawn with policy.guidance and taught
without (objective.0.guidance). Nothing holds the policy near the reference. One update per step; it has no ratio.
Not implemented: the code's shift of times by the model's own.
"""

flow_dpo = replace(
    flow_sft,
    objective=((1.0, DenoisingPreference(beta=100.0)),),
    advantage=BestAgainstWorst(),
    schedule=Forward(num_steps=40, solver="ode", times=TimeSampler("logit_normal", count=1, shared=True)),
)
"""Diffusion-DPO online: the best sample of every group is preferred to the worst, at one noise and one time for both.

Diffusion Model Alignment Using Direct Preference Optimization, arXiv:2311.12908, on samples of the policy as Flow-GRPO's authors
compare it (arXiv:2505.05470, code ac4c86e: beta 100, 24 samples of 40 steps without noise, one pair per group).
Flow-Factory has beta 2000; latents of a few hundred elements take a tenth. A group of equal rewards has no pair and is left out;
the codes pair a sample with itself, or the first two. Samples are drawn with policy.guidance and compared without
(objective.0.guidance). One update per step; it has no ratio. The reference is that of the run's beginning. Nothing is left out.
Pairs of your own are a stage, `kind = "dpo"`.
"""

sol_rl = replace(diffusion_nft, planner=Scouts(), schedule=Forward(times=TimeSampler("discrete", count=6, reach=0.6)))
"""DiffusionNFT on the best and the worst of many scouts, which are samples of few steps whose seeds are then drawn in full.

Sol-RL, arXiv:2604.06916 (selection as in UniRL 3a3f885, where 8 and 8 of 128 are kept).
Of 4 * 24 scouts of 6 steps the seeds of the best 12 and the worst 12 are drawn again in 10 and scored again; nothing of a scout's
reward is used but its rank. One update per step; it has no ratio. No guidance (policy.guidance = 1). That there are 6 times, one
of every step of the first 60 %, is ours. Not implemented: scouts in cheap precision.
"""
