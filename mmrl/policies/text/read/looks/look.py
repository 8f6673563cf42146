"""Where tokens look, and how likely true answers are behind a thought."""

from collections.abc import Callable, Collection
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from mmrl.policies.text.read.looks.rewritten import REFERENCE, REWRITTEN, rewrite
from mmrl.policies.text.read.looks.rhythm import DISTANCE, INFLUENCE, RHYTHM
from mmrl.policies.text.trace import TextTrace

LOOKS = REWRITTEN | RHYTHM
"""Names of the quantities."""


Evaluate = Callable[[TextTrace, Bool[Tensor, "n t"], tuple[str, ...]], dict[str, Tensor]]
"""The policy's own way to evaluate rows."""


@torch.no_grad()
def look(
    names: Collection[str],
    trace: TextTrace,
    mask: Bool[Tensor, "n t"],
    evaluate: Evaluate,
    tokenizer: Any,
    decode: Callable[[list[list[int]]], list[str]],
) -> dict[str, Tensor]:
    """Those of the quantities that were asked for, (n, t) each."""
    wanted, found = set(names), dict[str, Tensor]()
    if wanted & RHYTHM:
        found = evaluate(trace, mask, (DISTANCE, INFLUENCE))
    for name in sorted(wanted & REWRITTEN):
        rows = rewrite(trace, tokenizer, decode, name == REFERENCE, mask)
        logprobs = evaluate(rows.trace, rows.mask, ("logprobs",))["logprobs"]
        found[name] = rows.mean_probability(logprobs)[:, None].expand(mask.shape)
    return found
