"""Which tokens of a completion are its answer."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmrl.policies.text.trace import TextTrace

ANSWERS = "answer_mask"
"""The quantity's name."""
OPEN, CLOSE = "<answer>", "</answer>"


def answer_span(tokens: Sequence[int], decode: Callable[[Sequence[int]], str]) -> tuple[int, int]:
    """First token after the last `<answer>`, and the one where `</answer>` begins, or the end; (0, 0) without an answer."""
    text = decode(tokens)
    opened = text.rfind(OPEN)
    if opened < 0:
        return 0, 0
    begin = opened + len(OPEN)
    closed = text.find(CLOSE, begin)
    return reaching(tokens, decode, begin), len(tokens) if closed < 0 else reaching(tokens, decode, closed)


def reaching(tokens: Sequence[int], decode: Callable[[Sequence[int]], str], letters: int) -> int:
    """The smallest number of tokens whose text has n letters."""
    low, high = 0, len(tokens)
    while low < high:
        middle = (low + high) // 2
        if len(decode(tokens[:middle])) >= letters:
            high = middle
        else:
            low = middle + 1
    return low


def last_turns(trace: TextTrace, own: Bool[Tensor, "n t"]) -> list[int]:
    """The token at which each row's last turn begins; 0 where no world answers."""
    seeds = trace.world_seeds or [None] * len(trace)
    rows = [
        [] if seed is None else (~actions[:length]).nonzero()[:, 0].tolist()
        for seed, length, actions in zip(seeds, trace.lengths.tolist(), own, strict=True)
    ]
    return [others[-1] + 1 if others else 0 for others in rows]


def answer_mask(
    trace: TextTrace, decode: Callable[[list[list[int]]], list[str]], own: Bool[Tensor, "n t"]
) -> Float[Tensor, "n t"]:
    """1 where a token belongs to the answer, else 0; of an episode, only its last turn is looked at.

    Args:
        own: the actions of each row; false where an environment wrote.
    """
    mask = torch.zeros(own.shape)
    for row, length, start, kept in zip(trace.tokens.tolist(), trace.lengths.tolist(), last_turns(trace, own), mask, strict=True):
        begin, end = answer_span(row[start:length], lambda tokens: decode([list(tokens)])[0])
        kept[start + begin : start + end] = 1.0
    return mask
