"""A formula for answers of several turns that no part has: where a budget cuts one."""

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
