"""How many processes sample, on which cards, and what they compute alike with the one that trains."""

import os
from dataclasses import dataclass

import torch

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
        threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
        cards = cards_here()
        if not cards:
            return [Place("", threads, strict)] * self.count
        if self.shares:
            return [Place(cards[0], threads, strict)] * self.count
        if len(cards) < 1 + self.count:
            raise ValueError(
                f"cluster.samplers is {self.count}, and this process sees {len(cards)} card(s), one of which trains: give it "
                f"more ({CARDS}), lower cluster.samplers, or let them share the trainer's with cluster.samplers_share = true"
            )
        return [Place(card, threads, strict) for card in cards[1 : 1 + self.count]]


@dataclass(frozen=True)
class Place:
    """Where one process computes."""

    card: str
    """Its name for CUDA; empty: the CPU."""
    threads: int
    is_deterministic: bool

    def enter(self) -> None:
        """Let this process compute there, with the same sums as the one that trains; before it uses a card."""
        os.environ[CARDS] = self.card
        torch.set_num_threads(self.threads)
        torch.use_deterministic_algorithms(self.is_deterministic)


def cards_here() -> list[str]:
    """The names of the cards that this process may use."""
    if not torch.cuda.is_available():
        return []
    said = os.environ.get(CARDS)
    return said.split(",") if said else [str(i) for i in range(torch.cuda.device_count())]
