"""Completions whose beginning is given: where an earlier one is cut, and the prompt with the kept part behind it."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from mmrl.core.samples import segments_of
from mmrl.core.types import Prefix, StoredRow
from mmrl.policies.text.host import TextHost
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.policies.text.read.answer_tokens import reaching
from mmrl.policies.text.trace import Inset, offsets_of, types_of
from mmrl.policies.text.write.rollout import Row


def tokens_to_keep(prefix: Prefix, decode: Callable[[list[list[int]]], list[str]], stops: Sequence[int]) -> list[int]:
    """The tokens of the earlier completion that are kept."""
    tokens = list(prefix.token_ids)
    if tokens and tokens[-1] in stops:
        tokens.pop()
    if prefix.before:
        at = decode([tokens])[0].find(prefix.before)
        if at >= 0:
            # the first token that reaches beyond the letters in front of the mark holds its beginning
            tokens = tokens[: max(0, reaching(tokens, lambda some: decode([list(some)])[0], at + 1) - 1)]
    return tokens[: int(prefix.share * len(tokens))]


def tokens_to_force(prefix: Prefix, tokenizer: Any, banned: frozenset[int], prompt_id: str) -> list[int]:
    """The tokens of the text that was not sampled; raises ValueError where it holds one that no completion may hold."""
    if not prefix.forced:
        return []
    tokens: list[int] = tokenizer(prefix.forced, add_special_tokens=False)["input_ids"]
    found = sorted(banned & set(tokens))
    if found:
        raise ValueError(
            f"the text {prefix.forced!r} that is forced for prompt {prompt_id!r} holds the tokens {found}, which no answer may "
            "hold: write it without the model's special tokens"
        )
    return tokens


def append(prompt: Encoded, begun: Sequence[int], insets: Sequence[Inset] = ()) -> Encoded:
    """The prompt with the beginning of a completion behind it, at the positions where training reads it."""
    offsets = offsets_of((tuple(insets),), (len(prompt.positions), 1, len(begun)))[:, 0]
    types = prompt.type_ids
    if types is not None:
        types = torch.cat([types, types_of((tuple(insets),), (1, len(begun)))[0].to(types)])
    return replace(
        prompt,
        token_ids=torch.cat([prompt.token_ids, torch.tensor(list(begun))]),
        positions=torch.cat([prompt.positions, prompt.positions[:, -1:] + 1 + offsets], dim=1),
        type_ids=types,
        begun=tuple(begun),
        more=tuple(one.media for one in insets),
        views={},
    )


def fill_given(row: Row, host: TextHost) -> None:
    """Write down the tokens of a row that its request gives; raises ValueError for one that no completion may hold."""
    written, prompt_id = row.request.written, row.request.prompt.id
    if isinstance(written, StoredRow):
        row.restore(written)
    elif isinstance(written, str):
        row.tokens = host.tokens_given(row.request)
        row.segments = segments_of([("policy", len(row.tokens))])
    elif isinstance(written, Prefix):
        kept = tokens_to_keep(written, host.decode, host.eos_token_ids)
        forced = tokens_to_force(written, host.tokenizer, host.banned, prompt_id)
        row.begun = (*kept, *forced)
        row.segments = segments_of([("policy" if written.trained else "forced", len(kept)), ("forced", len(forced))])
