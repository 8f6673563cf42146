"""Attention over one packed row [prompt 1 | its completions | prompt 2 | ...], for models with transformers' attention interface.

Everything in a language model but attention is per token, so only attention must know which tokens belong together. It is
registered under a name of its own, with a mask function that hands each layer the layout in place of a mask: no argument goes
through the model, the vision part never sees it, and layers that are computed again for a backward pass still have it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from mmrl.policies.shared.compiled import as_written, compile_blocks
from mmrl.policies.text.packed.room import CURRENT as ROOM
from mmrl.policies.text.packed.room import SharedRoom

if TYPE_CHECKING:
    from mmrl.policies.text.packed.team import Team

NAME = "mmrl_packed"
QUERIES = 1024
"""Queries that one mask covers; more are looked at piece by piece."""
COPIES = 2**16
"""Positions of keys that are copied for completions side by side, at least those of one completion."""
Rule = Callable[..., object]
"""Who sees whom: transformers' mask function of (batch, head, query, key)."""


@runtime_checkable
class Pretrained(Protocol):
    """A model of transformers."""

    config: Any
    model: Any
    """The model below its head."""
    dtype: torch.dtype

    def set_attn_implementation(self, attn_implementation: str | dict[str, str]) -> None:
        """Choose how attention is computed; a dict maps the names of the model's sub-configs to choices."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...


@dataclass(frozen=True)
class PackedGroup:
    """A prompt and its completions, one after the other in a row."""

    start: int
    prompt: int
    """Tokens of the prompt."""
    fed: tuple[int, ...]
    """Tokens of each completion, the longest first: rules are asked about the first one and cut for the others."""

    @property
    def middle(self) -> int:
        """Where the prompt ends and its completions begin."""
        return self.start + self.prompt

    @property
    def end(self) -> int:
        return self.middle + sum(self.fed)


@dataclass
class Packed:
    """The groups of a row, and how many layers have looked at them as such."""

    groups: tuple[PackedGroup, ...]
    obeyed: int = 0
    team: "Team | None" = None
    """The processes that hold its pieces; None: this one holds all of it."""


CURRENT: ContextVar[Packed | None] = ContextVar("packed", default=None)
"""Read only while masks are made, never by a layer: a backward pass has no context."""

Block = tuple[slice, slice, Tensor]
"""Some queries, the keys that any of them sees, and which of these each one sees, (1, 1, queries, keys)."""


@dataclass
class PackedMask:
    """The layout, and one kind of layer's rule (causal, sliding, pictures seen in both directions): stands for a mask."""

    packed: Packed
    rule: Rule
    vmap: bool
    made: dict[tuple[int, int], tuple[Block, ...] | None] = field(default_factory=dict)
    lower: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def __getitem__(self, part: tuple[slice, ...]) -> "PackedMask":
        """Itself for all queries, which Gemma 4's layers without keys of their own cut it to; TypeError for fewer."""
        if any(piece.start or piece.stop is not None for piece in part):
            raise TypeError("some queries of a packed row are asked for alone: set policy.prefix = 'repeated'")
        return self

    def causal(self, before: int, count: int, device: torch.device) -> Bool[Tensor, "q k"]:
        """Which of `before + count` tokens the last `count` see; made once for all layers."""
        if (before, count) not in self.lower:
            whole = torch.ones(count, before + count, dtype=torch.bool, device=device)
            self.lower[before, count] = whole.tril(before)
        return self.lower[before, count]

    def of(self, start: int, before: int, count: int, device: torch.device) -> tuple[Block, ...] | None:
        """The blocks of `count` tokens that follow `before` others which begin at `start`; None: plain causal."""
        from transformers.masking_utils import causal_mask_function

        if self.rule is causal_mask_function:
            return None
        if (start, before) not in self.made:
            pieces = [slice(first, min(first + QUERIES, count)) for first in range(0, count, QUERIES)]
            masks = [self._mask(start, before, count, piece, device) for piece in pieces]
            # The host waits for the device once for all pieces.
            found = torch.stack(
                [facts_of(mask, before + piece.start) for mask, piece in zip(masks, pieces, strict=True)]
            ).tolist()
            blocks = tuple(
                (piece, slice(first, end), mask[..., first:end])
                for piece, mask, (first, end, _) in zip(pieces, masks, found, strict=True)
            )
            self.made[start, before] = None if all(plain for _, _, plain in found) else blocks
        return self.made[start, before]

    def _mask(self, start: int, before: int, count: int, queries: slice, device: torch.device) -> Bool[Tensor, "1 1 q k"]:
        from transformers.masking_utils import sdpa_mask

        rows, options = queries.stop - queries.start, {"allow_is_causal_skip": False, "use_vmap": self.vmap, "device": device}
        mask = sdpa_mask(1, rows, before + count, start + before + queries.start, start, self.rule, **options)
        assert mask is not None
        return mask


