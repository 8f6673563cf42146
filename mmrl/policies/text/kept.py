"""Keys and values that rows of several turns keep from turn to turn, so that no token is read twice."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import finalize

import torch
from torch import Tensor

from mmrl.core.ranks import Ranks
from mmrl.policies.text.settings import TextPolicyConfig

log = logging.getLogger("mmrl")
Layer = tuple[Tensor, Tensor]
"""Keys and values of one layer: of a row (heads, positions, size), of a cache with the rows in front."""


@dataclass(frozen=True, eq=False)
class KeptStrip:
    """Keys and values of some tokens of a row that follow each other, layer by layer. Rows that begin alike share one."""

    layers: tuple[Layer, ...]
    length: int
    size: int
    """Bytes."""


@dataclass
class Keeper:
    """Keeps strips as long as someone holds them, within a bound; and counts what was read."""

    most: int
    """Bytes."""
    held: int = 0
    """Bytes of strips that are there."""
    peak: int = 0
    """The most bytes so far."""
    read: int = 0
    """Tokens that were read before turns were written."""
    spared: int = 0
    """Tokens in front of these that were kept, and not read again."""
    dropped: int = 0
    """Turns of rows that were beyond the bound."""

    def keep(self, cache: Any, row: int, columns: slice) -> KeptStrip | None:
        """Copy some positions of a row of a cache, or of a SharedRoom; None where there is no room for them."""
        parts = (
            cache.columns(row, columns)
            if hasattr(cache, "columns")
            else [(layer.keys[row, :, columns], layer.values[row, :, columns]) for layer in cache.layers]
        )
        size = sum(x.numel() * x.element_size() for part in parts for x in part)
        if not self.has_room(size):
            return None
        return self.hold(KeptStrip(tuple((k.clone(), v.clone()) for k, v in parts), columns.stop - columns.start, size))

    def has_room(self, size: int) -> bool:
        """May so many more bytes be kept? Counts what may not."""
        fits = self.held + size <= self.most
        self.dropped += not fits
        return fits

    def hold(self, strip: KeptStrip) -> KeptStrip:
        """Count a strip as long as it is there."""
        self.held += strip.size
        self.peak = max(self.peak, self.held)
        finalize(strip, self.release, strip.size)
        return strip

    def release(self, size: int) -> None:
        """A strip is gone."""
        self.held -= size


@dataclass(frozen=True, eq=False)
class Past:
    """The beginning of a row that has been read, where it is kept."""

    keeper: Keeper
    strips: tuple[KeptStrip, ...] = ()
    media: int = 0
    """How many of the pictures behind the prompt lie within."""
    final: bool = False
    """The next turn is the row's last: what it reads is not kept."""

    @property
    def length(self) -> int:
        """Its tokens."""
        return sum(one.length for one in self.strips)

    def grown(self, strip: KeptStrip | None, media: int) -> "Past":
        """With a strip behind it, up to which there are so many pictures; the same where there is none."""
        return self if strip is None else replace(self, strips=(*self.strips, strip), media=media)


@dataclass
class Keeping:
    """Rows that are being written, and what each will have read."""

    pasts: list[Past]
    prompts: Sequence[int]
    """Row -> the tokens in front of what it writes."""
    media: Sequence[int]
    """Row -> the pictures among these, its prompt's apart."""
    width: int
    """Positions of the cache before the first token is written."""

    def leave(self, cache: Any, ids: Sequence[int], places: Sequence[int], lengths: Sequence[int]) -> None:
        """Keep what rows have read that leave a cache, where row ids[k] lies at k: all but the last token that each wrote."""
        for place in places:
            row, past = ids[place], self.pasts[ids[place]]
            if past.final:
                continue
            start, written = self.width - self.prompts[row], lengths[row] - 1
            columns = slice(start + past.length, self.width + written)
            self.pasts[row] = past.grown(past.keeper.keep(cache, place, columns), self.media[row])


def layers_of(cache: Any) -> list[Layer]:
    """Keys and values of a cache."""
    return [(layer.keys, layer.values) for layer in cache.layers]


