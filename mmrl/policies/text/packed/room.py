"""Room for rows that are being written: keys and values of their prompts once, and of each row its own, in storage that stays.

It stands for a cache of transformers, and for the mask of its layers, which look at both parts and join what they see.
"""

from collections import Counter
from collections.abc import Sequence
from contextvars import ContextVar, Token
from math import gcd
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

Layer = tuple[Tensor, Tensor]
"""Keys and values, (rows, heads, positions, size)."""
HIDDEN = -1e20
"""The score of a position that is not looked at."""
FIRST = 256
"""Own positions to begin with; they double when they are full."""
CURRENT: ContextVar["SharedRoom | None"] = ContextVar("room", default=None)
"""Read only while masks are made."""


class SharedRoom:
    """Blocks of `group` rows that follow each other and share a prompt. As a context it is the block of one token's forward.

    Raises:
        RuntimeError: layers of the model did not look at it.
    """

    is_compileable, is_sliding = False, (False,)

    def __init__(self, prompts: Sequence[Layer], ends: Sequence[int], group: int, longest: int) -> None:
        """`ends`: tokens of each block's prompt, which is padded on the left; `longest`: own tokens of a row at most."""
        keys = prompts[0][0]
        self.prompts, self.ends, self.group, self.longest = list(prompts), list(ends), group, longest
        width, device = keys.shape[2], keys.device
        starts = torch.tensor([width - end for end in ends]).to(device)
        before = torch.arange(width, device=device) < starts[:, None]
        self.before = torch.zeros(before.shape, device=device).masked_fill_(before, HIDDEN)[:, None, None]
        self.own = [tuple(x.new_zeros(len(ends) * group, x.shape[1], 0, x.shape[3]) for x in layer) for layer in prompts]
        self.behind = torch.zeros(0, device=device)
        self.at, self.written, self.obeyed = torch.zeros(1, dtype=torch.long, device=device), 0, 0
        self._token: Token[SharedRoom | None] | None = None

    @classmethod
    def of(
        cls, layers: Sequence[Layer], index: Sequence[int], ends: Sequence[int], longest: int
    ) -> tuple["SharedRoom", list[int]]:
        """Room for rows that go on behind row index[i] of a cache, where ends[i] tokens are; and the order in which they lie."""
        order = sorted(range(len(index)), key=lambda i: index[i])
        group = gcd(*Counter(index).values())
        firsts = order[::group]
        blocks = [index[i] for i in firsts]
        if blocks != list(range(len(layers[0][0]))):
            chosen = torch.tensor(blocks).to(layers[0][0].device)
            layers = [(keys[chosen], values[chosen]) for keys, values in layers]
        return cls(layers, [ends[i] for i in firsts], group, longest), order

    def __enter__(self) -> "SharedRoom":
        if self.written == len(self.behind):
            self.grow(min(max(FIRST, 2 * self.written), self.longest))
        self.behind.index_fill_(0, self.at, 0.0)
        self.obeyed, self._token = 0, CURRENT.set(self)
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        assert self._token is not None
        CURRENT.reset(self._token)
        if kind is None and self.obeyed != len(self.prompts):
            raise RuntimeError(f"{self.obeyed} of {len(self.prompts)} layers share their prompts: set policy.decode = 'plain'")
        self.at.add_(1)
        self.written += 1

    def grow(self, length: int) -> None:
        """Make place for so many own tokens of every row."""
        more, count = torch.nn.functional.pad, length - len(self.behind)
        self.own = [(more(keys, (0, 0, 0, count)), more(values, (0, 0, 0, count))) for keys, values in self.own]
        self.behind = more(self.behind, (0, count), value=HIDDEN)

    @property
    def tensors(self) -> list[Tensor]:
        """All that it holds; it stays where it is while tokens are written."""
        return [x for layer in (*self.prompts, *self.own) for x in layer] + [self.before, self.behind, self.at]

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> Layer:
        """Put a token behind every row; see transformers' Cache."""
        for held, x in zip(self.own[layer], (keys, values), strict=True):
            held.index_copy_(2, self.at, x.to(held.dtype))
        return self.own[layer][0], self.own[layer][1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return 0

    def get_query_offset(self, layer_idx: int = 0) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        return len(self.behind), 0

    def attend(self, layer: int, query: Float[Tensor, "n h 1 d"], scaling: float | None) -> Float[Tensor, "n 1 h e"]:
        """softmax(q k / sqrt(d)) v over a row's prompt and its own tokens."""
        self.obeyed += 1
        (keys, values), (own_keys, own_values) = self.prompts[layer], self.own[layer]
        (n, heads, _, size), kinds, group = query.shape, keys.shape[1], self.group
        each, blocks = heads // kinds, n // group
        with torch.autocast(query.device.type, enabled=False):
            q = query.to(values.dtype).reshape(n, kinds, each, size) * (size**-0.5 if scaling is None else scaling)
            together = q.reshape(blocks, group, kinds, each, size).transpose(1, 2).reshape(blocks, kinds, group * each, size)
            first, second = scores(together, keys) + self.before, scores(q, own_keys) + self.behind

            def apart(x: Tensor) -> Tensor:
                return x.reshape(blocks, kinds, group, each, -1).transpose(1, 2).reshape(n, kinds, each, -1)

            def beside(x: Tensor) -> Tensor:
                return x.reshape(blocks, group, kinds, each, -1).transpose(1, 2).reshape(blocks, kinds, group * each, -1)

            most = torch.maximum(apart(first.amax(-1, keepdim=True)), second.amax(-1, keepdim=True))
            first, second = (first - beside(most)).exp(), (second - most).exp()
            total = apart(first.sum(-1, keepdim=True)) + second.sum(-1, keepdim=True)
            seen = apart(first.to(values.dtype) @ values).float() + (second.to(values.dtype) @ own_values).float()
            return (seen / total).to(values.dtype).reshape(n, 1, heads, -1)

    def rectangle(self, alive: Sequence[int]) -> list[int]:
        """The rows that stay where only these are wanted: as many of every block that has one, so that blocks stay alike."""
        blocks = Counter(place // self.group for place in alive)
        most, wanted, found = max(blocks.values()), set(alive), list[int]()
        for block in sorted(blocks):
            rows = range(block * self.group, (block + 1) * self.group)
            found += sorted(sorted(rows, key=lambda row: row not in wanted)[:most])
        return found

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep these rows of a rectangle alone."""
        places: list[int] = beam_idx.tolist()
        blocks = sorted({place // self.group for place in places})
        chosen = torch.tensor(blocks).to(beam_idx.device)
        if len(blocks) < len(self.ends):
            self.prompts = [(keys[chosen], values[chosen]) for keys, values in self.prompts]
            self.before, self.ends = self.before[chosen], [self.ends[block] for block in blocks]
        self.own = [(keys[beam_idx], values[beam_idx]) for keys, values in self.own]
        self.group = len(places) // len(blocks)

    def columns(self, row: int, columns: slice) -> list[Layer]:
        """Keys and values of some positions of a row, its prompt's counted first."""
        width = self.before.shape[-1]
        behind = slice(max(0, columns.start - width), max(0, columns.stop - width))

        def part(prompt: Tensor, own: Tensor) -> Tensor:
            return torch.cat([prompt[row // self.group, :, columns], own[row, :, behind]], 1)

        return [(part(k, a), part(v, b)) for (k, v), (a, b) in zip(self.prompts, self.own, strict=True)]


def scores(q: Float[Tensor, "n h q d"], k: Float[Tensor, "n h k d"]) -> Float[Tensor, "n h q k"]:
    """q k in float32, as kernels keep it."""
    if q.is_cuda and q.dtype != torch.float32:
        flat: Any = torch.bmm(q.flatten(0, 1), k.to(q.dtype).flatten(0, 1).transpose(1, 2), out_dtype=torch.float32)
        return flat.unflatten(0, q.shape[:2])
    return q.float() @ k.float().transpose(-1, -2)
