"""Algorithms that follow the gradient of a reward through the decoder into the last steps: no groups, no densities."""

from dataclasses import replace

from mmrl.algorithms.advantages.experts import Demonstrated
from mmrl.algorithms.objectives.flow import RewardGradient
from mmrl.algorithms.presets.flow import flow_grpo
from mmrl.flow.schedules import Surrogate
from mmrl.flow.surrogate import SurrogatePath

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
