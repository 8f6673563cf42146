"""Formulas of papers that nothing runs yet: they stand here with their checks."""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from jaxtyping import Bool, Float, Int
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


def nearest_to(values: Float[Tensor, " n"], target: float, count: int) -> list[int]:
    """The places of the `count` values nearest to the target, in their own order; of ties the first (PCL, arXiv:2510.01135).

    There values are what a model expects a group's mean reward to be, and the target is 0.5.
    """
    ranked = sorted(range(len(values)), key=lambda i: (abs(float(values[i]) - target), i))
    return sorted(ranked[:count])


def hint_value(rewards: Sequence[float], reliance: float, temperature: float = 0.3) -> float:
    """(1 - p^n - (1 - p)^n) exp(min(reliance, 0) / temperature): a hint that splits a group and that answers do not lean on.

    HiLL, arXiv:2604.00698. p is the share of right answers of n, reliance the mean over right ones of the difference between
    their mean log-probabilities without and with the hint.
    """
    n, p = len(rewards), sum(rewards) / len(rewards)
    return (1 - p**n - (1 - p) ** n) * leaning(reliance, temperature)


def hint_variance(rewards: Sequence[float], reliance: float, temperature: float = 0.3) -> float:
    """p (1 - p) exp(min(reliance, 0) / temperature): the other form of `hint_value` (HiLL, arXiv:2604.00698)."""
    p = sum(rewards) / len(rewards)
    return p * (1 - p) * leaning(reliance, temperature)


def leaning(reliance: float, temperature: float) -> float:
    """exp(min(reliance, 0) / temperature): 1 where answers are as likely without the hint, less where they lean on it."""
    return math.exp(min(reliance, 0.0) / temperature)


def summed_logprobs(
    logits: Float[Tensor, "n t v"], labels: Int[Tensor, "n t"], mask: Bool[Tensor, "n t"]
) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Sum and mean of the log-probabilities of the labels at the places of the mask; labels stand where they are predicted."""
    chosen = logits.log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None])[..., 0]
    total = torch.where(mask, chosen, 0.0).sum(1)
    return total, total / mask.sum(1).clamp(min=1)


def split_rows_by_grid(grids: Int[Tensor, "pictures 3"], num_images: Sequence[int]) -> list[list[int]]:
    """Which patch rows of pixel_values belong to each sample: `num_images[i]` pictures of t * h * w rows each, in order.

    Raises:
        ValueError: num_images does not add up to the number of grids.
    """
    if sum(num_images) != len(grids):
        raise ValueError(f"num_images adds up to {sum(num_images)} pictures, but there are {len(grids)} grids")
    ends = torch.cat([torch.zeros(1, dtype=torch.long), grids.prod(1).cumsum(0)]).tolist()
    pictures = torch.tensor([0, *num_images]).cumsum(0).tolist()
    return [list(range(ends[a], ends[b])) for a, b in pairwise(pictures)]


def zoom_reward(accuracy: float, crops: int, malformed: bool) -> float:
    """0.8 accuracy - 0.2 [malformed] + 1.2 [accuracy > 0.5 and a crop was returned] (DeepEyes, arXiv:2505.14362)."""
    return 0.8 * accuracy - 0.2 * malformed + 1.2 * (accuracy > 0.5 and crops > 0)


def code_reward(accuracy: float, well_formed: bool, consistency: float, form: float = 0.5, code: float = 0.1) -> float:
    """accuracy +- form + code consistency, of answers that ran code on the picture (Thyme, arXiv:2508.11630).

    0.1 is the script's weight; the default in its code is 0.3.
    """
    return accuracy + (form if well_formed else -form) + code * consistency


Segment = tuple[str, int]
"""Who wrote (user, assistant, tool), and how many tokens."""


def after_prompt(segments: Sequence[Segment]) -> Sequence[Segment]:
    """The answer: everything from the first turn of the assistant on."""
    first = next(i for i, (who, _) in enumerate(segments) if who == "assistant")
    return segments[first:]


def turn_index(segments: Sequence[Segment]) -> Int[Tensor, " t"]:
    """The number of the turn that every token of an answer belongs to, from 0; -1 for tokens the policy did not write."""
    numbers: list[int] = []
    turn = -1
    for who, length in after_prompt(segments):
        turn += who == "assistant"
        numbers += [turn if who == "assistant" else -1] * length
    return torch.tensor(numbers)


def kept_length(segments: Sequence[Segment], budget: int) -> int:
    """Tokens of an answer that stay within a budget: a turn may be cut, an observation that would reach it is not begun."""
    kept = 0
    for who, length in after_prompt(segments):
        if who == "assistant":
            kept += min(length, budget - kept)
        elif kept + length >= budget:
            break
        else:
            kept += length
        if kept >= budget:
            break
    return ends_with_turn(segments, kept)


def ends_with_turn(segments: Sequence[Segment], length: int) -> int:
    """The length without an observation at its end."""
    turns = turn_index(segments)[:length]
    own = (turns >= 0).nonzero()
    return int(own[-1]) + 1 if len(own) else 0
