"""Training on the part of a step that differs most: rows by their advantages, then tokens (D3S)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from mmrl.algorithms.advantages.on_top import OnTop
from mmrl.algorithms.notes import Notes
from mmrl.core.readings import OLD_ENTROPY
from mmrl.core.types import Credit, Rollouts, Scores
from mmrl.runtime.ranges import Count, PositiveShare
from mmrl.runtime.tensors import masked_mean


@dataclass(frozen=True)
class MostSpread(Notes, OnTop):
    """The rows of the step whose advantages have the largest variance train, and of their tokens those with the largest |A| H.

    D3S, arXiv:2509.22115, from summaries. Both shares grow evenly from their first value to their last within `over` steps;
    their values are published nowhere that could be read: ours. H is the entropy under the weights that sampled.
    """

    rows: PositiveShare = 0.5
    """Share of the step's rows at first."""
    rows_at_last: PositiveShare = 1.0
    """From step `over` on."""
    tokens: PositiveShare = 0.2
    """Share of the tokens of these rows at first, rounded up."""
    tokens_at_last: PositiveShare = 1.0
    """From step `over` on."""
    over: Count = 100
    """Steps."""

    reads = (OLD_ENTROPY,)

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        credit, step = self.inner(scores, rollouts), int(self.notes.get("step", 0.0))
        own = masked_mean(credit.values.double(), rollouts.action_mask, dim=1)
        places = credit.keep.nonzero()[:, 0]
        count = max(1, round(evenly(step, self.rows, self.rows_at_last, self.over) * len(places)))
        keep = torch.zeros_like(credit.keep)
        keep[places[most_spread(own[places], count)]] = True
        mask = rollouts.action_mask & keep[:, None]
        worth = credit.values.double().abs() * rollouts.recorded[OLD_ENTROPY].to(credit.values.device).double()
        share = evenly(step, self.tokens, self.tokens_at_last, self.over)
        return Credit(credit.values, keep, largest(worth, mask, share))

    def adapt(self, step: int, metrics: Mapping[str, float]) -> None:
        self.notes["step"] = step


def evenly(step: int, first: float, last: float, over: int) -> float:
    """From first, at step 0, to last, at step over - 1 and later."""
    return first + (last - first) * (min(1.0, step / (over - 1)) if over > 1 else 1.0)


def most_spread(x: Float[Tensor, " n"], count: int) -> list[int]:
    """The places of the `count` values with the largest variance, in order: the i lowest and the rest highest, for the best i."""
    order = list(map(int, x.argsort(stable=True)))
    choices = [[*order[:i], *order[len(order) - (count - i) :]] for i in range(min(count, len(order)) + 1)]
    return sorted(max(choices, key=lambda places: float(x[places].var(correction=0)) if places else 0.0))


def largest(x: Float[Tensor, "n t"], mask: Bool[Tensor, "n t"], share: float) -> Bool[Tensor, "n t"]:
    """True for this share of the entries under the mask, rounded up: the largest; of equal ones the earliest."""
    places, out = mask.flatten().nonzero()[:, 0], torch.zeros_like(mask.flatten())
    count = math.ceil(round(share * len(places), 9))
    out[places[x.flatten()[places].argsort(descending=True, stable=True)[:count]]] = True
    return out.view_as(mask)
