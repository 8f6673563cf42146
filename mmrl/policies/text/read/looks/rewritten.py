"""Where tokens look, and how likely true answers are behind a thought: completions whose answer is replaced by the true one."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from mmrl.core.readings import BASE_PROBABILITY, REFERENCE_PROBABILITY
from mmrl.core.samples import answer_text
from mmrl.policies.text.read.answer_tokens import OPEN, last_turns, reaching
from mmrl.policies.text.read.looks.rhythm import DISTANCE, INFLUENCE, RHYTHM
from mmrl.policies.text.trace import TextTrace

REFERENCE, BASE = REFERENCE_PROBABILITY.quantity, BASE_PROBABILITY.quantity
REWRITTEN = frozenset({REFERENCE, BASE})
"""Names of the quantities that need rows with the true answer."""
LOOKS = REWRITTEN | RHYTHM
"""Names of all quantities of this folder."""
Evaluate = Callable[[TextTrace, Bool[Tensor, "n t"], tuple[str, ...]], dict[str, Tensor]]
"""The policy's own way to evaluate rows."""
Rewritten = tuple[TextTrace, Bool[Tensor, "n r"], Bool[Tensor, " n"]]
"""Rows as they would be with the true answer, a mask of its tokens, and False for completions without an answer to replace."""


@torch.no_grad()
def look(
    names: Collection[str],
    trace: TextTrace,
    mask: Bool[Tensor, "n t"],
    evaluate: Evaluate,
    tokenizer: Any,
    decode: Callable[[list[list[int]]], list[str]],
) -> dict[str, Tensor]:
    """Those of the quantities that were asked for, (n, t) each.

    Of rewritten rows the mean over the answer's tokens of their probability; -1 where there is no answer to replace.
    """
    wanted, found = set(names), dict[str, Tensor]()
    if wanted & RHYTHM:
        found = evaluate(trace, mask, (DISTANCE, INFLUENCE))
    for name in sorted(wanted & REWRITTEN):
        rows, answers, replaced = rewrite(trace, tokenizer, decode, name == REFERENCE, mask)
        total = torch.where(answers, evaluate(rows, answers, ("logprobs",))["logprobs"].exp(), 0.0).sum(1)
        mean = torch.where(replaced, total / answers.sum(1).clamp(min=1), -1.0)
        found[name] = mean[:, None].expand(mask.shape)
    return found


def rewrite(
    trace: TextTrace, tokenizer: Any, decode: Callable[[list[list[int]]], list[str]], thought: bool, own: Bool[Tensor, "n t"]
) -> Rewritten:
    """Every completion up to its last `<answer>`, or with no `thought` that tag alone, and then the true answer.

    Of an episode the last turn is looked at; without thought, or without an answer there, what worlds showed is left out.

    Args:
        own: the actions of each row; false where an environment wrote.

    Raises ValueError for a prompt without a true answer that is a text or a number.
    """
    truths = [token_ids(tokenizer, answer_text(one.prompt)) for one in trace.prompts if one.prompt is not None]
    bare, written, found = token_ids(tokenizer, OPEN), list[list[int]](), list[bool]()
    insets, starts = list(trace.insets), last_turns(trace, own)
    for i, (row, length, start) in enumerate(zip(trace.tokens.tolist(), trace.lengths.tolist(), starts, strict=True)):
        before = up_to_answer(row[start:length], tokenizer, lambda tokens: decode([list(tokens)])[0])
        found.append(before is not None)
        written.append([*row[:start], *before] if before is not None and thought else bare)
        if insets and (before is None or not thought):
            insets[i] = ()
    rows = [truths[prompt] for prompt in trace.prompt_index.tolist()]
    longest = max((len(before) + len(truth) for before, truth in zip(written, rows, strict=True)), default=1)
    tokens, mask = torch.zeros(len(rows), longest, dtype=torch.long), torch.zeros(len(rows), longest, dtype=torch.bool)
    for i, (before, truth) in enumerate(zip(written, rows, strict=True)):
        tokens[i, : len(before) + len(truth)] = torch.tensor(before + truth)
        mask[i, len(before) : len(before) + len(truth)] = True
    lengths = torch.tensor([len(b) + len(t) for b, t in zip(written, rows, strict=True)], dtype=torch.long)
    shown = tuple(insets) if any(insets) else ()
    return replace(trace, tokens=tokens, lengths=lengths, insets=shown), mask, torch.tensor(found, dtype=torch.bool)


def up_to_answer(tokens: Sequence[int], tokenizer: Any, decode: Callable[[Sequence[int]], str]) -> list[int] | None:
    """The tokens up to the last `<answer>` and with it; None where there is none."""
    text = decode(tokens)
    opened = text.rfind(OPEN)
    if opened < 0:
        return None
    kept = text[: opened + len(OPEN)]
    first = list(tokens[: reaching(tokens, decode, len(kept))])
    # a token may hold the end of the tag and the beginning of the answer
    return first if decode(first) == kept else token_ids(tokenizer, kept)


def token_ids(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])
