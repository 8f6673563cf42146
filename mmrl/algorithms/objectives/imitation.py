"""The likelihood of completions that are given."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from mmrl.algorithms.objectives.surrogates import Values
from mmrl.algorithms.objectives.terms import Surrogate, actions_only
from mmrl.core.readings import LOGPROBS
from mmrl.core.types import Batch, Reading


@dataclass(frozen=True)
class Imitation(Surrogate):
    """-A log p, p the policy's probability of a token; with `dft` -A p log p, the factor p held fixed.

    With the aggregation TokenMean and A = 1 this is supervised fine-tuning: the mean over all taught tokens of the minibatch,
    however it is cut. DFT (arXiv:2508.05629) takes the weight 1 / p out of its gradient, so that unlikely tokens pull less.
    """

    dft: bool = False
    """True: weigh every token by its own probability."""

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (LOGPROBS,)

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        logprobs = actions_only(readings[LOGPROBS], batch.rollouts.action_mask)
        weight = logprobs.detach().exp() if self.dft else 1.0
        return -batch.advantages * weight * logprobs, {"policy/imitation": -logprobs.detach()}
