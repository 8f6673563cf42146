"""Beginnings that samples share: which they are in plain samples, trees and episodes, and what trains of them."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.advantages.tree import PrefixValues, TreeValues, names_of, prefixes
from mmrl.algorithms.planners.segments import TreeBranches
from mmrl.algorithms.presets import PRESETS
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.samples import Observation, Turn
from mmrl.core.types import Sample
from tests.support.flow_fakes import FakeFlowPolicy
from tests.support.rows import rollouts, scores
from tests.support.trainers import make_trainer


def played(key: str, *tokens: int) -> Sample:
    """Two turns of a token each, with an answer of a token in between."""
    return Sample("b", tokens, turns=(Turn("a", (0, 1), Observation("<image>", key=key)), Turn("b", (2, 3))))


def test_pictures_of_equal_tokens_part_episodes():
    """The branches of an episode share its answers; another episode with the same words and another picture does not."""
    one, branch, other, unknown = played("x", 1, 9, 2), played("x", 1, 9, 3), played("y", 1, 9, 2), played("", 1, 9, 2)
    rows = [names_of(sample, i) for i, sample in enumerate((one, branch, other, unknown, unknown))]
    paths = prefixes(rows)
    assert paths[0][:2] == paths[1][:2] and paths[0][2] != paths[1][2]
    assert len({path[1] for path in paths[1:]}) == 4 and len({path[0] for path in paths}) == 1


def of_samples(*samples: Sample) -> Any:
    rows = rollouts(torch.ones(len(samples), 3))
    return replace(rows, groups=(replace(rows.groups[0], samples=samples),))


def test_a_branched_turn_is_compared_with_its_siblings():
    rows = of_samples(played("x", 1, 9, 2), played("x", 1, 9, 3), played("y", 1, 9, 2))
    found = PrefixValues(eps=0.0)(scores(torch.tensor([[1.0], [0.0], [0.0]])), rows).values
    # mean 1/3, deviation sqrt(1/3); V: 1/2 behind the answer x, which the first row alone lifts to 1
    assert (found * (1 / 3) ** 0.5)[0].tolist() == pytest.approx([2 / 3, 2 / 3 + 1 / 6, 2 / 3 + 1 / 2])
    found = TreeValues()(scores(torch.tensor([[1.0], [0.0], [0.0]])), rows).values
    # r less the others' mean: 1, -1/2, -1/2; V: 0 of all, 1/4 of two, then 1 of one
    assert found[0].tolist() == pytest.approx([0, 2 / 4 / 2**0.5, 2 - 1 / 4])


@pytest.mark.parametrize("part", [PrefixValues(), TreeValues()])
def test_rows_without_a_reward_and_groups_of_equal_ones_get_nothing(part: Any):
    rows = of_samples(*(played("x", 1, 9, token) for token in (2, 3, 4)))
    found = part(scores(torch.tensor([[1.0], [float("nan")], [1.0]])), rows)
    assert found.keep.tolist() == [True, False, True] and not found.values.any()


def test_the_branches_of_a_tree_go_on_from_its_least_likely_tokens_and_train_behind_them():
    planner = TreeBranches(places=2, siblings=3)
    found = make_trainer(replace(PRESETS["treerl"], planner=planner, group_size=2)).collect()
    noted, mask = found.rollouts.recorded[ROLLOUT_LOGPROBS], found.rollouts.action_mask
    row_of = {
        tuple(key): i for i, key in enumerate(torch.stack([found.rollouts.group_ids, found.rollouts.sample_ids], 1).tolist())
    }
    for group in found.rollouts.groups:
        behind = iter(range(2, len(group.samples)))
        for i in range(2):
            own, row = group.samples[i].token_ids or (), noted[row_of[group.id, i]]
            least = sorted(row[: len(own)].argsort(stable=True)[:2].tolist())
            for kept in least:
                for _ in range(3):
                    number = next(behind)
                    assert (group.samples[number].token_ids or ())[:kept] == own[:kept]
                    assert not mask[row_of[group.id, number], :kept].any(), "it trains in the row that wrote it"
        assert next(behind, None) is None
    assert found.rounds == 2


def test_where_nothing_is_shared_tempo_is_grpo():
    rows = of_samples(*(Sample("x", (token, 5, 6)) for token in (1, 2, 3)))
    rewards = scores(torch.tensor([[1.0], [0.0], [0.0]], dtype=torch.float64))
    plain, found = GroupNorm(eps=1e-6)(rewards, rows).values, PrefixValues(eps=1e-6)(rewards, rows).values
    torch.testing.assert_close(found[:, 1:], plain[:, 1:])
    assert (found[:, 0] != plain[:, 0]).all(), "the first token is where they part"


def test_samples_without_tokens_are_refused():
    flow = replace(PRESETS["flow_grpo"], advantage=PrefixValues())
    with pytest.raises(ValueError, match=r"told by their tokens.*take a text policy"):
        make_trainer(flow, policy=FakeFlowPolicy()).step()
