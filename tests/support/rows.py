"""Rollouts, scores and batches made by hand, for tests that need no policy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import settings
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.core.protocols import Term
from mmrl.core.readings import LOGPROBS
from mmrl.core.types import Batch, Counts, Group, Prompt, Reading, Rollouts, Sample, Scores, Status
from tests.support.presets import TEXT as PRESETS

FEW = settings(max_examples=12, deadline=None, derandomize=True)
"""How hypothesis looks for counter-examples here: the same few in every run."""

TEXT_PRESETS = {
    name: preset
    for name, preset in PRESETS.items()
    if {reading.quantity for reading in preset.all_reads} <= {"logprobs", "entropy"} and name not in {"gtpo", "gui_g1", "remix"}
}
"""Presets that need no more than what every text policy offers; gtpo needs tokens, gui_g1 boxes, remix the rows' ages."""


@dataclass(frozen=True)
class Nothing:
    """A trace of a policy that recorded nothing."""

    def take(self, rows: Tensor, steps: slice) -> "Nothing":
        return self


def rollouts(mask: Tensor, group_ids: Sequence[int] | None = None, truncated: Sequence[bool] | None = None) -> Rollouts:
    """One row per row of the mask (n, t), in groups by id; without ids all in one."""
    n = len(mask)
    ids = list(group_ids) if group_ids is not None else [0] * n
    cut = list(truncated) if truncated is not None else [False] * n
    sample_ids, samples = [], {i: [] for i in dict.fromkeys(ids)}
    for i, was_cut in zip(ids, cut, strict=True):
        sample_ids.append(len(samples[i]))
        samples[i].append(Sample(truncated=was_cut))
    groups = tuple(Group(i, Prompt(str(i)), tuple(rows)) for i, rows in samples.items())
    return Rollouts(groups, torch.tensor(ids), torch.tensor(sample_ids), mask.bool(), Nothing())


def of_samples(*samples: Sample, width: int = 1) -> Rollouts:
    """One group of these samples."""
    rows = rollouts(torch.ones(len(samples), width))
    return replace(rows, groups=(replace(rows.groups[0], samples=samples),))


def with_fields(rows: Rollouts, **fields: Sequence[Any]) -> Rollouts:
    """The rows, whose samples have these fields: of each a list, group after group."""
    names, left = list(fields), iter(zip(*fields.values(), strict=True))
    groups = tuple(
        replace(group, samples=tuple(replace(one, **dict(zip(names, next(left), strict=True))) for one in group.samples))
        for group in rows.groups
    )
    assert next(left, None) is None, "as many as there are samples"
    return replace(rows, groups=groups)


def with_columns(rows: Rollouts, **columns: Sequence[Any]) -> Rollouts:
    """The rows, whose groups' prompts have these columns alone: of each a list, a value per group."""
    told = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    pairs = zip(rows.groups, told, strict=True)
    return replace(rows, groups=tuple(replace(group, prompt=replace(group.prompt, columns=own)) for group, own in pairs))


def scores(values: Tensor, weights: Sequence[float] | None = None, failed: Tensor | None = None) -> Scores:
    """Scores of (n, k) values; NaN = does not apply, or failed where `failed` says so."""
    k = values.shape[1]
    status = torch.where(values.isnan(), int(Status.NA), int(Status.OK))
    if failed is not None:
        values, status = values.masked_fill(failed, torch.nan), status.masked_fill(failed, int(Status.FAILED))
    return Scores(
        tuple(f"reward_{i}" for i in range(k)),
        values,
        status,
        torch.tensor([1.0] * k if weights is None else list(weights), dtype=values.dtype),
    )


def make_batch(
    mask: Tensor | Rollouts, advantages: Tensor, frozen: Mapping[Reading, Tensor], group_ids: Sequence[int] | None = None
) -> Batch:
    """A minibatch of rows, or of a mask's, whose shares are not yet computed; advantages are (n,) or (n, t)."""
    rows = mask if isinstance(mask, Rollouts) else rollouts(mask, group_ids)
    spread = advantages if advantages.ndim == 2 else advantages[:, None].expand(rows.action_mask.shape)
    ones = torch.ones_like(spread)
    return Batch(rows, spread, ones, ones, dict(frozen))


def counts_of(batch: Batch) -> Counts:
    """As the trainer counts: rows with an action that trains."""
    mask = batch.rollouts.action_mask
    live = mask.any(1)
    return Counts(int(live.sum()), int(mask.sum()), len(batch.rollouts.group_ids[live].unique()))


def weighed(algorithm: Algorithm, batch: Batch, counts: Counts | None = None, at: Batch | None = None) -> Batch:
    """The batch with its shares and importance; `at` = the batch that weights see, where it is another."""
    share, importance = algorithm.loss_weights(at or batch, counts or counts_of(batch))
    return replace(batch, share=share, importance=importance)


def loss_and_gradient(
    algorithm: Algorithm, batch: Batch, live: Mapping[Reading, Tensor], with_respect_to: Reading = LOGPROBS
) -> tuple[Tensor, Tensor]:
    """Algorithm.loss of a weighed batch, and its gradient with respect to one of the live readings, zeros if it has none."""
    leaves = {reading: x.detach().clone().requires_grad_() for reading, x in live.items()}
    loss = algorithm.loss(batch, leaves)[0]
    leaf = leaves[with_respect_to]
    if not loss.requires_grad:
        return loss, torch.zeros_like(leaf)
    (gradient,) = torch.autograd.grad(loss, leaf, allow_unused=True)
    return loss.detach(), torch.zeros_like(leaf) if gradient is None else gradient


def weighed_loss(
    algorithm: Algorithm | Term, batch: Batch, live: Mapping[Reading, Tensor], with_respect_to: Reading = LOGPROBS
) -> tuple[Tensor, Tensor]:
    """The same of a batch that is not weighed yet; a term is an algorithm's only one."""
    algorithm = algorithm if isinstance(algorithm, Algorithm) else Algorithm(((1.0, algorithm),))
    return loss_and_gradient(algorithm, weighed(algorithm, batch), live, with_respect_to)
