"""Which rows and tokens of a step train: against all subsets, and as the shares grow."""

from itertools import combinations

import pytest
import torch

from mmrl.algorithms.advantages.entropy import MostSpread, largest, most_spread
from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.core.readings import OLD_ENTROPY
from mmrl.core.types import Rollouts, Scores
from tests.support.rows import rollouts, scores


@pytest.mark.parametrize("count", [1, 3, 6, 7])
def test_no_other_rows_have_more_spread(count: int):
    x = torch.randn(7, generator=torch.Generator().manual_seed(count), dtype=torch.float64)
    best = max(float(x[list(some)].var(correction=0)) for some in combinations(range(7), count))
    found = most_spread(x, count)
    assert len(set(found)) == count and float(x[found].var(correction=0)) == pytest.approx(best)


def test_of_equal_tokens_the_earliest_train_and_none_beside_the_mask():
    found = largest(torch.ones(2, 3), torch.tensor([[True, True, False], [False, True, True]]), 0.5)
    assert found.tolist() == [[True, True, False], [False, False, False]]


def step(entropy: float = 1.0) -> tuple[Scores, Rollouts]:
    """Two groups; the second one is of one mind, and a reward of the first is missing."""
    values = torch.tensor([[1.0], [0.0], [0.2], [float("nan")], [1.0], [1.0], [1.0], [1.0]], dtype=torch.float64)
    rows = rollouts(torch.ones(8, 2), [0] * 4 + [1] * 4)
    rows.recorded[OLD_ENTROPY] = torch.tensor([[entropy, 0.0]]).expand(8, 2)  # type: ignore[index] - a dict here
    return scores(values, failed=values.isnan()), rows


def test_rows_and_tokens_leave_all_counts_and_come_back_as_training_goes_on():
    part = MostSpread(GroupNorm(), rows=0.3, tokens=0.5, over=3)
    credit = part(*step())
    assert credit.keep.tolist() == [True, True, *[False] * 6], "2 of the 7 rows that have a total"
    assert credit.mask.tolist()[:2] == [[True, False], [True, False]], "sure tokens leave"
    part.adapt(2, {})
    credit = part(*step())
    assert credit.keep.tolist() == [True, True, True, False, *[True] * 4] and bool(credit.mask[credit.keep].all())
    again = MostSpread(GroupNorm(), rows=0.3, tokens=0.5, over=3)
    again.load_state_dict(part.state_dict())
    assert again(*step()).keep.tolist() == credit.keep.tolist()
