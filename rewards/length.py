"""Is the completion's length in a given range?

    r = 1 for low <= n <= high, falling linearly to 0 over `slope` tokens on either side; n = tokens, the stop token included

Not DAPO's overlong penalty, which is negative and one-sided.

Modality: text
Range: [0, 1]
Source: none; the usual length band
Licence: own code Apache-2.0
"""

from dataclasses import dataclass

from mmrl import Need, Prompt, Sample
from mmrl.answers.needs import OfSamples
from mmrl.runtime.ranges import CountOrNone, check_ranges


@dataclass(frozen=True)
class Length(OfSamples):
    """1 inside the band of lengths. ValueError if the band is empty or a sample has no tokens."""

    low: CountOrNone = 0
    """Shortest good length in tokens."""
    high: CountOrNone = 256
    """Longest good length in tokens."""
    slope: CountOrNone = 64
    """Tokens over which the reward falls from 1 to 0; 0 = at once."""
    needs = Need()

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.low > self.high:
            raise ValueError(f"{self}: a band of lengths needs low <= high")

    def score(self, sample: Sample, prompt: Prompt) -> float:
        if sample.token_ids is None:
            raise ValueError(f"a sample of prompt {prompt.id!r} has no tokens: this reward is for policies that write")
        num_tokens = len(sample.token_ids)
        excess = max(self.low - num_tokens, num_tokens - self.high, 0)
        return max(0.0, 1 - excess / max(self.slope, 1))
