"""A packed row over several processes: each reads a piece of its tokens, and attention exchanges heads for tokens.

Everything in a language model but attention is per token, so pieces need each other there alone (Ulysses, arXiv:2309.14509). A
row is one process's own. This leader embeds its tokens and looks at its media, gives each of the team a piece, and gets all of
the hidden states back; the others bring a row that stands for nothing, so that wrappers see the same modules everywhere.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import torch
from jaxtyping import Float, Real
from torch import Tensor, distributed, nn
from torch.nn.functional import pad

from mmrl.core.ranks import Ranks
from mmrl.policies.shared.holding import holding
from mmrl.policies.text.packed.attention import CURRENT, Packed, PackedGroup
from mmrl.policies.text.settings import refuse_rest

Way = Callable[[Tensor], Tensor]
Given = dict[str, Any]
"""The arguments of a language model, by their names."""


class Outputs(Protocol):
    """The answer of a language model."""

    last_hidden_state: Tensor


@dataclass(frozen=True)
class RowLayout:
    """The part of a leader's row that all of its team must know."""

    groups: tuple[PackedGroup, ...]
    positions: Real[Tensor, "a 1 s"]
    seen: Tensor | None
    """(1, s), where pictures and clips stand, for models that add features to more than one layer."""
    levels: int
    """Layers that features are added to."""


