"""Prompts as the transformer reads them, encoded once each."""

import logging
from collections import OrderedDict
from collections.abc import Sequence

import torch

from mmrl.policies.flow.families.base import Condition, FlowFamily

log = logging.getLogger("mmrl")


class Encoder:
    """Text -> Condition. The latest `capacity` texts are remembered, and the one that stands for no prompt always.

    Prompts are encoded one by one, so that an embedding never depends on what else was asked for at the same time.
    """

    def __init__(self, family: FlowFamily, capacity: int) -> None:
        self.family, self.capacity = family, capacity
        self.known: OrderedDict[str, Condition] = OrderedDict()
        self.warned = False
        self.nothing: Condition | None = None

    @torch.no_grad()
    def __call__(self, texts: Sequence[str], device: torch.device) -> list[Condition]:
        """The conditions of texts; warns once if one is longer than the model can read."""
        if not self.warned:
            self.warn([text for text in texts if text not in self.known])
        found: dict[str, Condition] = {}
        for text in texts:
            if text not in found:
                found[text] = self.known.pop(text, None) or self.family.encode(text, device)
                self.known[text] = found[text]
        while len(self.known) > self.capacity:
            self.known.popitem(last=False)
        return [found[text] for text in texts]

    @torch.no_grad()
    def empty(self, device: torch.device) -> Condition:
        """The condition that guidance leads away from: that of the empty prompt."""
        if self.nothing is None:
            self.nothing = self.family.encode(self.family.empty_prompt, device)
        return self.nothing

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
