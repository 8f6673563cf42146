"""The one module that every forward goes through, so that wrappers for many processes see all of them."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor, nn

from mmrl.core.ranks import Ranks
from mmrl.core.samples import KINDS
from mmrl.policies.shared.compiled import PolicyNet
from mmrl.policies.text.families import Family, Media
from mmrl.policies.text.families.base import type_name_of
from mmrl.policies.text.families.generic import COUNTS, counts
from mmrl.policies.text.packed.attention import NAME, packing
from mmrl.policies.text.packed.room import SharedRoom
from mmrl.policies.text.packed.row import PackedRow
from mmrl.policies.text.packed.team import Team
from mmrl.policies.text.prompt.encode import PromptBatch
from mmrl.policies.text.vision.cache import Features, VisionCache, joined, look_apart, ways_apart, words_about
from mmrl.runtime.tensors import to_device

T = TypeVar("T")
NEVER = -1e20
"""The logit of a banned token: far below any other, and far enough from the smallest float that an entropy's gradient, which
multiplies it by weights before it multiplies it by the probability 0, stays finite."""


@functools.cache
def cache_word() -> str:
    """The name of a cache of keys and values in calls of transformers and in its answers, changed within transformers 5."""
    from transformers.modeling_outputs import BaseModelOutputWithPast

    return "cache" if hasattr(BaseModelOutputWithPast, "cache") else "past_key_values"


@runtime_checkable
class CacheLayer(Protocol):
    """Keys and values of one layer, (n, heads, positions, size)."""

    keys: Tensor
    values: Tensor


@runtime_checkable
class Cache(Protocol):
    """The cache of transformers' language models: keys and values of the tokens read so far, row by row."""

    @property
    def layers(self) -> Sequence[CacheLayer]: ...

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> object:
        """Append to a layer."""
        ...

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Row i becomes what row beam_idx[i] was."""
        ...


class TextNet(PolicyNet):
    """A vision-language model and the tokens it must not write. Call it with the work to do: `net(work)` runs `work(net)`.

    The model only ever gets explicit positions, so what it remembers of earlier prompts (`rope_deltas`) is never used.
    """

    banned: Tensor
    shares: bool = False
    """Do completions share their prompts while they are written?"""

    def __init__(
        self,
        model: Any,
        family: Family,
        banned_ids: Iterable[int],
        pad_token_id: int,
        half: bool = False,
        features: VisionCache | None = None,
    ) -> None:
        super().__init__()
        self.features = features
        self.model, self.family, self.pad_token_id, self.half_precision = model, family, pad_token_id, half
        self.type_name = type_name_of(model.model)
        family.attach(model.model)
        # accelerate looks here for the kinds of layers it may shard, and stops at a kind the model was built without.
        present = {type(module).__name__ for module in model.modules()}
        self._no_split_modules = [name for name in model._no_split_modules or () if name in present]
        banned = torch.zeros(self.num_tokens, dtype=torch.bool)
        banned[sorted(banned_ids)] = True
        self.register_buffer("banned", banned, persistent=False)
        self.team: Team | None = None
        """The processes that read packed rows together."""
        self.stand_in: Media | None = None
        self.passes: Callable[[int], int] = int
        """How often this forward must pass the vision part, given how often its own media do."""
        self.apart: Mapping[str, str] = {}
        """Where FSDP or ZeRO-3 spreads the weights: the kinds that pass other parts than pictures, and which."""

    def join(self, ranks: Ranks, stand_in: Media | None, context: int) -> int:
        """Keep step with the others: pass the vision part as often as they do, looking at `stand_in` if there is nothing else.

        Returns how many of them read packed rows together: `context`, or 1 where there are no others.
        """
        self.stand_in, self.apart = stand_in, ways_apart(self.core, self.family) if ranks.is_sharded else {}
        if self.features is not None:
            self.features.clear()
        if self.features is None or ranks.is_sharded:
            # A replica's frozen vision part waits for no other process.
            self.passes = ranks.passes
        if context == 1 or ranks.world == 1:
            return 1
        self.read_with(Team.of(ranks, context))
        return context

    def read_with(self, team: Team) -> None:
        """Read packed rows together with other processes from now on."""
        self.team = team
        team.attach(self.core.language_model)

    def idle_vision(self, media: Sequence[Media]) -> Tensor:
        """0, through the vision part as often as other processes pass it and this forward's `media` do not.

        Pictures pass it once and clips once; with a cache, those of each prompt that are not known yet. ValueError for kinds
        that go another way where weights are spread: processes without any would gather those of other modules.
        """
        for kind, parts in self.apart.items():
            if any(kind in self.family.kinds(one) for one in media):
                raise ValueError(words_about("a prompt", kind, parts))
        own = self.num_passes(media) if self.features is None else self.features.missing(media)
        return sum((self._idle_pass() for _ in range(self.passes(own) - own)), torch.zeros((), device=self.device))

    def num_passes(self, media: Sequence[Media]) -> int:
        """How often a forward with these media passes the vision part, where nothing is kept."""
        kinds = [kind for one in media for kind in self.family.kinds(one)]
        return len(kinds) if self.family.looks_apart else len(set(kinds))

    def _idle_pass(self) -> Tensor:
        assert self.stand_in is not None
        looked = look_apart(self.family, self.core, self.stand_in, self.device).values()
        entries = [0 * entries.float().sum() for features in looked for entries in features.tensors]
        return sum(entries, torch.zeros((), device=self.device))

    def forward(self, work: Callable[["TextNet"], T]) -> T:
        with self._precision():
            return work(self)

    @property
    def device(self) -> torch.device:
        return self.banned.device

    @property
    def masks_are_plain(self) -> bool:
        """May a forward be given (n, 1, r, k) masks that every layer uses as they are?"""
        config = self.model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        slides = getattr(config, "sliding_window", None) is not None
        return config._attn_implementation in ("sdpa", NAME) and kinds == {"full_attention"} and not slides

    @property
    def num_tokens(self) -> int:
        """How many tokens it chooses among."""
        return self.model.get_output_embeddings().weight.shape[0]

    @property
    def core(self) -> Any:
        """The model below its head."""
        return self.model.model

    def logits(self, hidden: Float[Tensor, "m d"], temperature: Float[Tensor, " m"]) -> Float[Tensor, "m v"]:
        """In float32, divided by the temperature; banned tokens have no probability."""
        # In place: of a large vocabulary, every copy is the largest tensor of all.
        logits = self.family.head(self.model.get_output_embeddings()(hidden).float())
        return logits.div_(temperature[:, None]).masked_fill_(self.banned, NEVER)

    def read_packed(self, row: PackedRow, media: Sequence[Media]) -> Float[Tensor, "s d"]:
        """Hidden states of all tokens of a packed row with these media; RuntimeError where layers take the row for one text."""
        with packing(row.groups, self.core.config.get_text_config().num_hidden_layers):
            shown = {**self.types(row.type_ids), **self.vision(media, row.media)}
            # Without a mask, positions that begin again would look like padding-free batches to the model.
            mask = torch.ones_like(row.token_ids)
            return self.through(row.token_ids, None, mask, row.positions, use_cache=False, **shown).last_hidden_state[0]

    def through(
        self,
        prompts: Int[Tensor, "n p"] | None,
        fed: Int[Tensor, "n r"] | None,
        attention: Tensor | None,
        positions: Real[Tensor, "a n k"],
        **options: object,
    ) -> Any:
        """The output of the model below its head for tokens of prompts, tokens that were written, or these behind those."""
        tokens = prompts if fed is None else fed if prompts is None else torch.cat([prompts, fed], dim=1)
        return self.core(input_ids=tokens, attention_mask=attention, position_ids=axes(positions), **options)

    def prefill(
        self,
        prompts: PromptBatch,
        cache: Cache | None = None,
        attention: Int[Tensor, "u k"] | None = None,
        last: Int[Tensor, " u"] | None = None,
    ) -> tuple[Float[Tensor, "u d"], Cache]:
        """Hidden state after each prompt, and the cache of keys and values.

        Prompts may go on behind a `cache`, and be padded at their ends: `attention` covers both, `last` is each one's last token.
        """
        shown = {**self.types(prompts.type_ids), **self.vision(prompts.media, range(len(prompts.media)))}
        known = {} if cache is None else {cache_word(): cache}
        mask = prompts.attention if attention is None else attention
        out = self.through(prompts.token_ids, None, mask, prompts.positions, use_cache=True, **known, **shown)
        hidden = out.last_hidden_state
        ends = hidden[:, -1] if last is None else hidden[torch.arange(len(last), device=last.device), last]
        return ends, getattr(out, cache_word())

    def extend(
        self, cache: Cache | SharedRoom, token_ids: Int[Tensor, "n r"], positions: Real[Tensor, "a n r"], attention: Tensor | None
    ) -> Float[Tensor, "n r d"]:
        """Hidden states of tokens that follow what is cached; `attention` covers both (None: all of it), and the cache grows."""
        with cache if isinstance(cache, SharedRoom) else nullcontext():
            return self.behind(cache, token_ids, positions, attention)

    def behind(
        self, cache: Cache | SharedRoom, token_ids: Int[Tensor, "n r"], positions: Real[Tensor, "a n r"], attention: Tensor | None
    ) -> Float[Tensor, "n r d"]:
        """Hidden states as `extend` gives them, in a block of the room that is open."""
        known = {cache_word(): cache}
        return self.through(None, token_ids, attention, positions, use_cache=True, **known).last_hidden_state

    def types(self, type_ids: Tensor | None) -> dict[str, Tensor]:
        return {} if type_ids is None or self.type_name is None else {self.type_name: type_ids}

    def count(self, media: Media) -> Media:
        """One prompt's media with their features counted, where the family looks apart; weights that are cut or absent cannot."""
        if not (media and self.family.looks_apart and all(type(weight) is nn.Parameter for weight in self.core.parameters())):
            return media
        with torch.no_grad(), self._precision():
            [looked] = self.look([media])
        return {**media, **{COUNTS[kind]: counts(features.pooled) for kind, features in looked.items()}}

    def look(self, media: Sequence[Media]) -> list[dict[str, Features]]:
        """The features of each prompt's media, prompt by prompt; the latest are kept where nothing trains that computes them."""
        if self.features is None:
            return [look_apart(self.family, self.core, one, self.device) for one in media]
        return self.features.look(self.core, media, self.device)

    def vision(self, media: Sequence[Media], shown: Sequence[int]) -> Mapping[str, object]:
        """Forward arguments that show media[k] for every k in `shown`, in that order; the vision tower sees each once."""
        if not any(media):
            return {}
        outputs: dict[str, object] = {}
        if self.features is not None or self.family.looks_apart:
            looked = self.look(media)
            for kind in KINDS:
                if chosen := [looked[i][kind] for i in shown if kind in looked[i]]:
                    outputs[kind] = joined(chosen).output()
            return {"mm_encoder_outputs": outputs}
        split = [self.family.kinds(one) for one in media]
        for kind in KINDS:
            own = [kinds.get(kind, {}) for kinds in split]
            if any(own):
                here = [{name: to_device(x, self.device) for name, x in one.items()} for one in own]
                features = self.family.look(self.core, kind, here)
                starts = torch.tensor([0, *(self.family.entries(one, kind) for one in media)]).cumsum(0).tolist()
                index = [entry for i in shown for entry in range(starts[i], starts[i + 1])]
                outputs[kind] = pick_entries(features, index)
        return {"mm_encoder_outputs": outputs}


def axes(positions: Real[Tensor, "a n p"]) -> Tensor:
    """Models with one axis take (n, p)."""
    return positions[0] if len(positions) == 1 else positions


def pick_entries(features: Any, index: list[int]) -> Any:
    """Some entries of a vision output of transformers, repeated where the index repeats them."""

    def take(entries: Tensor | Sequence[Tensor]) -> Tensor | list[Tensor]:
        return entries[index] if isinstance(entries, Tensor) else [entries[i] for i in index]

    features.pooler_output = take(features.pooler_output)
    if getattr(features, "deepstack_features", None) is not None:
        features.deepstack_features = [take(level) for level in features.deepstack_features]
    return features