def cache_of(layers: Sequence[Layer]) -> Any:
    """A cache of transformers with these keys and values, which keeps all tokens also of layers that look back a window only."""
    from transformers import DynamicCache

    cache = DynamicCache()
    for number, (keys, values) in enumerate(layers):
        cache.update(keys, values, number)
    return cache


def keeper_of(policy: TextPolicyConfig, model: Any, plays: bool = True) -> Keeper | None:
    """Who keeps what rows of episodes have read, by the settings and the model's config; None: they are read again, or there are
    none, or servers write them."""
    if not plays or policy.engine is not None:
        return None
    if policy.episode_cache_mib and (reason := obstacle(model)) is not None:
        log.warning("%s: every turn of an episode is read from its beginning, as policy.episode_cache_mib = 0 says", reason)
    elif policy.episode_cache_mib:
        return Keeper(policy.episode_cache_mib << 20)
    return None


def refuse_idle_cache(policy: TextPolicyConfig, model: Any) -> None:
    """Raise ValueError where the bound was chosen and nothing could be kept within it."""
    chosen = policy.episode_cache_mib
    if chosen in (0, TextPolicyConfig.episode_cache_mib):
        return
    if (reason := obstacle(model)) is not None:
        raise ValueError(f"policy.episode_cache_mib is {chosen}, and {reason}: leave it out, or set it to 0")
    row = policy.sampling.max_new_tokens * token_bytes(policy, model)
    if row > chosen << 20:
        raise ValueError(
            f"policy.episode_cache_mib is {chosen}, and one turn of policy.sampling.max_new_tokens = "
            f"{policy.sampling.max_new_tokens} takes {row / 2**20:.1f} MiB, so that no row could keep any: raise it, or set 0"
        )


def drained(keeper: Keeper | None, ranks: Ranks) -> dict[str, float]:
    """The share of tokens in front of turns that were not read again, and how many turns found no room, since the last call, of
    all ranks."""
    if keeper is None:
        return {}
    read, spared, dropped = ranks.sum([keeper.read, keeper.spared, keeper.dropped])
    keeper.read = keeper.spared = keeper.dropped = 0
    return {"rollout/kept_tokens": spared / (read + spared), "rollout/dropped_turns": dropped} if read else {}


def token_bytes(policy: TextPolicyConfig, model: Any) -> int:
    """Bytes of a token's keys and values in all layers, by the model's config."""
    text = model.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    # where all weights train, rotary embeddings leave the keys in float32
    both = 8 if policy.dtype == "float32" else 4 if policy.lora is not None else 6
    return both * text.num_hidden_layers * heads * size


def obstacle(model: Any) -> str | None:
    """Why what a model remembers cannot be cut at a row's end, by its config; None: it keeps keys and values alone."""
    from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

    kept = DynamicCache(config=model.get_text_config()).layers
    odd = sorted({type(layer).__name__ for layer in kept if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer)})
    return f"{model.model_type} keeps {' and '.join(odd)}, whose states cannot be cut at the end of a turn" if odd else None


def side_by_side(pasts: Sequence[Past]) -> list[Layer]:
    """Pasts as rows of one cache, padded on the left."""
    width = max(past.length for past in pasts)

    def rows_of(number: int, kind: int) -> Tensor:
        rows = [torch.cat([strip.layers[number][kind] for strip in past.strips], 1) for past in pasts]
        return torch.stack([torch.nn.functional.pad(row, (0, 0, width - row.shape[1], 0)) for row in rows])

    return [(rows_of(number, 0), rows_of(number, 1)) for number in range(len(pasts[0].strips[0].layers))]


def one_cache(caches: Sequence[Any]) -> Any:
    """The rows of all, one after the other, padded on the left; the others are given up layer by layer."""
    if len(caches) == 1:
        return caches[0]
    width = max(cache.layers[0].keys.shape[2] for cache in caches)
    whole = list[Layer]()
    for layers in zip(*(cache.layers for cache in caches), strict=True):
        keys, values = (
            torch.cat([torch.nn.functional.pad(x, (0, 0, width - x.shape[2], 0)) for x in rows])
            for rows in ([layer.keys for layer in layers], [layer.values for layer in layers])
        )
        whole.append((keys, values))
        for layer in layers:
            layer.keys = layer.values = keys[:0]
    return cache_of(whole)
