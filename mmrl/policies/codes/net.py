"""The network of a policy that draws by tokens: every row passes it twice, with the words of its prompt and without them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmrl.policies.codes.janus import Janus
from mmrl.policies.text.net import Cache, CacheLayer, TextNet, axes, cache_word


@dataclass(frozen=True)
class PairedCache:
    """A cache whose second half belongs to the same rows without words; rows are counted as if it had one half."""

    inner: Cache

    @property
    def layers(self) -> Sequence[CacheLayer]:
        return self.inner.layers

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> object:
        return self.inner.update(key_states, value_states, layer_idx)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        half = len(self.layers[0].keys) // 2
        self.inner.reorder_cache(torch.cat([beam_idx, beam_idx + half]))


class CodeNet(TextNet):
    """A model that draws by tokens. Its hidden states are those of both passes side by side, d = 2 x hidden size.

    logits = u + guidance (c - u): c with the prompt, u without its words. With guidance 1 there is one pass.
    """

    family: Janus
    writer: TextNet
    """The same model as it writes plans, where it does."""

    def __init__(self, *given: Any, guidance: float) -> None:
        super().__init__(*given)
        self.guidance = guidance

    @property
    def num_tokens(self) -> int:
        return self.family.vocabulary

    @property
    def passes_twice(self) -> bool:
        return self.guidance != 1

    def logits(self, hidden: Float[Tensor, "m d"], temperature: Float[Tensor, " m"]) -> Float[Tensor, "m v"]:
        """In float32, with guidance, divided by the temperature."""
        if not self.passes_twice:
            return self.core.generation_head(hidden).float().div_(temperature[:, None])
        given, free = self.core.generation_head(torch.cat(hidden.chunk(2, dim=-1))).float().chunk(2)
        return free.lerp(given, self.guidance).div_(temperature[:, None])

    def words(self, token_ids: Int[Tensor, "n p"]) -> Float[Tensor, "m p h"]:
        """The embeddings of prompts, behind them those of the same without words."""
        if self.passes_twice:
            token_ids = torch.cat([token_ids, self.family.without_words(token_ids, self.pad_token_id)])
        return self.model.get_input_embeddings()(token_ids)

    def codes(self, codes: Int[Tensor, "n r"]) -> Float[Tensor, "m r h"]:
        """The embeddings of codes, for every pass."""
        return self.twice(self.model.prepare_embeddings_for_image_generation(codes))

    def through(
        self,
        prompts: Int[Tensor, "n p"] | None,
        fed: Int[Tensor, "n r"] | None,
        attention: Tensor | None,
        positions: Int[Tensor, "a n k"],
        **options: object,
    ) -> Any:
        """The same for codes, with the hidden states of all passes side by side."""
        embeds = torch.cat([embed(x) for embed, x in ((self.words, prompts), (self.codes, fed)) if x is not None], 1)
        mask = None if attention is None else self.twice(attention)
        if isinstance(known := options.get(cache_word()), PairedCache):
            options[cache_word()] = known.inner
        out = self.core(inputs_embeds=embeds, attention_mask=mask, position_ids=self.twice(axes(positions)), **options)
        out.last_hidden_state = self.both(out.last_hidden_state)
        if self.passes_twice and options["use_cache"]:
            setattr(out, cache_word(), PairedCache(getattr(out, cache_word())))
        return out

    def twice(self, x: Tensor) -> Tensor:
        """Rows for every pass."""
        return torch.cat([x, x]) if self.passes_twice else x

    def both(self, hidden: Float[Tensor, "m k h"]) -> Float[Tensor, "n k d"]:
        """The hidden states of both passes side by side."""
        return torch.cat(hidden.chunk(2), dim=-1) if self.passes_twice else hidden
