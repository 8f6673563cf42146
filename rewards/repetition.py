"""Does the completion repeat itself?

    r = -penalty * (1 - different n-grams / all n-grams), of tokens; 0 for a text shorter than n tokens

It uses tokens instead of words, so that it works in any language.

Modality: text
Range: [-penalty, 0]
Source: the repetition penalty of TRL and Open-R1, after arXiv:2502.03373
Licence: own code Apache-2.0
"""

from dataclasses import dataclass

from mmrl import Need, Prompt, Sample
from mmrl.answers.needs import OfSamples
from mmrl.runtime.ranges import Count, NonNegative


@dataclass(frozen=True)
class Repetition(OfSamples):
    """Penalty for repeated runs of tokens. ValueError if a sample has no tokens."""

    size: Count = 3
    """Tokens of an n-gram."""
    penalty: NonNegative = 1.0
    """Subtracted for a text that only repeats itself."""
    needs = Need()

    def score(self, sample: Sample, prompt: Prompt) -> float:
        tokens = sample.token_ids
        if tokens is None:
            raise ValueError(f"a sample of prompt {prompt.id!r} has no tokens: this reward is for policies that write")
        runs = [tokens[i : i + self.size] for i in range(len(tokens) - self.size + 1)]
        return -self.penalty * (1 - len(set(runs)) / len(runs)) if runs else 0.0