def facts_of(mask: Bool[Tensor, "1 1 q k"], before: int) -> Int[Tensor, "3"]:
    """The first key that any query sees, the end of such keys, and whether each query sees all keys up to its own.

    `before` keys stand in front of the first query's own.
    """
    seen = mask[0, 0]
    keys = seen.any(0).int()
    plain = (seen == torch.ones_like(seen).tril(before)).all()
    return torch.stack([keys.argmax(), len(keys) - keys.flip(0).argmax(), plain.long()])


def mask_of(
    *args: object, mask_function: Rule | None = None, use_vmap: bool = False, **others: object
) -> PackedMask | SharedRoom | Tensor | None:
    """Transformers' mask of SDPA; inside `packing`, the layout in place of it, and in a SharedRoom that."""
    from transformers.masking_utils import causal_mask_function, sdpa_mask

    rule, usual = mask_function or causal_mask_function, cast(Callable[..., Tensor | None], sdpa_mask)
    packed, room = CURRENT.get(), ROOM.get()
    if packed is not None:
        return PackedMask(packed, rule, use_vmap)
    if room is not None:
        return room
    return usual(*args, mask_function=rule, use_vmap=use_vmap, **others)


def attend(
    module: nn.Module,
    query: Float[Tensor, "b h q d"],
    key: Float[Tensor, "b g k d"],
    value: Float[Tensor, "b g k e"],
    attention_mask: Tensor | PackedMask | SharedRoom | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **others: object,
) -> tuple[Tensor, None]:
    """softmax(q k / sqrt(d)) v -> (b, q, h, e): inside each group, a completion sees its prompt and itself.

    Without a PackedMask it is transformers' own SDPA. NotImplementedError for dropout, capped logits, sinks or a position bias.
    """
    if not isinstance(attention_mask, PackedMask | SharedRoom):
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        usual = cast(Callable[..., tuple[Tensor, None]], ALL_ATTENTION_FUNCTIONS["sdpa"])
        return usual(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others)
    if dropout or any(others.get(name) is not None for name in ("softcap", "s_aux", "position_bias")):
        raise NotImplementedError("attention with dropout, capped logits, sinks or a position bias cannot read a packed row")
    if isinstance(attention_mask, SharedRoom):
        layer: Any = module
        return attention_mask.attend(layer.layer_idx, query, scaling), None
    packed = attention_mask.packed
    packed.obeyed += 1
    # Under autocast rotary embeddings leave float32, which only plain SDPA casts.
    q, k, v = query.to(value.dtype), key.to(value.dtype), value
    if packed.team is not None:
        q, k, v = packed.team.share_heads(q, k, v, count=packed.groups[-1].end)
    out: list[Tensor] = []
    for group in packed.groups:
        out.append(look_at_prompt(group, q, k, v, attention_mask, scaling))
        out += look_at_completions(group, q, k, v, attention_mask, scaling)
    seen = torch.cat(out)[None]
    return seen if packed.team is None else packed.team.share_tokens(seen, packed), None


def look_at_prompt(
    group: PackedGroup, query: Tensor, key: Tensor, value: Tensor, mask: PackedMask, scale: float | None
) -> Float[Tensor, "p h e"]:
    """Attention of a prompt's tokens to each other."""
    q, k, v = (x[:, :, group.start : group.middle] for x in (query, key, value))
    blocks = mask.of(group.start, 0, group.prompt, q.device)
    seen = sdpa(q, k, v, None, scale) if blocks is None else look_in_blocks(q, k, v, blocks, scale)
    return seen[0].transpose(0, 1)


