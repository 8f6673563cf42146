"""Formulas of methods with a value model, which nothing runs yet: it stands here with their checks."""

import torch
from jaxtyping import Float
from torch import Tensor


def advantages_at_cut(
    rewards: Float[Tensor, " t"], values: Float[Tensor, " t"], gamma: float, decay: float, finished: bool
) -> Float[Tensor, " t"]:
    """A_t = sum_k (gamma decay)^k delta_(t+k), delta_t = r_t + gamma V_(t+1) - V_t; beyond a cut V stays what it was last.

    EGAE of T-PPO (arXiv:2506.15050): a row that has not ended is compared with its own last value, one that has with 0. Returns
    for the value model are advantages + values.
    """
    beyond = torch.zeros_like(values[-1:]) if finished else values[-1:]
    deltas = rewards + gamma * torch.cat([values[1:], beyond]) - values
    out, ahead = torch.zeros_like(values), 0.0
    for t in reversed(range(len(values))):
        ahead = float(deltas[t]) + gamma * decay * ahead
        out[t] = ahead
    return out


def nearest_to(values: Float[Tensor, " n"], target: float, count: int) -> list[int]:
    """The places of the `count` values nearest to the target, in their own order; of ties the first (PCL, arXiv:2510.01135).

    There values are what a model expects a group's mean reward to be, and the target is 0.5.
    """
    ranked = sorted(range(len(values)), key=lambda i: (abs(float(values[i]) - target), i))
    return sorted(ranked[:count])
