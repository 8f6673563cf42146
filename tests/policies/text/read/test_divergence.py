"""How far the rows of a group disagree, against a loop over the vocabulary."""

import math

import pytest
import torch

from mmrl.policies.text.read.evaluate import group_divergence

MASK = torch.tensor([[True, True, True], [True, True, False], [True, False, False]])
ALLOWED = torch.tensor([True, False, True, True])
TEMPERATURE = torch.tensor([1.0, 0.5, 2.0], dtype=torch.float64)


def slowly(hidden: torch.Tensor, head: torch.Tensor) -> list[float]:
    """Position by position: rows that have ended are uniform over the three words that can be written."""
    found: list[float] = []
    for t in range(3):
        rows: list[list[float]] = []
        for row in range(3):
            logits = [float(hidden[row, t] @ head[:, word]) / float(TEMPERATURE[row]) for word in (0, 2, 3)]
            logits = logits if MASK[row, t] else [0.0] * 3
            total = math.log(sum(map(math.exp, logits)))
            rows.append([logit - total for logit in logits])
        means = [sum(row[word] for row in rows) / 3 for word in range(3)]
        gaps = [[means[word] - row[word] for word in range(3)] for row in rows]
        found.append(sum(math.exp(d) - d - 1 for row in gaps for d in row) / 3)
    return found


@pytest.mark.parametrize("chunk", [1, 3, 6, 100])
def test_divergence_by_loops_whatever_the_chunk(chunk: int):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 3, 5, generator=generator, dtype=torch.float64)
    head = torch.randn(5, 4, generator=generator, dtype=torch.float64)
    found = group_divergence(lambda x, heat: x @ head / heat[:, None], hidden, TEMPERATURE, MASK, ALLOWED, chunk)
    assert found.shape == (3, 3)
    for row in found:
        assert row.tolist() == pytest.approx(slowly(hidden, head), rel=1e-9)


def test_no_position_has_no_divergence():
    empty = torch.zeros(2, 0, 5)
    mask = torch.zeros(2, 0, dtype=torch.bool)
    assert group_divergence(lambda x, heat: x, empty, torch.ones(2), mask, ALLOWED, 8).shape == (2, 0)
