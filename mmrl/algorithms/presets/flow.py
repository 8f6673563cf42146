"""Published algorithms for flow-matching image generators, as deltas of each other.

Numbers are those of the papers' main setting; where the official code does otherwise, the
document says which option does the same. Clip ranges suit latents of 10^4 to 10^5 elements: log-ratios are means over them,
so with latents of a few hundred elements take 1e-3 to 1e-2, or nearly everything is clipped after one update.
"""

from dataclasses import replace

from mmrl.algorithms.advantages.decoupled import Decoupled, PerModality
from mmrl.algorithms.advantages.experts import Demonstrated
from mmrl.algorithms.advantages.flow import BestAgainstWorst, BestWorst, StepRewards
from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.advantages.remembered import PromptHistory
from mmrl.algorithms.advantages.tree import TreeNorm
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.ema_decay import RampDecay
from mmrl.algorithms.objectives.flow import DivergenceMask, FlowKL, RatioNorm, RewardGradient
from mmrl.algorithms.objectives.forward import (
    AdvantageMatching,
    CenteredReward,
    DenoisingPreference,
    GroupPreference,
    Matching,
    NegativeAware,
)
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.planners.flow import SampleFrom, Scouts
from mmrl.algorithms.weights.aggregate import TokenMean
from mmrl.algorithms.weights.importance import EqualGradient, InverseStep, NoiseLevel
from mmrl.flow.schedules import Branching, Forward, Full, OneStep, RandomSubset, Surrogate, Tree, Window
from mmrl.flow.sigmas import LinearShift
from mmrl.flow.surrogate import SurrogatePath
from mmrl.flow.times import TimeSampler

flow_grpo = Algorithm(
    objective=((1.0, Clip(low=1e-4, high=1e-4)), (0.004, FlowKL(form="true"))),
    advantage=GroupNorm(ddof=0, eps=1e-4, clip=5.0),
    schedule=Full(num_steps=10, dynamics="flow_sde", level=0.7),
    group_size=24,
    minibatches=2,
)
"""GRPO on the steps of a stochastic sampler: few steps, noise at each, PPO clip on Gaussian transitions, KL to the reference.

Flow-GRPO: Training Flow Matching Models via Online RL, arXiv:2505.05470.
The code differs from the paper: deviation over the whole batch (advantage.scale = "batch"), KL without the step size and ten
times the coefficient (0.04, form = "no_dt"), noise also at the last step, which never trains (schedule.last = "noisy").
2 updates per step; with one the clip never acts. SD3: level 0.7; FLUX: 6 steps, level 0.9, no KL. The code also leaves out
samples whose advantage is 0, with their KL: advantage.drop_zero. Gradients pass both halves of the guidance, as in the code
since August 2025. An older official script detached the unconditional half: its gradients differ from these by 0.64 of their
norm; without that detach they agree to 9e-6. Nothing is left out.
"""

flow_grpo_fast = replace(
    flow_grpo,
    objective=((1.0, Clip(low=1e-5, high=1e-5)),),
    schedule=Window(num_steps=10, size=3, dynamics="cps", level=0.8, move="random", low=0, high=5),
)
"""Flow-GRPO that is noisy and trains in a short random window of early steps only.

Flow-GRPO-Fast, in the code of Flow-GRPO, arXiv:2505.05470.
No KL, coefficients-preserving noise. 2 updates per step; with one the clip never acts. The window is drawn once per training
step, the same on all ranks (the code: per batch and rank). The first version of the code started all samples of a group from
one deterministic prefix: set schedule.initial_noise = "group" and schedule.share_prefix = true. Nothing is left out.
"""

cps = replace(flow_grpo, objective=((1.0, Clip(low=1e-5, high=1e-5)),), schedule=Full(dynamics="cps", level=0.8))
"""Flow-GRPO with noise that preserves the coefficients of signal and noise: none is left at the end.

Coefficients-Preserving Sampling for Reinforcement Learning with Flow Matching, arXiv:2509.05952.
The log-probability is the authors': -(x' - mean)^2 without the variance, which the clip range assumes. No KL. 2 updates per
step; with one the clip never acts. Nothing is left out.
"""

