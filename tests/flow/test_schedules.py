"""Schedules: which steps of a rollout are noisy and train, what that costs, and plans that are refused."""

from dataclasses import replace
from functools import partial

import pytest

from mmrl.flow.dynamics import CPS, DPM2, ODE, FlowSDE, name_of
from mmrl.flow.plan import RolloutPlan, StepPlan, evaluation_plan
from mmrl.flow.schedules import Branching, Full, OneStep, RandomSubset, Tree, Window
from mmrl.flow.times import TimeSampler
from tests.support.flow_costs import forwards

MOVES = ["progressive", "random", "decay", "exp_decay"]


def trained(plan):
    return [i for i, step in enumerate(plan.steps) if step.trained]


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("stride", [1, 3, 4])
def test_windows_are_full_and_cover_the_range(move, stride):
    schedule = Window(12, 4, move=move, stride=stride, dwell=2, decay=(3, 1), low=1, high=10)
    windows = [schedule.window(step) for step in range(200)]
    assert all(len(window) == 4 and window[0] >= 1 and window[-1] < 10 for window in windows)
    assert {i for window in windows for i in window} == set(range(1, 10))


@pytest.mark.parametrize("move", MOVES)
def test_windows_depend_on_seed_and_step_alone(move):
    make = lambda seed: Window(20, 3, move=move, seed=seed)  # noqa: E731 - two schedules that differ in one number
    order = [37, 2, 150, 2, 37]
    assert [make(1).window(step) for step in order] == [Window(20, 3, move=move, seed=1).window(step) for step in order]
    if move == "random":
        assert [make(1).window(s) for s in range(20)] != [make(2).window(s) for s in range(20)]


def test_the_official_empty_window_is_refused_with_the_remedy():
    schedule = Window(25, 4, high=23, overrun=True)
    assert schedule.window(574) == [22] and schedule.window(575) == []
    with pytest.raises(ValueError, match=r"step 575 .*overrun = false"):
        schedule.at(575)


@pytest.mark.parametrize(
    ("last", "kinds", "trains"),
    [("ode", ["cps", "cps", "ode"], [0, 1]), ("noisy", ["cps", "cps", "cps"], [0, 1])],
)
def test_full_never_trains_the_last_step(last, kinds, trains):
    plan = Full(3, "cps", 0.8, last=last).at(5)
    assert [name_of(step.dynamics) for step in plan.steps] == kinds
    assert trained(plan) == trains


def test_full_trains_the_last_step_on_request_and_only_the_first_ones():
    assert trained(Full(4, last="trained").at(0)) == [0, 1, 2, 3]
    assert trained(Full(4, trained_steps=2).at(0)) == [0, 1]


def test_plans_that_train_nothing_have_guidance_and_weights_of_their_own():
    assert evaluation_plan(3, guidance=1.0).guidance == 1.0
    assert [evaluation_plan(50, base_from=share).base_from for share in (0.6, 0.001, 1.0)] == [30, 1, 50]


def test_random_subset_is_the_same_everywhere_and_leaves_the_rest_deterministic():
    schedule = RandomSubset(8, (1, 2, 3, 4), 2)
    plan = schedule.at(3)
    assert plan == RandomSubset(8, (1, 2, 3, 4), 2).at(3)
    assert trained(plan) == sorted(schedule.choice(3))
    assert [step.dynamics for i, step in enumerate(plan.steps) if i not in schedule.choice(3)] == [ODE()] * 6
    assert {tuple(sorted(schedule.choice(step))) for step in range(60)} == {(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)}


def test_costs_are_those_of_the_methods():
    flash = [forwards(Window(25, 4, low=left, stride=0, high=23, flash=0.4).at(0), 1).rollout for left in range(15)]
    assert flash == [11, 12, 13, 13, 14, 14, 15, 16, 16, 17, 17, 18, 19, 19, 20]
    assert forwards(Window(25, 4, stride=0, flash=0.2).at(0), 1).rollout == 7
    assert forwards(Window(25, 4, low=18, stride=0, high=23, flash=0.4).at(0), 1).rollout == 23
    prefix = Window(10, 2, low=4, stride=0, initial_noise="group", share_prefix=True)
    assert forwards(prefix.at(0), 8).rollout == 5 + 8 * 5
    assert forwards(evaluation_plan(40), 1).rollout == 40 and forwards(evaluation_plan(40), 1).update == 0


