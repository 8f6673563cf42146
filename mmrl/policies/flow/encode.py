"""Prompts as the transformer reads them, encoded once each."""

import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from mmrl.policies.flow.embedding_cache import EmbeddingCache
from mmrl.policies.flow.families.base import Condition, FlowFamily

log = logging.getLogger("mmrl")


class Encoder:
    """Text -> Condition. The latest `capacity` texts are remembered, and the one that stands for no prompt always.

    Prompts are encoded one by one, so that an embedding never depends on what else was asked for at the same time.

    Args:
        resting: text encoders rest in the host's memory, and are on the device only while something is encoded.
        disk: embeddings that other runs made, and where those of this one are kept.
    """

    def __init__(self, family: FlowFamily, capacity: int, resting: bool = False, disk: EmbeddingCache | None = None) -> None:
        self.family, self.capacity, self.resting, self.disk = family, capacity, resting, disk
        self.known: OrderedDict[str, Condition] = OrderedDict()
        self.warned = False
        self.nothing: Condition | None = None

    @torch.no_grad()
    def __call__(self, texts: Sequence[str], device: torch.device) -> list[Condition]:
        """The conditions of texts; warns once if one is longer than the model can read."""
        if not self.warned:
            self.warn([text for text in texts if text not in self.known])
        found = {text: condition for text in texts if (condition := self.known.pop(text, None)) is not None}
        found |= self._make([text for text in dict.fromkeys(texts) if text not in found], device)
        for text in dict.fromkeys(texts):
            self.known[text] = found[text]
        while len(self.known) > self.capacity:
            self.known.popitem(last=False)
        return [found[text] for text in texts]

    @torch.no_grad()
    def empty(self, device: torch.device) -> Condition:
        """The condition that guidance leads away from: that of the empty prompt."""
        if self.nothing is None:
            self.nothing = self._make([self.family.empty_prompt], device)[self.family.empty_prompt]
        return self.nothing

    def _make(self, texts: Sequence[str], device: torch.device) -> dict[str, Condition]:
        """Conditions from the disk, or encoded and kept there."""
        found: dict[str, Condition] = {}
        if self.disk is not None:
            kept = {text: self.disk.read(text, device.type) for text in texts}
            found = {text: condition for text, condition in kept.items() if condition is not None}
        missing = [text for text in texts if text not in found]
        if missing:
            found |= self.encode(missing, device)
        if self.disk is not None:
            for text in missing:
                self.disk.write(text, device.type, found[text])
        return found

    @torch.no_grad()
    def encode(self, texts: Sequence[str], device: torch.device) -> dict[str, Condition]:
        """Conditions by the text encoders, whatever is known of them already."""
        with self._awake(device):
            return {text: self.family.encode(text, device) for text in texts}

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