few_step = replace(
    flow_grpo,
    objective=((1.0, Clip(low=1e-5, high=1e-5)),),
    schedule=Full(num_steps=4, dynamics="cps", level=1.0),
)
"""Flow-GRPO for models distilled to a few steps, which draw with all noise anew at every step: a step that has a density.

The sampler is that of consistency models: predict the data, noise it again. It is coefficients-preserving sampling
(arXiv:2509.05952) at level 1, so Flow-GRPO (arXiv:2505.05470) trains on the model's own path, without guidance.
No KL. 2 updates per step; with one the clip never acts. FLUX.1-schnell and FLUX.2-klein draw in 4 steps, Z-Image-Turbo in 8
(schedule.num_steps). Other kinds of noise stay visible at so few steps: Flow-SDE is refused where a model is known to be
distilled. Nothing is left out.
"""

grpo_guard = replace(flow_grpo, objective=((1.0, RatioNorm()),), importance=(InverseStep(),))
"""Flow-GRPO with log-ratios freed of their negative bias and brought to one scale at all steps.

GRPO-Guard: Mitigating Implicit Over-Optimization in Flow Matching via Regulated Clipping, arXiv:2510.22319.
No KL; float32 throughout. 2 updates per step; with one all ratios are 1 and only the weights per step act. The bias is taken
per sample; the official code averages it over a micro-batch by accident (objective.0.bias = "batch"). Flow-Factory's port does
not divide by the step size (importance = []). Nothing is left out.
"""

flow_dppo = replace(
    flow_grpo,
    objective=((1.0, DivergenceMask(threshold=1e-5)),),
    advantage=GroupNorm(scale="batch", ddof=0, eps=1e-4, clip=5.0),
    schedule=RandomSubset(num_steps=10, candidates=(0, 1, 2, 3, 4), count=3, dynamics="flow_sde", level=0.7),
    group_size=16,
)
"""No clip: a step stops training where it is too far from the sampler's, in KL divergence, and would go farther.

Flow-DPPO, arXiv:2606.11025.
No KL, three noisy steps of the first half, guidance 1. 2 updates per step; with one nothing is ever masked, and a run is refused.
The divergence is a mean over elements, as in the code (UniRL; Flow-Factory's threshold is 1e-6), where the paper sums them: a
threshold of one is that of the other times the number of elements. Latents of a few hundred elements take 1e-4 to 1e-3.
objective.0.divide = false leaves the noise of the step out of it. Nothing is left out.
"""

flash_grpo = replace(
    flow_grpo,
    objective=((1.0, Clip(low=1e-3, high=1e-3)),),
    advantage=GroupNorm(scale="batch", ddof=0, eps=1e-4, clip=5.0),
    importance=(EqualGradient(),),
    schedule=OneStep(num_steps=20, high=10, dynamics="wan"),
)
"""Every prompt has one noisy step of its own, which trains; a weight makes the gradients of all steps equally large.

Flash-GRPO, arXiv:2605.15980.
No KL. The step is drawn for every prompt, which the paper says and its sampler does not; weights are computed, where the code has
ten constants of one table, and their mean is over the steps that may be drawn (importance.0.normalize = "batch": over the batch,
as in the authors' script). 2 updates per step and groups of 24 are ours; with one the clip never acts. LongCat-Video's variant
(arXiv:2510.22200): schedule.initial_noise = "group" with share_prefix, dynamics = "flow_sde" with cap = 0.45, advantage.scale =
"max_group", and FlowKL(form = "velocity_mse"). Not implemented: its two first epochs, which do not train.
"""

mix_grpo = replace(
    flow_grpo,
    objective=((1.0, Clip(low=1e-4, high=1e-4)),),
    advantage=Decoupled(ddof=1, eps=1e-8, whiten="none"),
    schedule=Window(num_steps=25, size=4, dwell=25, initial_noise="group", spacing=LinearShift(3.0)),
    group_size=12,
    minibatches=4,
)
"""A window of noisy, trained steps that slides from noise to data; the rest is deterministic.

MixGRPO: Unlocking Flow-based GRPO Efficiency with Mixed ODE-SDE, arXiv:2507.21802.
Every reward is normalized in its group before they are added; give reward weights that add up to 1. 4 updates per step; with
one the clip never acts. The code's windows end two
steps early (schedule.high = num_steps - 2) and run past that end until one is empty (schedule.overrun). It clips advantages to
5, which groups of fewer than 27 never reach, and tells rewards one rounding apart from each other (advantage.zero_below = 0),
which makes +-1.3 of nothing. schedule.share_prefix = true saves the shared steps before the window. The code's
trimmed_ratio is advantage.trimmed. Nothing is left out.
"""

