"""Formulas for answers of several turns that no part has: where a budget cuts one, and where ARPO branches."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

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


def branches(draw: float, first_entropy: float, entropy: float, weight: float = 0.2, chance: float = 0.5) -> bool:
    """clamp(draw - weight (entropy - first_entropy), 0, 1) <= chance: does a rollout branch after a tool (ARPO)?

    arXiv:2507.19849. `draw` is uniform in [0, 1); entropies are normalized, before the first tool and after this one.
    """
    return min(1.0, max(0.0, draw - weight * (entropy - first_entropy))) <= chance


def normalized_entropy(top_logprobs: Sequence[Sequence[float]], vocabulary: int) -> float:
    """-sum p ln p over the likeliest tokens of the first tokens after a tool, divided by ln(vocabulary): a sum, not a mean."""
    return sum(-math.exp(x) * x for row in top_logprobs for x in row) / math.log(vocabulary)
