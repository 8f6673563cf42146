"""How likely the policy finds the true answer after each of its thoughts: a reward without a verifier."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.algorithms.statistics import with_column
from mmrl.core.hooks import PartHooks
from mmrl.core.readings import BASE_PROBABILITY, REFERENCE_PROBABILITY
from mmrl.core.samples import answer_text
from mmrl.core.types import Prompt, Reading, Rollouts, Scores
from mmrl.runtime.ranges import NonNegative, Share


@dataclass(frozen=True)
class ReferenceProbability(PartHooks):
    """r = weight max(p(y* | prompt, thought) - p(y* | prompt), floor), p the mean probability of the tokens of y* (RLPR).

    arXiv:2506.18254. y* is the prompt's true answer, put in the place of the sample's own between its answer tags; p(y* | prompt)
    is the same without the thought. Samples without tags get 0. The mean of probabilities favours long answers; its code rounds
    it to bfloat16. The paper's filter of prompts by spread is the advantage WhereSpread.
    """

    weight: NonNegative = 0.9
    """Weight of the reward `reference_probability` in the total; the paper gives format 0.1."""
    debias: bool = True
    """Subtract the probability without the thought; costs a second forward."""
    floor: Share = 0.0
    """The least reward."""

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (REFERENCE_PROBABILITY, BASE_PROBABILITY) if self.debias else (REFERENCE_PROBABILITY,)

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError for a prompt whose true answer is no text and no number."""
        for prompt in prompts:
            answer_text(prompt)

    def __call__(self, scores: Scores, rollouts: Rollouts, frozen: Mapping[Reading, Tensor]) -> Scores:
        """Raises ValueError when a reward of this name is there already."""
        probability = row_values(frozen[REFERENCE_PROBABILITY])
        found = probability >= 0
        base = row_values(frozen[BASE_PROBABILITY]).clamp(min=0) if self.debias else torch.zeros_like(probability)
        value = torch.where(found, gain(probability, base, self.floor), 0.0)
        return with_column(scores, self, "reference_probability", value, self.weight)


def row_values(reading: Tensor) -> Tensor:
    """The one value of every row (n,) of a reading that is the same at all of its actions."""
    return reading[:, 0]


def mean_probability(logprobs: Tensor) -> Tensor:
    """The mean of probabilities, which is not the exponential of the mean log-probability."""
    return logprobs.exp().mean()


def gain(probability: Tensor, base: Tensor, floor: float = 0.0) -> Tensor:
    """max(p - base, floor)."""
    return (probability - base).clamp(min=floor)