@dataclass
class Team:
    """Processes next to each other that read every packed row together; without a `group`, one that stands for all of them."""

    size: int
    index: int = 0
    first: int = 0
    """The rank of the team's first process."""
    group: "distributed.ProcessGroup | None" = None
    leader: int | None = None
    """The number of the process whose row is read; None: this process reads rows of its own, whole."""
    brought: int = 0
    """Tokens of the row that this process brought along."""

    @classmethod
    def of(cls, ranks: Ranks, size: int) -> "Team":
        """This process's team. Every process must call it; ValueError where they cannot be cut into teams of this size."""
        refuse_rest(size, ranks.world)
        groups = [distributed.new_group(list(range(first, first + size))) for first in range(0, ranks.world, size)]
        own = cast("distributed.ProcessGroup", groups[ranks.rank // size])
        return cls(size, ranks.rank % size, ranks.rank - ranks.rank % size, own)

    def led_by(self, leader: int) -> AbstractContextManager[None]:
        """A block in which one row is read together: that of the process with this number."""
        return holding([self], "leader", leader)

    def attach(self, language: nn.Module) -> None:
        """Have a language model read pieces of packed rows."""
        language.register_forward_pre_hook(self.cut, with_kwargs=True)
        language.register_forward_hook(self.join)

    def cut(self, module: nn.Module, args: tuple[object, ...], given: Given) -> tuple[object, Given] | None:
        """In place of this process's row, its piece of the leader's."""
        packed = CURRENT.get()
        if self.leader is None or packed is None:
            return None
        embeds, seen, levels = given["inputs_embeds"], given.get("visual_pos_masks"), given.get("deepstack_visual_embeds") or []
        layout = self.tell(RowLayout(packed.groups, given["position_ids"], seen, len(levels)))
        packed.groups, packed.team, self.brought = layout.groups, self, embeds.shape[1]
        if self.index == self.leader and seen is not None:
            where, nothing = seen[..., None].to(embeds.device), torch.zeros_like(embeds)
            embeds = torch.cat([embeds, *(nothing.masked_scatter(where, level.to(embeds)) for level in levels)])
        else:
            embeds = (embeds + sum(0 * level.sum() for level in levels)).expand(1 + layout.levels, -1, -1)
        count = self.count(layout.groups)
        shape = 1 + layout.levels, count, embeds.shape[-1]
        # Gradients go back to the leader also where no weight of this process's row trains.
        anchor = torch.zeros((), device=embeds.device, requires_grad=True)
        there = partial(self.deal, leader=self.leader, shape=shape)
        back = partial(self.collect, leader=self.leader, count=embeds.shape[1])
        pieces = swapped(embeds, anchor, there, back)
        own = self.piece(layout.positions, count).to(embeds.device)
        new = given | {
            "inputs_embeds": pieces[:1],
            "position_ids": own,
            "attention_mask": own.new_ones(1, count, dtype=torch.long),
        }
        if "visual_pos_masks" in given:
            mask = None if layout.seen is None else self.piece(layout.seen, count).to(embeds.device)
            shown = None if mask is None else [level[mask[0]] for level in pieces[1:]]
            new |= {"visual_pos_masks": mask, "deepstack_visual_embeds": shown}
        return args, new

    def join(self, module: nn.Module, args: object, out: Outputs) -> Outputs | None:
        """The hidden states of the whole row for its leader; for others zeros, as many as they brought tokens."""
        if self.leader is None or CURRENT.get() is None:
            return None
        there = partial(self.collect, leader=self.leader, count=self.brought)
        back = partial(self.deal, leader=self.leader, shape=out.last_hidden_state.shape)
        out.last_hidden_state = swapped(out.last_hidden_state, None, there, back)
        return out

    def count(self, groups: tuple[PackedGroup, ...]) -> int:
        """Tokens of a piece; the last ones of the last piece may stand for nothing."""
        return math.ceil(groups[-1].end / self.size)

    def piece(self, x: Tensor, count: int) -> Tensor:
        """This process's piece along the last axis."""
        return pad(x, (0, count * self.size - x.shape[-1])).narrow(-1, self.index * count, count)

    def tell(self, layout: RowLayout) -> RowLayout:
        """The leader's layout."""
        if self.group is None:
            return layout
        seen = None if layout.seen is None else layout.seen.cpu()
        told = [RowLayout(layout.groups, layout.positions.cpu(), seen, layout.levels) if self.index == self.leader else None]
        distributed.broadcast_object_list(told, src=self.first + cast(int, self.leader), group=self.group)
        [known] = told
        assert known is not None
        return known

    def deal(self, rows: Float[Tensor, "k s d"], leader: int, shape: Sequence[int]) -> Float[Tensor, "k n d"]:
        """This process's piece of the leader's rows."""
        count, parts = shape[1], None
        if self.index == leader:
            rows = pad(rows, (0, 0, 0, count * self.size - rows.shape[1]))
            parts = [part.contiguous() for part in rows.split(count, 1)]
        if self.group is None:
            return rows[:, :count].contiguous()
        piece = rows.new_empty(shape)
        distributed.scatter(piece, parts, src=self.first + leader, group=self.group)
        return piece

    def collect(self, piece: Float[Tensor, "k n d"], leader: int, count: int) -> Float[Tensor, "k m d"]:
        """The first `count` tokens of all pieces, one behind the other, for the leader; zeros for the others."""
        if self.group is None:
            return torch.cat([piece] * self.size, 1)[:, :count]
        parts = [torch.empty_like(piece) for _ in range(self.size)] if self.index == leader else None
        distributed.gather(piece.contiguous(), parts, dst=self.first + leader, group=self.group)
        return piece.new_zeros(len(piece), count, piece.shape[2]) if parts is None else torch.cat(parts, 1)[:, :count]

    def swap(self, x: Tensor) -> Tensor:
        """`pass_on` of axis 1, the others' parts along axis 2; backward the other way round."""
        there, back = partial(self.pass_on, split=1, join=2), partial(self.pass_on, split=2, join=1)
        return swapped(x, None, there, back)

    def pass_on(self, x: Tensor, split: int, join: int) -> Tensor:
        """Split along one axis, a part for each process, and the others' parts behind each other along another one."""
        parts = torch.stack(x.chunk(self.size, split)).contiguous()
        got = parts if self.group is None else torch.empty_like(parts)
        if self.group is not None:
            distributed.all_to_all_single(got, parts, group=self.group)
        return torch.cat(list(got), join)

    def share_heads(self, *states: Float[Tensor, "1 _ n d"], count: int) -> list[Float[Tensor, "1 g s d"]]:
        """Queries, keys and values of some heads and all tokens, from those of all heads and some tokens."""
        most = states[0].shape[1]
        return [self.swap(repeated(x, self.size, most))[:, :, :count] for x in states]

    def share_tokens(self, seen: Float[Tensor, "1 s g e"], packed: Packed) -> Float[Tensor, "1 n h e"]:
        """The other way round, of what attention saw."""
        whole = pad(seen, (0, 0, 0, 0, 0, self.count(packed.groups) * self.size - seen.shape[1]))
        return self.swap(whole)


def repeated(x: Float[Tensor, "1 h n d"], size: int, most: int) -> Float[Tensor, "1 g n d"]:
    """Heads of keys that queries share, as often as every process needs one; `most` are the heads of queries."""
    again = size // math.gcd(x.shape[1], size)
    again = again if most % (x.shape[1] * again) == 0 else most // x.shape[1]
    return x if again == 1 else x.repeat_interleave(again, 1)


class Swap(torch.autograd.Function):
    """`there(x)`, whose gradient goes `back`: between processes both are sums of nothing else."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, anchor: Tensor | None, there: Way, back: Way) -> Tensor:
        """With an `anchor` that wants a gradient, the way back is gone even if `x` wants none."""
        ctx.back = back
        return there(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.back(grads[0]), None, None, None


def swapped(x: Tensor, anchor: Tensor | None, there: Way, back: Way) -> Tensor:
    """`Swap` of x."""
    return Swap.apply(x, anchor, there, back)  # type: ignore[no-untyped-call] - torch gives it no types
