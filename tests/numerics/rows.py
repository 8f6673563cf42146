"""What a vector's lists are as rows, rewards and credit, and a step's loss against its numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.core.protocols import Advantage
from mmrl.core.readings import LOGPROBS
from mmrl.core.types import Batch, Reading, Rollouts, Scores
from tests.numerics.registry import close
from tests.support.rows import counts_of, loss_and_gradient, rollouts, scores, weighed


def alone(ids: Sequence[int]) -> Rollouts:
    """Rows of one action, in groups by id."""
    return rollouts(torch.ones(len(ids), 1), ids)


def blocks(num_rows: int, size: int) -> list[int]:
    """Group ids of consecutive groups."""
    return [i // size for i in range(num_rows)]


def ids_of(names: Sequence[str]) -> list[int]:
    """Group ids of rows that tell their group's name."""
    return [names.index(name) for name in names]


def up_to(lengths: Sequence[int], width: int | None = None) -> Tensor:
    """The action mask of rows of these lengths."""
    return torch.arange(width or max(lengths)) < torch.tensor(lengths)[:, None]


def column(rewards: Any) -> Scores:
    """The one reward of every row."""
    return scores(torch.as_tensor(rewards, dtype=torch.float64)[:, None])


def credited(advantage: Advantage, rewards: Any, rows: Rollouts | Sequence[int], weights: Any = None) -> Tensor:
    """The advantage of every row's first action, of (n,) or (n, k) rewards; rows of one action may be told by their groups."""
    table = rewards if isinstance(rewards, Tensor) and rewards.ndim == 2 else column(rewards).values
    return advantage(scores(table, weights), rows if isinstance(rows, Rollouts) else alone(rows)).values[:, 0]


def close_loss(
    algorithm: Algorithm,
    batch: Batch,
    live: Mapping[Reading, Tensor],
    expected: Mapping[str, Any],
    tolerance: float = 1e-9,
    what: str = "",
    of: Reading = LOGPROBS,
    **more: Any,
) -> None:
    """Assert that the batch's loss and its gradient are what is expected.

    Args:
        expected: has `loss`, and a gradient whose name begins with `grad`.
        more: counts, where they are not the batch's own; and of `weighed`.
    """
    loss, gradient = loss_and_gradient(
        algorithm, weighed(algorithm, batch, more.pop("counts", counts_of(batch)), **more), live, of
    )
    close(loss, expected["loss"], tolerance, f"{what} loss")
    close(gradient, expected[next(name for name in expected if name.startswith("grad"))], tolerance, f"{what} gradient")
