"""Low-rank adapters: their settings."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class LoraSettings:
    """Low-rank adapters (arXiv:2106.09685) by peft; the model's own weights stay as they are."""

    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0
    """Must stay 0: with dropout the same weights would give other log-probabilities at every reading."""
    targets: tuple[str, ...] | Literal["auto"] = "auto"
    """Names of linear layers; auto = all of the language model."""
    adapter: str | None = None
    """Folder of a saved adapter to start from; its own rank, alpha and targets then count."""

    def __post_init__(self) -> None:
        if self.dropout != 0:
            raise ValueError(
                f"policy.lora.dropout is {self.dropout}: log-probabilities must be the same at every reading, set it to 0"
            )
        if self.rank < 1:
            raise ValueError(f"policy.lora.rank is {self.rank}: it must be 1 or more")
