"""How averaged weights follow the trained ones: shadow = d shadow + (1 - d) weights after update s."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RampDecay:
    """d = min(slope (s - flat), most) after `flat` steps, 0 before: the old policy of DiffusionNFT, the EMA adapter of AWM.

    DiffusionNFT's type 0 is slope=0, type 1 the default, type 2 flat=75, slope=0.0075, most=0.999; AWM has most=0.3.
    """

    flat: int = 0
    slope: float = 0.001
    most: float = 0.5

    def __call__(self, step: int) -> float:
        return min(self.slope * max(0, step - self.flat), self.most)


@dataclass(frozen=True)
class WarmDecay:
    """d = min((1 + s) / (10 + s), most) at every `every`-th step and 1 (no change) between them: Flow-GRPO's EMA."""

    most: float = 0.9
    every: int = 8

    def __call__(self, step: int) -> float:
        if (step + 1) % self.every:
            return 1.0
        return min((1 + step) / (10 + step), self.most)


@dataclass(frozen=True)
class SteadyDecay:
    """d = decay at every step: GRPO-CARE's 0.995 at every tenth update is 0.9995 at each (arXiv:2506.16141)."""

    decay: float = 0.9995

    def __post_init__(self) -> None:
        if not 0 <= self.decay <= 1:
            raise ValueError(f"SteadyDecay.decay is {self.decay}; it is the share of the average that stays: set it from 0 to 1")

    def __call__(self, step: int) -> float:
        return self.decay
