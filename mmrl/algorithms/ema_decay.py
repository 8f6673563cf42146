"""How averaged weights follow the trained ones: shadow = d shadow + (1 - d) weights after update s."""

from dataclasses import dataclass

from mmrl.runtime.ranges import BelowOne, Large, LargeOrNone, NonNegative, Share, check_ranges


@dataclass(frozen=True)
class RampDecay:
    """d = min(first + slope (s - flat), most) after `flat` steps, `first` before: the old policy of DiffusionNFT and of AWM.

    DiffusionNFT's type 0 is slope=0, type 1 the default, type 2 flat=75, slope=0.0075, most=0.999; AWM has most=0.3,
    CRD first=0.25, slope=0.005, most=0.999.
    """

    flat: LargeOrNone = 0
    """Updates before the rise, with d = `first`."""
    slope: NonNegative = 0.001
    """Rise of d at every update."""
    most: BelowOne = 0.5
    """Largest d, the share of the averaged weights that is kept at an update."""
    first: BelowOne = 0.0
    """d of the first updates."""

    __post_init__ = check_ranges

    def __call__(self, step: int) -> float:
        return min(self.first + self.slope * max(0, step - self.flat), self.most)


@dataclass(frozen=True)
class WarmDecay:
    """d = min((1 + s) / (10 + s), most) at every `every`-th step and 1 (no change) between them: Flow-GRPO's EMA."""

    most: BelowOne = 0.9
    """Largest d, the share of the averaged weights that is kept when they change."""
    every: Large = 8
    """Updates from one change of the averaged weights to the next."""

    __post_init__ = check_ranges

    def __call__(self, step: int) -> float:
        if (step + 1) % self.every:
            return 1.0
        return min((1 + step) / (10 + step), self.most)


@dataclass(frozen=True)
class SteadyDecay:
    """d = decay at every step: GRPO-CARE's 0.995 at every tenth update is 0.9995 at each (arXiv:2506.16141)."""

    decay: Share = 0.9995
    """The share of the averaged weights that is kept at every update."""

    __post_init__ = check_ranges

    def __call__(self, step: int) -> float:
        return self.decay
