"""Reading what rows of several turns have not read yet, behind what they keep."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from mmrl.policies.text.kept import Keeping, Past, cache_of, one_cache, side_by_side
from mmrl.policies.text.net import Cache, TextNet
from mmrl.policies.text.prompt.encode import Encoded, collate_prompts

SPARE = 256
"""Padding, in tokens, up to which ends of other lengths are read together: a forward of so few takes as long as of one."""


def read_on(
    net: TextNet, prompts: Sequence[Encoded], index: Sequence[int]
) -> tuple[Float[Tensor, "u d"], Cache, Int[Tensor, " n"], Keeping]:
    """Read the end of each prompt behind its past. Row i of those that will be written goes on behind prompts[index[i]].

    Returns:
        Hidden states after the prompts, their cache padded on the left, and where each row finds its own in both; and what rows
        keep of it.
    """
    pasts = [usable(one, net.family.looks_both_ways) for one in prompts]
    parts = parted([len(one) for one in prompts], pasts)
    read = [read_part(net, [prompts[i] for i in part], [pasts[i] for i in part]) for part in parts]
    order = [i for part in parts for i in part]
    cache, width = one_cache([one for _, one in read]), max(map(len, prompts))
    for place, i in enumerate(order):
        past, one = pasts[i], prompts[i]
        if index.count(i) > 1 and not past.final:
            columns = slice(width - len(one) + past.length, width)
            pasts[i] = past.grown(past.keeper.keep(cache, place, columns), len(one.more))
    place = {i: place for place, i in enumerate(order)}
    keeping = Keeping([pasts[i] for i in index], [len(prompts[i]) for i in index], [len(prompts[i].more) for i in index], width)
    return torch.cat([last for last, _ in read]), cache, torch.tensor([place[i] for i in index], device=net.device), keeping


def usable(prompt: Encoded, looks_both_ways: bool) -> Past:
    """The past of a prompt; none where pictures are seen in both directions, which takes a first forward."""
    assert prompt.past is not None
    again = looks_both_ways and len(prompt.more) > prompt.past.media
    return replace(prompt.past, strips=(), media=0) if again else prompt.past


def parted(lengths: Sequence[int], pasts: Sequence[Past]) -> list[list[int]]:
    """Which prompts are read side by side: those that have no past, and others whose ends are of like length."""
    left = [length - past.length for length, past in zip(lengths, pasts, strict=True)]
    parts = [fresh] if (fresh := [i for i, past in enumerate(pasts) if not past.length]) else []
    part = list[int]()
    for i in sorted((i for i, past in enumerate(pasts) if past.length), key=lambda i: -left[i]):
        needed = sum(left[j] for j in part) + left[i]
        if part and left[part[0]] * (len(part) + 1) - needed <= max(SPARE, needed // 4):
            part.append(i)
        else:
            part = [i]
            parts.append(part)
    return parts


def read_part(net: TextNet, prompts: Sequence[Encoded], pasts: Sequence[Past]) -> tuple[Float[Tensor, "u d"], Cache]:
    """Read the ends of prompts behind their pasts, or all of them: the hidden states behind, and a cache padded on the left."""
    keeper, known = pasts[0].keeper, [past.length for past in pasts]
    left = [len(prompt) - length for prompt, length in zip(prompts, known, strict=True)]
    keeper.read, keeper.spared = keeper.read + sum(left), keeper.spared + sum(known)
    if not any(known):
        return net.prefill(collate_prompts(prompts, net.pad_token_id, net.device), cache_of([]))
    ends = [ending(*pair, max(left), net.pad_token_id) for pair in zip(prompts, pasts, strict=True)]
    before = torch.arange(max(known)) >= max(known) - torch.tensor(known)[:, None]
    attention = pad(before.long(), (0, max(left)), value=1).to(net.device)
    last = torch.tensor(left, device=net.device) - 1
    hidden, cache = net.prefill(
        collate_prompts(ends, net.pad_token_id, net.device), cache_of(side_by_side(pasts)), attention, last
    )
    gaps = [max(left) - count for count in left]
    for layer in cache.layers if any(gaps) else []:
        # the next token is written where a row's padding lies; no token has looked at that
        layer.keys, layer.values = (
            torch.stack([x.roll(gap, 1)[:, -max(map(len, prompts)) :] for x, gap in zip(rows, gaps, strict=True)])
            for rows in (layer.keys, layer.values)
        )
    return hidden, cache


def ending(prompt: Encoded, past: Past, count: int, pad_token_id: int) -> Encoded:
    """The rest of a prompt behind its past, with its pictures, padded at the end to so many tokens."""
    more, behind = prompt.more[past.media :], (0, count - len(prompt) + past.length)
    types = prompt.type_ids if more else None
    return replace(
        prompt,
        token_ids=pad(prompt.token_ids[past.length :], behind, value=pad_token_id),
        positions=pad(prompt.positions[:, past.length :], behind),
        type_ids=None if types is None else pad(types[past.length :], behind),
        media={},
        more=more,
    )
