"""Models that take sounds and text: what their own forward writes in place of the placeholders is what is heard."""

from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from mmrl.policies.text.families.base import Core, HubProcessor, Media, parameters_of
from mmrl.policies.text.families.generic import COUNTS, Generic

JOINED = """\
{%- set joined = namespace(chat=[], text='') -%}
{%- for message in messages -%}
    {%- set joined.text = message.content if message.content is string else '' -%}
    {%- for part in message.content if message.content is not string -%}
        {%- set joined.text = joined.text + (part.text if part.type == 'text' else 'SOUND') -%}
    {%- endfor -%}
    {%- set joined.chat = joined.chat + [dict(message, content=joined.text)] -%}
{%- endfor -%}
{%- set messages = joined.chat -%}
"""
"""What stands before a chat template that wants one text per message."""


@dataclass(frozen=True)
class Hearing(Generic):
    """The rule for sounds: masks, windows and padding are always those of the makers.

    The processor says by its placeholders how many tokens a prompt's sounds give, and the model's own forward, stopped where its
    text layers begin, says what these are.
    """

    sees: tuple[str, ...] = ("audio",)
    wants_rate: bool = True
    looks_both_ways: bool = False
    vision: tuple[str, ...] = ("audio_tower", "encoder", "projector", "multi_modal_projector")
    projector: tuple[str, ...] = ("multi_modal_projector", "projector")

    def token_of(self, kind: str) -> int:
        found = getattr(self.config, "audio_token_id", None)
        return found if found is not None else self.config.audio_config.audio_token_id

    def keeps(self, core: Core, names: Iterable[str]) -> frozenset[str]:
        return frozenset(names) & set(parameters_of(core.forward))

    def counted(self, token_ids: Int[Tensor, " p"]) -> Media:
        return {COUNTS["audio"]: (token_ids == self.token_of("audio")).sum()[None]}

    def kinds(self, media: Media) -> dict[str, Media]:
        return {"audio": media} if media else {}

    def look(self, core: Core, kind: str, media: Sequence[Media]) -> object:
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        [own] = media
        token_ids = torch.full((1, int(own[COUNTS["audio"]].sum())), self.token_of("audio"), device=own[COUNTS["audio"]].device)
        taken = {name: own[name] for name in parameters_of(core.forward) if name in own}
        return BaseModelOutputWithPooling(pooler_output=self.heard(core, token_ids, taken)[None])

    def heard(self, core: Core, token_ids: Int[Tensor, "1 s"], media: Media) -> Float[Tensor, "s d"]:
        """The embeddings that the model puts in place of these placeholders."""
        with stopped(core.language_model):
            whole = torch.ones_like(token_ids)
            return core(input_ids=token_ids, attention_mask=whole, use_cache=False, **media).last_hidden_state[0]

    def media_token_ids(self, tokenizer: Any) -> frozenset[int]:
        return super().media_token_ids(tokenizer) | {self.token_of("audio")}


@dataclass(frozen=True)
class GraniteSpeech(Hearing):
    """transformers leaves out the divisor of logits that its text config names."""

    wants_rate: bool = False

    def head(self, logits: Float[Tensor, "m v"]) -> Float[Tensor, "m v"]:
        return logits


@dataclass(frozen=True)
class Phi4(Hearing):
    """Phi-4-multimodal's ears; its pictures are not shown. Its layers lie beside them, and placeholders have other names."""

    vision: tuple[str, ...] = ("embed_tokens_extend",)
    projector: tuple[str, ...] = tuple(
        f"embed_tokens_extend.audio_embed.{way}_proj_for_{what}" for way in ("up", "down") for what in ("speech", "vision_speech")
    )
    language: tuple[str, ...] = ("layers", "embed_tokens.weight", "norm")

    def processor(self, model: str, trusted: bool = False) -> HubProcessor:
        """The makers' template wants one text per message: sounds become marks in it."""
        found = super().processor(model, trusted)
        if isinstance(found.chat_template, str) and "type" not in found.chat_template:
            found.chat_template = JOINED.replace("SOUND", found.audio_token) + found.chat_template
            found.tokenizer.chat_template = found.chat_template
        return found

    def heard(self, core: Core, token_ids: Int[Tensor, "1 s"], media: Media) -> Float[Tensor, "s d"]:
        return core.embed_tokens_extend(token_ids, core.embed_tokens(token_ids), **media)[0]

    def media_token_ids(self, tokenizer: Any) -> frozenset[int]:
        return super().media_token_ids(tokenizer) | {self.config.vision_config.image_token_id}


@contextmanager
def stopped(layers: Core) -> Generator[None]:
    """Text layers give back the embeddings that they are given."""
    from transformers.modeling_outputs import BaseModelOutputWithPast

    def give_back(inputs_embeds: Tensor, **_: object) -> BaseModelOutputWithPast:
        return BaseModelOutputWithPast(last_hidden_state=inputs_embeds)

    own = vars(layers).get("forward")
    layers.forward = give_back
    try:
        yield
    finally:
        del layers.forward
        if own is not None:
            layers.forward = own