mix_grpo_flash = replace(mix_grpo, schedule=Window(dwell=20, flash=0.4, initial_noise="group", spacing=LinearShift(3.0)))
"""MixGRPO that finishes each sample with fewer, second-order steps after the window.

MixGRPO-Flash, arXiv:2507.21802.
4 updates per step, as in mix_grpo. Flash* freezes the window: schedule.stride = 0, schedule.flash = 0.2. At least one step is
left after the window, where the code can stop above sigma 0. Nothing is left out.
"""

temp_flow_grpo = replace(
    flow_grpo,
    advantage=TreeNorm(compared="siblings", ddof=0, eps=1e-4, zero_below=0.0),
    importance=(NoiseLevel(),),
    schedule=Branching(num_steps=10, branches=6),
    group_size=4 * 54,
)
"""Branches of one noisy step off a deterministic trunk: each reward credits exactly its step; noisy steps weigh more.

TempFlow-GRPO: When Timing Matters for GRPO in Flow Models, arXiv:2508.04324.
A group is 4 trunks of 6 branches at each of 9 steps, each trunk from its own noise. Branches are compared with their siblings,
the 6 of one trunk and step: the seed group of the third version (ICLR 2026) and of the code. With advantage.compared = "depth" it
is the 24 of all trunks of a prompt. 2 updates per step; with one the clip never acts. A trunk costs 279 forwards;
schedule.at_steps branches at fewer steps. Nothing is left out.
"""

dance_grpo = replace(
    flow_grpo,
    objective=((1.0, Clip(low=1e-4, high=1e-4)),),
    advantage=GroupNorm(ddof=1, eps=1e-8, zero_below=1e-6, clip=5.0),
    schedule=Full(
        num_steps=16, dynamics="dance_sde", level=0.3, trained_per_row=9, initial_noise="group", spacing=LinearShift(3.0)
    ),
    group_size=12,
    minibatches=3,
)
"""Constant noise at every step, shared initial noise, each sample trains a random 60 % of its steps.

DanceGRPO: Unleashing GRPO on Visual Generation, arXiv:2505.07818.
The rewarded image is the data predicted at the last step (schedule.last = "ode" is the same thing). For video keep the best and
worst of many samples: advantage BestOfN(n=8) with group_size 24. 3 updates per step; with one, which its authors advise for
models with guidance (minibatches = 1), the clip never acts.
The code truncates the network's timestep to an integer (schedule.truncated_timesteps). Not implemented: a clipped loss per
reward.
"""

branch_grpo = replace(
    dance_grpo,
    objective=((1.0, Clip(low=1e-3, high=1e-3)),),
    advantage=TreeNorm(ddof=1, eps=1e-8),
    aggregation=TokenMean(),
    schedule=Tree(num_steps=20, split_steps=(0, 3, 6, 9), factor=2, split_noise=4.0, spacing=LinearShift(3.0)),
    group_size=16,
    minibatches=16,
)
"""Samples are the leaves of a tree of denoising steps, so prefixes are shared and every depth is compared on its own.

BranchGRPO: Stable and Efficient GRPO with Structured Branching in Diffusion Models, arXiv:2509.06040.
A node is worth the mean of its leaves as in the code; the paper's path weights are advantage.fusion = "path". The density of a
split has the noise that was drawn; the code's is four times narrower (schedule.nominal_density). Pruning: schedule.pruned_depths
with slide_every; advantage.kept_chains = 0.5, and with it advantage.pruning = "best_per_branch". 16 updates per step, for a tree
has 16 leaves (the code: 19 per tree); with one the clip never acts. Nothing is left out; its mixed mode is branch_mix_grpo.
"""

branch_mix_grpo = replace(branch_grpo, schedule=Tree(window=(0, 4), window_every=30, last="ode", spacing=LinearShift(3.0)))
"""BranchGRPO that is noisy and trains at its splits and in a sliding window only; the other steps are deterministic.

BranchGRPO-Mix, arXiv:2509.06040.
The tree and its rollout cost are those of branch_grpo, what trains is a sixth to two fifths. The window's size and pace are ours
(they are not in the sources read); with its defaults the code's window never moves (schedule.window_every = 0). The last step is
always deterministic. 16 updates per step, as in branch_grpo. Nothing is left out.
"""