def test_tree_prunes_and_clamps():
    tree = Tree(8, (0, 3, 99), pruned_depths=(6, 7), slide_every=10, stop_depth=4)
    assert tree.splits == (0, 3, 7) and tree.group_size == 8
    assert [tree.depths_to_prune(step) for step in (0, 10, 20, 500)] == [[6, 7], [5, 6], [4, 5], [4, 5]]
    assert trained(tree.at(0)) == [0, 1, 2, 3, 4, 7]
    assert trained(Tree(8, (0, 3), first_half_only=True).at(0)) == [0, 1, 2, 3, 4, 5]
    assert not Tree(8, (0, 3), last="ode").at(0).steps[-1].stochastic


def test_a_mixed_tree_is_noisy_at_splits_and_in_its_window():
    tree = Tree(8, (0, 3), window=(1, 2), window_every=10, last="ode")
    noisy = lambda step: [i for i, one in enumerate(tree.at(step).steps) if one.stochastic]  # noqa: E731 - read below
    assert [noisy(step) for step in (0, 9, 10, 20, 49, 50, 60)] == [
        [0, 1, 2, 3],
        [0, 1, 2, 3],
        [0, 2, 3],
        [0, 3, 4],
        [0, 3, 5, 6],
        [0, 3, 6],
        [0, 1, 2, 3],
    ]
    assert trained(tree.at(10)) == noisy(10)
    assert (forwards(tree.at(0), 4).rollout, forwards(tree.at(0), 4).update) == (1 + 3 * 2 + 4 * 4, 2 + 2 + 2 + 4)


TRAINED = (StepPlan(CPS(0.5), trained=True), StepPlan())
NONSENSE = [
    (partial(Window, 6, 5, low=1), "5 steps do not fit"),
    (partial(StepPlan, DPM2(), trained=True), "no log-probability"),
    (partial(StepPlan, FlowSDE(0.0), trained=True), "level 0"),
    (partial(Full(3, "cps", 0.8, last="trained").at, 0), "last cps step"),
    (partial(RolloutPlan, TRAINED, forward=TimeSampler()), "forward plan"),
    (partial(RolloutPlan, TRAINED, guidance=2.0), r"guidance 2\.0 of its own, .*set policy\.guidance"),
    (partial(RolloutPlan, TRAINED, base_from=1), r"from step 1 on, .*evaluation\.base_from"),
    (partial(RolloutPlan, (StepPlan(),), forward=TimeSampler(), guidance=1.0), r"set policy\.guidance"),
    (partial(OneStep, 6, low=4, high=4), "no step from low = 4 up to high = 4 of 6"),
    (partial(OneStep, 6, high=4, cap=0.45), r"only flow_sde has.*'wan'"),
    (partial(RolloutPlan, (replace(TRAINED[0], branch=2), StepPlan()), shape="tree", noisy_at=0), "whole chains"),
    (partial(RandomSubset, 4, (0, 1, 2, 3), 1), "RandomSubset"),
    (partial(Tree, 8, (0, 3), window=(6, 4)), r"Tree.window is \(6, 4\): 4 steps from step 6 on do not fit into 8 steps"),
    (partial(Full, 4, trained_per_row=4), "Full.trained_per_row is 4, but 3 of the 4 steps may train"),
    (partial(Full, 4, trained_steps=5), "Full.trained_steps is 5, but 3 of the 4 steps may train"),
    (partial(Full, 1), "num_steps is 1"),
    (partial(Branching, 6, at_steps=()), "at_steps"),
]


@pytest.mark.parametrize(("make", "said"), NONSENSE, ids=[said for _, said in NONSENSE])
def test_plans_that_mean_nothing_are_refused(make, said):
    with pytest.raises(ValueError, match=said):
        make()
