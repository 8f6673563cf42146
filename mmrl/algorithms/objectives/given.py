"""Losses of completions that are given: one to imitate, or a pair of which one is preferred."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import logsigmoid

from mmrl.algorithms.objectives.surrogates import Values
from mmrl.algorithms.objectives.terms import Surrogate, actions_only
from mmrl.core.ranges import NonNegative, Positive, Range, check_ranges
from mmrl.core.readings import LOGPROBS, REF_LOGPROBS
from mmrl.core.types import Batch, Reading, Scope
from mmrl.runtime.tensors import masked_mean

Kind = Literal["sigmoid", "sigmoid_norm", "ipo"]


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


@dataclass(frozen=True)
class Preference(Surrogate):
    """-log sigmoid(beta m), m = (log p - log ref) of the chosen minus that of the rejected (DPO, arXiv:2305.18290).

    Log-probabilities are summed over a completion. `loss`: "sigmoid_norm" takes their means in place of sums; "ipo" is
    (m - 1 / (2 beta))^2 of the means (arXiv:2310.12036). Rows of advantage above 0 are chosen, those below 0 rejected. Every
    action of a pair has the pair's loss: take the aggregation SequenceMean, the advantage Preferred and the planner Pairs.
    """

    beta: Positive = 0.1
    """How much moving away from the reference costs; of sigmoid_norm, about the usual length times larger."""
    loss: Kind = "sigmoid"
    """sigmoid: DPO; sigmoid_norm: of mean log-probabilities; ipo: a square around 1 / (2 beta)."""
    smoothing: Annotated[float, Range(0, 0.5)] = 0.0
    """The chance that a pair is the wrong way round (cDPO): that share of the loss is of the pair turned over. Not of ipo."""
    sft: NonNegative = 0.0
    """How much -log p of the chosen, the mean over its tokens, is added (RPO, arXiv:2404.19733)."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.smoothing and self.loss == "ipo":
            raise ValueError("Preference.smoothing turns the pairs of a sigmoid over, and loss is 'ipo': leave one of them out")

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (LOGPROBS, REF_LOGPROBS)

    @property
    def scope(self) -> Scope:
        return "group"

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> Values:
        mask, ids = batch.rollouts.action_mask, batch.rollouts.group_ids
        logprobs = actions_only(readings[LOGPROBS], mask)
        moved = logprobs - actions_only(readings[REF_LOGPROBS], mask)
        of_rows = moved.sum(1) if self.loss == "sigmoid" else masked_mean(moved, mask, dim=1)
        sign, same = batch.advantages[:, 0].sign().to(of_rows), (ids[:, None] == ids).to(of_rows)
        margin = same @ (sign * of_rows)
        loss = self.of_margin(margin)
        if self.sft:
            loss = loss - self.sft * (same @ (masked_mean(logprobs, mask, dim=1) * (sign > 0)))
        metrics = {"policy/margin": self.beta * margin, "policy/preferred": (margin > 0).to(margin)}
        return loss[:, None].expand(mask.shape), {name: x.detach()[:, None].expand(mask.shape) for name, x in metrics.items()}

    def of_margin(self, margin: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """The loss of pairs, one of every margin."""
        if self.loss == "ipo":
            return (margin - 1 / (2 * self.beta)) ** 2
        right, wrong = -logsigmoid(self.beta * margin), -logsigmoid(-self.beta * margin)
        return (1 - self.smoothing) * right + self.smoothing * wrong