ddpo = replace(
    flow_grpo,
    objective=((1.0, Clip(low=1e-4, high=1e-4)),),
    advantage=PromptHistory(),
    schedule=Full(num_steps=50, dynamics="ddim", level=1.0),
    group_size=1,
    minibatches=4,
)
"""Every sample has a prompt of its own and is compared with that prompt's last 16 rewards; PPO clip on DDPM's steps, no KL.

DDPO (the variant with importance sampling): Training Diffusion Models with Reinforcement Learning, arXiv:2305.13301.
Its settings are those of ddpo-pytorch, for Stable Diffusion: set schedule.last = "trained" there, for its last step draws noise,
too, and guidance 5. The paper draws 256 pictures (prompts_per_step) for 4 updates per step; with one the clip never acts. Prompts
must come back: one with fewer than 16 rewards is compared with the whole step. The code draws prompts with replacement, and
shuffles steps within a sample, which changes nothing where all of them enter one update. Nothing is left out.
"""

unigrpo = replace(
    grpo_guard,
    objective=((1.0, RatioNorm(low=1e-6, high=1e-6)), (1.5e-5, FlowKL(form="velocity_mse"))),
    importance=(),
    schedule=Window(num_steps=25, size=3, level=0.8, move="random", low=0, high=8),
    group_size=8,
)
"""Normalized ratios in a short window of early steps, held near the reference's velocities instead of its densities.

UniGRPO, the part that draws: Unified Policy Optimization for Reasoning-Driven Visual Generation, arXiv:2603.23500.
2 updates per step; with one all ratios are 1. Samples and training are without guidance (policy.guidance = 1). How far the window
may move is ours (schedule.high). The code can weigh steps by their length, which is off by default (importance InverseStep). Not
implemented: the part that writes, which needs a model of both.
"""

vgpo = replace(flow_grpo, advantage=StepRewards(clip=5.0), schedule=Full(previews=True))
"""Flow-GRPO whose steps are each credited with the rewards of what they and later steps predict, compared within the group.

VGPO, Value-Guided Policy Optimization, arXiv:2512.12387, of which no code is published.
What the paper leaves open is ours: gamma 0.9, an anchor of 0.5 on the first half of the steps, eps, the clip of 5, and all that
is Flow-GRPO's. 2 updates per step; with one the clip never acts. Every step is decoded and scored, without a further call of the
network. Rewards must not be negative (advantage.weigh = false takes any). Flow-GRPO with process rewards alone is
advantage.gamma = 0, anchor = 0 and weigh = false. Nothing that is published is left out.
"""

pref_grpo = replace(
    grpo_guard,
    objective=((1.0, RatioNorm(low=1e-4, high=1e-4)),),
    advantage=GroupNorm(eps=1e-8, clip=5.0),
    schedule=Full(num_steps=25, trained_per_row=14, initial_noise="group", spacing=LinearShift(3.0)),
    group_size=8,
    needs_rewards=("pairwise_win_rate",),
)
"""Rewards are win rates of pairwise comparisons inside the group; normalized ratios.

Pref-GRPO: Pairwise Preference Reward-based GRPO for Stable Text-to-Image Reinforcement Learning, arXiv:2508.20751.
2 updates per step; with one all ratios are 1. The win rate is the reward pairwise_win_rate, without which a run is refused. The
code mixes 0.6 of CLIP in and standardizes the sum once more over the batch (advantage Decoupled with whiten = "rollout").
Nothing else is left out.
"""

diffusion_nft = replace(
    flow_grpo,
    objective=((1.0, NegativeAware(beta=1.0)), (1e-4, FlowKL(form="velocity_mse"))),
    advantage=GroupNorm(scale="batch", ddof=0, eps=1e-4, clip=5.0),
    planner=SampleFrom("ema"),
    schedule=Forward(num_steps=10, solver="dpm2", times=TimeSampler("rollout", count=9)),
    ema_decay=RampDecay(),
    minibatches=1,
)
"""No sampler likelihood: noised samples pull the velocity towards good ones and push it from bad ones.

DiffusionNFT: Online Diffusion Reinforcement with Forward Process, arXiv:2509.16117.
The sampling weights are the policy's ema, whose decay rises from 0 to 0.5 in 500 updates (ema_decay). The loss is that of the
code, on predicted data and normalized by its error, which the author found necessary; the paper's is
objective.0.normalized = false.
One update per step; it has no ratio. No guidance. beta 0.1 for text rendering. Nothing is left out.
"""