def look_at_completions(
    group: PackedGroup, query: Tensor, key: Tensor, value: Tensor, mask: PackedMask, scale: float | None
) -> Iterator[Float[Tensor, "r h e"]]:
    """Attention of each completion's tokens: to their prompt, and to what was written before."""
    if not group.fed:
        return
    blocks = mask.of(group.start, group.prompt, group.fed[0], query.device)

    def some(q: Tensor, k: Tensor, v: Tensor, *prompt: Tensor) -> Tensor:
        both = zip((x.expand(len(q), -1, -1, -1) for x in prompt), (k, v), strict=True)
        k, v = (torch.cat(parts, 2) for parts in both)
        if blocks is not None:
            return look_in_blocks(q, k, v, blocks, scale)
        count, width = q.shape[2], k.shape[2]
        if q.is_cuda:
            # A mask of this class lets CUDA take its fused kernels. Its module is slow to import.
            from torch.nn.attention.bias import causal_lower_right

            return sdpa(q, k, v, causal_lower_right(count, width), scale)
        return sdpa(q, k, v, mask.causal(group.prompt, group.fed[0], q.device)[:count, :width], scale)

    prompt = [x[:, :, group.start : group.middle] for x in (key, value)]
    at_once, at = max(1, COPIES // (group.prompt + group.fed[0])), group.middle
    for first in range(0, len(group.fed), at_once):
        fed = group.fed[first : first + at_once]
        here = slice(at, at + sum(fed))
        parts = [side_by_side(x[0, :, here], fed) for x in (query, key, value)]
        # Autograd would keep one copy of the prompt's keys per completion, so the backward pass makes the copies again.
        again = at_once < len(group.fed) and torch.is_grad_enabled()
        rows = checkpoint(some, *parts, *prompt, use_reentrant=False) if again else some(*parts, *prompt)
        yield from (row[:length] for row, length in zip(rows.transpose(1, 2), fed, strict=True))
        at = here.stop


def side_by_side(x: Float[Tensor, "h s d"], fed: Sequence[int]) -> Float[Tensor, "g h r d"]:
    """Completions of these lengths, padded at the end, where no real token looks."""
    return torch.stack([pad(one, (0, 0, 0, fed[0] - one.shape[1])) for one in x.split(list(fed), 1)])


def look_in_blocks(q: Tensor, k: Tensor, v: Tensor, blocks: tuple[Block, ...], scale: float | None) -> Float[Tensor, "n h q e"]:
    """Attention by masks, which may cover more queries and keys than there are."""
    count, width = q.shape[2], k.shape[2]
    out: list[Tensor] = []
    for queries, seen, whole in blocks:
        rows, keys = slice(queries.start, min(queries.stop, count)), slice(seen.start, min(seen.stop, width))
        if rows.stop > rows.start:
            mask = whole[:, :, : rows.stop - rows.start, : keys.stop - keys.start]
            out.append(sdpa(q[:, :, rows], k[:, :, keys], v[:, :, keys], mask, scale))
    return torch.cat(out, 2)


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float | None) -> Float[Tensor, "n h q e"]:
    """Attention of queries that share keys among heads; causal where there is no mask."""
    grouped = q.is_cuda and (mask is None or type(mask) is not Tensor)
    if not grouped and k.shape[1] < q.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    return scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=scale, enable_gqa=grouped)


@contextmanager
def packing(groups: Sequence[PackedGroup], layers: int) -> Iterator[None]:
    """A block whose forward, not its backward, reads one packed row; RuntimeError where a layer did not look at the groups."""
    packed = Packed(tuple(groups))
    token = CURRENT.set(packed)
    try:
        yield
    finally:
        CURRENT.reset(token)
    if packed.obeyed != layers:
        raise RuntimeError(
            f"{packed.obeyed} of the model's {layers} layers can read several completions behind one prompt: "
            "set policy.prefix = 'repeated'"
        )


def install(model: Pretrained, name: str = NAME, how: Callable[..., object] = attend, mask: Any = mask_of) -> None:
    """Give the language model of a model this attention. Its vision part keeps its own, and config.json does not name it."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    AttentionInterface.register(name, how)
    AttentionMaskInterface.register(name, mask)
    set_attention(model, name)


def set_attention(model: Pretrained, name: str) -> None:
    """Let the language model of a model, and nothing else of it, compute attention by this name."""
    names = language_configs(model)
    model.set_attn_implementation(dict.fromkeys(names, name) if names else name)


def language_configs(model: Pretrained) -> list[str]:
    """Under which names a model's config holds that of its language model; none where it is that itself."""
    text = model.config.get_text_config()
    return [name for name in model.config.sub_configs if getattr(model.config, name) is text]


def with_layers_compiled(net: Any, config: Any) -> Any:
    """A network, after having the layers of its language model compiled where the policy's config wants it.

    Not their attention over packed rows, whose loops follow the lengths of each row.
    """
    if config.compile:
        from transformers import AttentionInterface

        apart = cast(Callable[..., tuple[Tensor, None]], torch.compiler.disable(attend))

        def attend_compiled(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: object, **others: object
        ) -> tuple[Tensor, None]:
            how: Callable[..., tuple[Tensor, None]] = attend if isinstance(attention_mask, SharedRoom) else apart
            return how(module, query, key, value, attention_mask, **others)

        AttentionInterface.register(NAME, attend_compiled)
        parts = [part for child, part in net.core.named_children() if child in net.family.language]
        net.compiled = compile_blocks(parts or [net.core], f"policy.model {config.model!r}")
        net.prefill, net.extend = (as_written(own, net.compiled) for own in (net.prefill, net.extend))
    return net
