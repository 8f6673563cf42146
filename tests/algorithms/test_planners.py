import pytest
import torch

from mmrl.algorithms.planners.base import DynamicSampling, Once
from mmrl.core.types import Group, Prompt, Revision, Sample, Scores
from tests.support.rows import scores

PROMPTS = [Prompt(name) for name in "abcd"]


def groups_of(
    rewards: dict[int, list[float]], roles: dict[int, list[str]] | None = None
) -> tuple[list[Group], Scores, torch.Tensor]:
    """Groups by id with the total of every sample; rows are in an order that mixes the groups."""
    groups = [
        Group(i, Prompt(str(i)), tuple(Sample(role=role) for role in (roles or {}).get(i, ["policy"] * len(values))))  # type: ignore[arg-type]
        for i, values in rewards.items()
    ]
    rows = [(i, k) for k in range(max(map(len, rewards.values()))) for i in reversed(rewards) if k < len(rewards[i])]
    values = torch.tensor([[float(rewards[i][k])] for i, k in rows])
    return groups, scores(values), torch.tensor([i for i, _ in rows])


def revise(planner: DynamicSampling, rewards: dict[int, list[float]], wanted: int, round_index: int = 0, **options) -> Revision:
    return planner.revise(*groups_of(rewards, **options), wanted=wanted, round_index=round_index)


@pytest.mark.parametrize("planner", [Once(), DynamicSampling()])
def test_first_asks_for_one_group_per_prompt(planner):
    requests = planner.first(PROMPTS, group_size=3, first_id=5, seed=11)
    assert [(r.prompt.id, r.count, r.group_id) for r in requests] == [("a", 3, 5), ("b", 3, 6), ("c", 3, 7), ("d", 3, 8)]
    assert [r.seed for r in planner.first(PROMPTS[2:], group_size=8, first_id=7, seed=11)] == [r.seed for r in requests[2:]]
    seeds = {r.seed for seed in (11, 12) for first in (0, 4) for r in planner.first(PROMPTS, 3, first, seed)}
    assert len(seeds) == 16
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_once_is_content():
    assert Once().revise(*groups_of({0: [1, 1]}), wanted=4, round_index=0) == Revision()
    assert Once().max_rounds == 1


def test_dead_groups_are_dropped_and_replaced():
    revision = revise(DynamicSampling(), {0: [1, 0], 1: [1, 1], 2: [0, 0], 3: [0, 1]}, wanted=4)
    assert revision == Revision(fresh_prompts=2, drop_groups=frozenset({1, 2}))
    assert revise(DynamicSampling(oversample=1.6), {0: [1, 0], 1: [1, 1]}, wanted=3).fresh_prompts == 4


def test_enough_is_enough_and_surplus_goes():
    revision = revise(DynamicSampling(), {0: [1, 0], 1: [1, 1], 4: [0, 1], 6: [0.5, 0]}, wanted=2, round_index=1)
    assert revision == Revision(drop_groups=frozenset({1, 6}))


def test_at_the_cap_some_will_do():
    assert revise(DynamicSampling(max_rounds=3), {0: [1, 0], 1: [1, 1]}, 2, round_index=1).fresh_prompts == 1
    assert revise(DynamicSampling(max_rounds=3), {0: [1, 0], 1: [1, 1]}, 2, round_index=2) == Revision(drop_groups=frozenset({1}))


def test_at_the_cap_none_is_an_error():
    with pytest.raises(ValueError, match=r"after 3 rounds .* no group is informative: in each of the 2 groups.*mmrl reward test"):
        revise(DynamicSampling(max_rounds=3), {0: [0, 0], 1: [1, 1]}, wanted=2, round_index=2)


def test_failed_rows_and_samples_from_elsewhere_inform_nobody():
    nan = torch.nan
    revision = revise(
        DynamicSampling(),
        {0: [1, nan], 1: [nan, nan], 2: [1, 0.0, nan], 3: [1, 1, 0]},
        wanted=4,
        roles={3: ["policy", "policy", "injected"]},
    )
    assert revision.drop_groups == {0, 1, 3}


def test_one_reward_may_decide():
    groups, _, ids = groups_of({0: [0, 0], 1: [0, 0]})
    values = torch.tensor([[1.0, 0.1], [0.0, 0.1], [1.0, 0.2], [1.0, 0.1]])  # rows: groups 1, 0, 1, 0
    table = scores(values)
    by_format = DynamicSampling(reward="reward_1").revise(groups, table, ids, 2, 0)
    by_accuracy = DynamicSampling(reward="reward_0").revise(groups, table, ids, 2, 0)
    assert (by_format.drop_groups, by_accuracy.drop_groups) == ({0}, {1})
    with pytest.raises(ValueError, match=r"DynamicSampling.reward is 'acc'; the run has the rewards \['reward_0', 'reward_1'\]"):
        DynamicSampling(reward="acc").revise(groups, table, ids, 2, 0)
