"""Prompts as the transformer reads them, encoded once each."""

import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from PIL import Image

from mmrl.core.types import Prompt
from mmrl.policies.flow.families.base import Condition, FlowFamily
from mmrl.policies.flow.prompt.embedding_cache import EmbeddingCache
from mmrl.policies.flow.sizes import own_size, size_text
from mmrl.policies.shared.pictures import digest_of_picture, open_picture
from mmrl.runtime.pictures import picture_at
from mmrl.runtime.pretrained import REMEDY

log = logging.getLogger("mmrl")
MARK = "<image>"
"""A picture in the text of a prompt."""

Asked = Prompt | str
"""A prompt; a text is one without pictures."""


def key_of(asked: Asked) -> str:
    """The name under which a prompt's embeddings are kept: its text, and the contents of its pictures with the size asked for."""
    if isinstance(asked, str) or not asked.media:
        return asked if isinstance(asked, str) else asked.text
    size = own_size(asked)
    own = [] if size is None else [f"<drawn at {size_text(size)}>"]
    return "\n".join([asked.text, *own, *(f"<picture {digest_of_picture(media)}>" for media in asked.media)])


def text_of(asked: Asked) -> str:
    """The words of a prompt; the marks of its pictures are left out, since these models take them apart from the text."""
    if isinstance(asked, str) or not asked.media:
        return asked if isinstance(asked, str) else asked.text
    return " ".join(asked.text.replace(MARK, " ").split())


class Encoder:
    """Prompt -> Condition. The latest `capacity` prompts are remembered, and the empty one always.

    Prompts are encoded one by one, so that an embedding never depends on what else was asked for.

    Args:
        resting: text encoders are on the device only while something is encoded.
        disk: embeddings that other runs made, and where those of this one are kept.
    """

    def __init__(self, family: FlowFamily, capacity: int, resting: bool = False, disk: EmbeddingCache | None = None) -> None:
        self.family, self.capacity, self.resting, self.disk = family, capacity, resting, disk
        self.known: OrderedDict[str, Condition] = OrderedDict()
        self.warned = False
        self.nothing: Condition | None = None

    @torch.no_grad()
    def __call__(self, prompts: Sequence[Asked], device: torch.device) -> list[Condition]:
        """The conditions of prompts; warns once if one is longer than the model can read."""
        keys = [key_of(asked) for asked in prompts]
        by_key = dict(zip(keys, prompts, strict=True))
        if not self.warned:
            self.warn([text_of(asked) for key, asked in by_key.items() if key not in self.known])
        found = {key: condition for key in by_key if (condition := self.known.pop(key, None)) is not None}
        found |= self._make({key: asked for key, asked in by_key.items() if key not in found}, device)
        for key in by_key:
            self.known[key] = found[key]
        while len(self.known) > self.capacity:
            self.known.popitem(last=False)
        return [found[key] for key in keys]

    @torch.no_grad()
    def empty(self, device: torch.device) -> Condition:
        """The condition that guidance leads away from: that of the empty prompt."""
        if self.nothing is None:
            self.nothing = self._make({"": self.family.empty_prompt}, device)[""]
        return self.nothing

    def _make(self, prompts: Mapping[str, Asked], device: torch.device) -> dict[str, Condition]:
        """Conditions from the disk, or encoded and kept there, by the names they were asked for."""
        found: dict[str, Condition] = {}
        if self.disk is not None:
            kept = {key: self.disk.read(key_of(asked), device.type) for key, asked in prompts.items()}
            found = {key: condition for key, condition in kept.items() if condition is not None}
        missing = {key: asked for key, asked in prompts.items() if key not in found}
        if missing:
            found |= dict(zip(missing, self.encode(list(missing.values()), device).values(), strict=True))
        if self.disk is not None:
            for key, asked in missing.items():
                self.disk.write(key_of(asked), device.type, found[key])
        return found

    @torch.no_grad()
    def encode(self, prompts: Sequence[Asked], device: torch.device) -> dict[str, Condition]:
        """Conditions by `key_of`, made by the text encoders even if they are known already."""
        with self._awake(device), self._blaming_the_model():
            return {key_of(asked): self._encode(asked, device) for asked in prompts}

    @contextmanager
    def _blaming_the_model(self) -> Iterator[None]:
        """Name the model in errors of its encoders under mmrl's own families; those of a user's family are raised as they are."""
        try:
            yield
        except (TypeError, AttributeError, IndexError) as error:
            if not type(self.family).__module__.startswith("mmrl."):
                raise
            raise ValueError(
                f"policy.model {self.family.settings.model!r}: its text encoders cannot read a prompt: {REMEDY} "
                f"({type(error).__name__}: {error})"
            ) from error

    def _encode(self, asked: Asked, device: torch.device) -> Condition:
        if isinstance(asked, str) or not asked.media:
            return self.family.encode(text_of(asked), device)
        family = self.family.at(self.family.size_of(asked))
        return family.encode_with(text_of(asked), self.pictures(asked), device)

    def pictures(self, prompt: Prompt) -> list[Image.Image]:
        """The pictures of a prompt as the model sees them."""
        pictures, family = [open_picture(media, prompt.id) for media in prompt.media], self.family.at(self.family.size_of(prompt))
        return [picture_at(picture, family.source_size, family.settings.source_fit) for picture in pictures]

    @contextmanager
    def _awake(self, device: torch.device) -> Iterator[None]:
        """A block in which the text encoders are on the device."""
        moving = list(self.family.text_encoders.values()) if self.resting else []
        for part in moving:
            part.to(device)
        try:
            yield
        finally:
            for part in moving:
                part.to("cpu")

    def warn(self, texts: Sequence[str]) -> None:
        """Say how many texts are longer than the model can read, if any are."""
        lengths = {text: self.family.count_tokens(text) for text in dict.fromkeys(texts)}
        cut = {text: (count, seen) for text, (count, seen) in lengths.items() if count > seen}
        if cut:
            self.warned = True
            text, (count, seen) = next(iter(cut.items()))
            log.warning(
                f"{len(cut)} of {len(lengths)} different prompts are longer than the text encoder reads and are cut: "
                f"{text[:40]!r}... has {count} tokens, {seen} are seen; this is said once"
            )
