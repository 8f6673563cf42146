"""Formulas of image generators that are rewarded at every denoising step, which nothing runs yet, with their checks."""

import torch
from jaxtyping import Float
from torch import Tensor


def step_values(rewards: Float[Tensor, "n t"], gamma: float) -> Float[Tensor, "n t"]:
    """Q_t = sum_k gamma^k R_(t+k): what a row's later steps earn; steps in the order of sampling, the noisiest first."""
    out = torch.zeros_like(rewards)
    ahead = torch.zeros_like(rewards[:, 0])
    for t in reversed(range(rewards.shape[1])):
        ahead = rewards[:, t] + gamma * ahead
        out[:, t] = ahead
    return out


def value_advantages(values: Float[Tensor, "n t"], strength: float, eps: float = 1e-8) -> Float[Tensor, "n t"]:
    """A_t = w_t ((1 + k s_t) Q_t - mean Q_t) / (s_t + eps), w_t = Q_t / mean over steps, s_t the group's deviation of Q_t.

    VGPO (arXiv:2512.12387), from reviews that print its equations; how they are combined is a reading. Where a group's rewards
    agree, k w_t Q_t is left. Values must be above 0, or w has no meaning.
    """
    deviation = values.std(0)
    share = values / values.mean(1, keepdim=True)
    return share * ((1 + strength * deviation) * values - values.mean(0)) / (deviation + eps)
