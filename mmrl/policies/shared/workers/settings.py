"""How many processes sample, on which cards, and what they compute alike with the one that trains."""

import os
from dataclasses import dataclass

import torch

from mmrl.runtime.repeating import Kernels

CARDS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class SamplerSettings:
    """The processes of `[cluster] samplers`: `SamplerSettings(2)`."""

    count: int
    restarts: int = 3
    """How often one that died is started again, all together."""
    shares: bool = False
    """They use the trainer's card."""

    def places(self) -> list["Place"]:
        """A place for each; cards after the trainer's.

        Raises:
            ValueError: there are too few cards.
        """
        kernels, cards = Kernels.now(), cards_here()
        if not cards:
            return [Place("", kernels)] * self.count
        if self.shares:
            return [Place(cards[0], kernels)] * self.count
        if len(cards) < 1 + self.count:
            raise ValueError(
                f"cluster.samplers is {self.count}, and this process sees {len(cards)} card(s), one of which trains: give it "
                f"more ({CARDS}), lower cluster.samplers, or let them share the trainer's with cluster.samplers_share = true"
            )
        return [Place(card, kernels) for card in cards[1 : 1 + self.count]]


@dataclass(frozen=True)
class Place:
    """Where one process computes."""

    card: str
    """Its name for CUDA; empty: the CPU."""
    kernels: Kernels

    def enter(self) -> None:
        """Let this process compute there, with the same sums as the one that trains; before it uses a card."""
        os.environ[CARDS] = self.card
        self.kernels.take()


def cards_here() -> list[str]:
    """The names of the cards that this process may use."""
    if not torch.cuda.is_available():
        return []
    said = os.environ.get(CARDS)
    return said.split(",") if said else [str(i) for i in range(torch.cuda.device_count())]
