"""How many processes sample for one that trains, on which cards, and what they compute alike with it."""

import os
from dataclasses import dataclass

import torch

from mmrl.runtime.repeating import Kernels
from mmrl.runtime.workers import LAUNCHER

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
        """A place for each; cards after those of all trainers of this machine, of which a launcher says the number.

        Raises:
            ValueError: there are too few cards.
        """
        kernels, cards = Kernels.now(), cards_here()
        if not cards:
            return [Place("", kernels)] * self.count
        rank, trainers = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))
        if self.shares:
            return [Place(cards[rank], kernels)] * self.count
        if len(cards) < trainers * (1 + self.count):
            raise ValueError(
                f"cluster.samplers is {self.count}, and this process sees {len(cards)} card(s), of which {trainers} train: give "
                f"it more ({CARDS}), lower cluster.samplers, or let them share the trainer's with cluster.samplers_share = true"
            )
        first = trainers + rank * self.count
        return [Place(card, kernels) for card in cards[first : first + self.count]]


@dataclass(frozen=True)
class Place:
    """Where one process computes."""

    card: str
    """Its name for CUDA; empty: the CPU."""
    kernels: Kernels

    def enter(self) -> None:
        """Let this process compute there and by itself, with the same sums as the one that trains; before it uses a card."""
        for name in filter(LAUNCHER.fullmatch, list(os.environ)):
            # it would wait for the trainers' other processes, and they for it
            del os.environ[name]
        os.environ[CARDS] = self.card
        self.kernels.take()


def cards_here() -> list[str]:
    """The names of the cards that this process may use."""
    if not torch.cuda.is_available():
        return []
    said = os.environ.get(CARDS)
    return said.split(",") if said else [str(i) for i in range(torch.cuda.device_count())]
