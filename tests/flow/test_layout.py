import pytest
import torch

from mmrl.flow.dynamics import DanceSDE
from mmrl.flow.layout import SeededNoise, lay_out, leaves
from mmrl.flow.plan import RolloutPlan, StepPlan
from mmrl.flow.schedules import Branching, Full, OneStep, Tree, Window


def test_a_tree_by_hand():
    layout = lay_out(Tree(4, (0, 2), 2).at(0), [4], [0])
    assert layout.state_ids.tolist() == [[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 2, 2, 2, 2], [0, 2, 2, 3, 3]]
    assert layout.trained.int().tolist() == [[1, 1, 1, 1], [0, 0, 1, 1], [1, 1, 1, 1], [0, 0, 1, 1]]
    assert layout.owners(2).tolist() == [0, 2]
    assert layout.places(2).tolist() == [0, 0, 1, 1]


def test_branches_by_hand():
    # two children at step 0 and two at step 1; the trunk goes on to step 1 only
    layout = lay_out(Branching(3, 2, at_steps=(0, 1)).at(0), [4], [0])
    assert layout.state_ids.tolist() == [[0, 0, 0, 0], [0, 1, 1, 1], [0, 2, 2, 2], [0, 2, 3, 3]]
    assert layout.stochastic.int().tolist() == [[1, 0, 0], [1, 0, 0], [0, 1, 0], [0, 1, 0]]
    assert torch.equal(layout.trained, layout.stochastic)


def test_every_group_is_noisy_at_one_step_of_its_own():
    plan = OneStep(8, low=1, high=7, initial_noise="group", share_prefix=True).at(3)
    seeds = list(range(40))
    layout = lay_out(plan, [3] * 40, seeds)
    steps = layout.stochastic.int().argmax(1).reshape(40, 3)
    assert torch.equal(layout.stochastic, layout.trained) and layout.stochastic.sum(1).eq(1).all()
    assert (steps == steps[:, :1]).all() and set(steps[:, 0].tolist()) == set(range(1, 7))
    assert torch.equal(lay_out(plan, [2], [7]).stochastic[0], layout.stochastic[21]), "by the seed alone"
    shared = [len(layout.state_ids[:3, column].unique()) for column in range(9)]
    assert shared == [1] * (int(steps[0, 0]) + 1) + [3] * (8 - int(steps[0, 0]))
    whole = lay_out(OneStep(8, low=1, high=7, per="step").at(3), [2] * 40, seeds).stochastic
    assert (whole == whole[:1]).all()


def test_requests_share_nothing_with_each_other():
    layout = lay_out(Tree(3, (0,), 2).at(0), [2, 4], [0, 1])
    assert layout.state_ids[:, 0].tolist() == [0, 0, 2, 2, 4, 4]
    assert layout.state_ids[:, 3].tolist() == [0, 1, 2, 3, 4, 5]


def test_every_trained_transition_has_one_owner():
    for schedule in (Tree(6, (1, 3), 3), Branching(5, 4), Full(6), Tree(6, (0,), 2, first_half_only=True)):
        plan = schedule.at(0)
        layout = lay_out(plan, [2 * leaves(plan)], [0])
        owned = layout.state_ids[:, 1:][layout.trained]
        columns = layout.trained.nonzero()[:, 1]
        pairs = list(zip(owned.tolist(), columns.tolist(), strict=True))
        assert len(pairs) == len(set(pairs))
        assert layout.trained.any(1).all() or plan.shape == "tree"


def test_a_group_that_does_not_fill_the_tree_is_refused_with_a_size_that_does():
    with pytest.raises(
        ValueError, match=r"multiple of 16 samples, but algorithm.group_size is 12: set group_size = 16, or branch at"
    ):
        lay_out(Tree().at(0), [12], [0])


def test_every_row_trains_its_own_choice_of_steps():
    plan = Full(9, trained_per_row=3).at(0)
    layout = lay_out(plan, [20, 20], [1, 2])
    assert (layout.trained.sum(1) == 3).all() and not layout.trained[:, -1].any()
    assert len({tuple(row) for row in layout.trained.tolist()}) > 10
    assert torch.equal(layout.trained, lay_out(plan, [20, 20], [1, 2]).trained)
    assert torch.equal(layout.trained[20:], lay_out(plan, [20], [2]).trained)


def test_noise_depends_on_the_requests_seed_the_sample_and_the_step_alone():
    plan = Full(3).at(0)
    both, one = (SeededNoise(plan, counts, seeds, (2, 5)) for counts, seeds in (((2, 3), (7, 8)), ((3,), (8,))))
    torch.testing.assert_close(both(2, torch.tensor([3])), one(2, torch.tensor([1])))
    draws = torch.stack([both(column, torch.arange(5)) for column in range(3)])
    assert len(draws.flatten().unique()) == draws.numel()


def test_a_group_may_share_its_initial_noise_and_nothing_else():
    noise = SeededNoise(Full(3, initial_noise="group").at(0), (2, 2), (7, 8), (4,))
    first, second = noise(0, torch.arange(4)), noise(1, torch.arange(4))
    assert torch.equal(first[0], first[1]) and torch.equal(first[2], first[3])
    assert not torch.equal(first[0], first[2]) and not torch.equal(second[0], second[1])


def test_a_shared_prefix_ends_before_the_first_noise():
    layout = lay_out(Window(6, 2, low=2, stride=0, initial_noise="group", share_prefix=True).at(0), [3], [0])
    assert layout.state_ids[:, :3].unique().tolist() == [0]
    assert layout.state_ids[:, 3].tolist() == [0, 1, 2]
    assert layout.trained[:, 2:4].all()


def test_deviations_are_zero_where_nothing_trains():
    plan = RolloutPlan((StepPlan(DanceSDE(0.3), True, noise_scale=4.0), StepPlan(DanceSDE(0.3)), StepPlan()))
    sigmas = torch.tensor([1.0, 0.75, 0.5, 0.0])
    torch.testing.assert_close(plan.deviations(sigmas), torch.tensor([4 * 0.3 * 0.5, 0, 0]))