omninft = replace(
    diffusion_nft, objective=((1.0, NegativeAware(parts=True)), (1e-4, FlowKL(form="velocity_mse"))), advantage=PerModality()
)
"""A clip and its sound are trained apart, each by the rewards that look at it.

OmniNFT, arXiv:2605.12480. Name the rewards of each: `algorithm.advantage.of_clip` and `of_sound`; all others count for both.
Every reward is normalized by itself, by its deviation over the step. One update per step; it has no ratio. Sampling weights,
times and the KL are diffusion_nft's. Not implemented: gradients that are gated layer by layer, weights of regions.
"""

awm = replace(
    diffusion_nft,
    objective=((0.2, AdvantageMatching()), (1e-3, FlowKL(form="velocity_mse")), (1.0, FlowKL(form="velocity_mse", model="ema"))),
    planner=flow_grpo.planner,
    schedule=Forward(num_steps=14, solver="sa", level=0.4, times=TimeSampler("discrete_wo_init", count=6, reach=0.9)),
    ema_decay=RampDecay(most=0.3),
)
"""The flow-matching loss of noised samples, weighted by their advantage.

Advantage Weighted Matching: Aligning RL with Pretraining in Diffusion Models, arXiv:2509.25050.
One update per step; ratios are those of the policy with itself. Advantages are clamped to 5 and divided by it (the 0.2). The
ema follows with RampDecay(most=0.3). Rollouts take SA-Solver's predictor only, without its corrector and the code's changed
first and last sigmas. The paper's plain matching loss is weighting = "uniform"; the code's variant that adds times up before
the ratio is combine = "sum_first". Nothing else is left out.
"""

refl = replace(
    flow_grpo,
    objective=((1.0, RewardGradient()),),
    advantage=Demonstrated(unscored=False),
    schedule=Surrogate(num_steps=25, path=SurrogatePath("refl", steps=1, tail=0.44)),
    group_size=1,
    minibatches=1,
)
"""The picture that one late step points at is decoded, and the gradient of its reward trains that step.

ReFL, ImageReward: Learning and Evaluating Human Preferences, arXiv:2304.05977, for flows as FlowBP's code has it (93b220a).
One random step of the last 11 of 25; the reward is that of the predicted picture, not of the finished one. One update per step;
it has no ratio. Rewards must have a gradient (`of_pixels`), and at least one more should be watched. Not implemented: the
paper's pre-training loss on data, which a stage of the kind sft before or after does, and its map of scores before the hinge.
"""

draft_k = replace(refl, schedule=Surrogate(num_steps=25, path=SurrogatePath("draft", steps=1)))
"""The last steps are one chain into the reward: its gradient passes the decoder and these steps, and stops there.

DRaFT, Directly Fine-Tuning Diffusion Models on Differentiable Rewards, arXiv:2309.17400 (code: UniRL 2b72035 at eta 0).
schedule.path.steps is K, here 1; K = num_steps is full backpropagation, and memory grows with K. One update per step; it has no
ratio. Rewards must have a gradient (`of_pixels`), and at least one more should be watched. Not implemented: DRaFT-LV, which
averages over noised copies of the end.
"""

flow_bp = replace(
    refl, objective=((1.0, RewardGradient(top=0.55)),), schedule=Surrogate(path=SurrogatePath("sparse", rescale=0.5))
)
"""A few steps of the whole path carry the reward's gradient, each evaluated again where the sample passed: memory of those alone.

FlowBP, arXiv:2606.11075 (code 93b220a), its Sparse. top is for HPSv2: set it for your reward, or to none.
path.kind = "bridge" with steps = 5, bias = 4, rescale = 0 and alpha = 0.5 is its Bridge. With all steps active it is not full
backpropagation, since inputs carry nothing. Guidance is the policy's, with a gradient through both halves, where the code
detaches the unconditional one; cached latents stay in float32, where the code rounds them to half. One update per step; it has no
ratio. Not implemented: the Lagrange variant (LeapAlign), DRTune; that step j is always among a bridge's active ones is ours.
"""

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
