"""How averaged weights follow the trained ones at a steady rate: shadow = d shadow + (1 - d) weights after every update."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SteadyDecay:
    """d = decay at every step: GRPO-CARE's 0.995 at every tenth update is 0.9995 at each (arXiv:2506.16141)."""

    decay: float = 0.9995

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1:
            raise ValueError(f"SteadyDecay.decay is {self.decay}; it is the share of the average that stays: set it from 0 to 1")

    def __call__(self, step: int) -> float:
        return self.decay
