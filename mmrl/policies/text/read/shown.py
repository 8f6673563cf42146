"""Prompts under a view, as rows are read behind them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from mmrl.core.protocols import View
from mmrl.core.samples import KINDS
from mmrl.policies.text.prompt.encode import Encoded, Encoder
from mmrl.policies.text.trace import TextTrace

TOLD = "told"
"""The column of a prompt with what a teacher is told of a row."""
Shown = tuple[TextTrace, list[Encoded]]


def show(prompt: Encoded, view: str, views: Mapping[str, View], encode: Encoder, told: str = "", reader: str = "") -> Encoded:
    """The prompt under a view; drawn once, so a rollout and all readings see the same.

    Args:
        told: what is put into its column `told`.
        reader: a name for the model that `encode` is of, where it is another one than the prompt was encoded by.
    """
    if view == "plain" and not reader:
        return prompt
    key = f"{reader}{view}: {told}" if told else reader + view
    if key not in prompt.views:
        assert prompt.prompt is not None
        known = prompt.prompt
        if told:
            # whatever was sampled: no length is too large for it, and it shows nothing
            known = replace(known, columns={**known.columns, TOLD: unmarked(told, encode.processor.tokenizer.all_special_tokens)})
            encode = replace(encode, config=replace(encode.config, max_prompt_tokens=None))
        seen = known if view == "plain" else views[view](known, prompt.seed)
        changed = encode(seen, prompt.seed)
        if not reader and seen.media is prompt.prompt.media:
            # the same pictures: they are kept, and looked at, once
            changed = replace(changed, media=prompt.media)
        prompt.views[key] = replace(changed, view=view)
    return prompt.views[key]


def unmarked(text: str, special: Sequence[str]) -> str:
    """A text with a blank in whatever marks the place of media in a prompt, or is one of these special tokens."""
    for mark in (*(kind.marker for kind in KINDS.values()), *special):
        text = text.replace(mark, f"{mark[0]} {mark[1:]}")
    return text


def show_rows(trace: TextTrace, show: Callable[[Encoded, str], Encoded]) -> Shown:
    """The rows, and their prompts as `show` has them: other ones where a teacher is told of rows.

    Args:
        show: (prompt, what is told) -> the prompt as it is read.
    """
    if not any(trace.told):
        return trace, [show(prompt, "") for prompt in trace.prompts]
    pairs = list(zip(trace.prompt_index.tolist(), trace.told, strict=True))
    used = {pair: i for i, pair in enumerate(dict.fromkeys(pairs))}
    rows = replace(
        trace,
        prompts=tuple(trace.prompts[i] for i, _ in used),
        prompt_index=torch.tensor([used[pair] for pair in pairs], dtype=torch.long),
    )
    return rows, [show(trace.prompts[i], told) for i, told in used]
