"""One method is another where they should agree, in whole training steps."""

from dataclasses import replace

import pytest
import torch

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.advantages.tree import TreeNorm
from mmrl.algorithms.objectives.flow import DivergenceMask, FlowKL
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.weights.aggregate import TokenMean
from mmrl.algorithms.weights.noise import EqualGradient
from mmrl.flow.schedules import Branching, Full, OneStep, Tree, Window
from tests.flow.test_learning import small
from tests.support.trainers import make_trainer

NORM = GroupNorm(ddof=0, eps=1e-4, clip=5.0)
BASE = replace(
    PRESETS["flow_grpo"],
    objective=((1.0, Clip(0.02, 0.02)), (0.1, FlowKL("true"))),
    advantage=NORM,
    schedule=Full(6),
    group_size=6,
)


def trained(algorithm, steps=2, **numbers):
    """Weights after a few steps."""
    trainer = make_trainer(algorithm, ratio_bound=1e-5, **numbers)
    for _ in range(steps):
        trainer.step()
    return torch.cat([weight.detach().flatten() for weight in trainer.policy.parameters()])


def test_mix_grpo_with_a_full_window_is_flow_grpo():
    assert torch.equal(trained(replace(BASE, schedule=Window(6, 5))), trained(BASE))


@pytest.mark.parametrize(("threshold", "updates", "same"), [(1e9, 4, True), (1e-12, 1, True), (1e-12, 4, False)])
def test_a_divergence_that_stops_nothing_is_no_clip(threshold, updates, same):
    """Without a bound nothing stops; at the first update nothing can."""
    plain = replace(BASE, objective=((1.0, Clip(0.9, 1e9)),), minibatches=1, epochs=updates)
    found = trained(replace(plain, objective=((1.0, DivergenceMask(threshold)),)))
    assert torch.allclose(found, trained(plain), atol=1e-7) == same


@pytest.mark.parametrize("changes", [{}, {"initial_noise": "group", "share_prefix": True}])
@pytest.mark.parametrize("per", ["group", "step"])
def test_flash_grpo_with_a_pool_of_one_step_is_a_window_of_it(per, changes):
    """To the last bit: its weight is then 1."""
    one = OneStep(6, low=2, high=3, per=per, dynamics="flow_sde", level=0.7, **changes)
    window = Window(6, 1, low=2, stride=0, **changes)
    assert torch.equal(
        trained(replace(BASE, schedule=one, importance=(EqualGradient(),))), trained(replace(BASE, schedule=window))
    )


def test_sharing_the_prefix_of_one_step_changes_nothing():
    one = OneStep(6, high=5, initial_noise="group")
    alone, shared = trained(replace(BASE, schedule=one)), trained(replace(BASE, schedule=replace(one, share_prefix=True)))
    torch.testing.assert_close(alone, shared, atol=1e-6, rtol=1e-6)


def test_branch_grpo_split_once_at_the_start_is_grpo_with_shared_initial_noise():
    tree = Tree(6, (0,), 6, split_noise=1.0, dynamics="flow_sde", level=0.7, last="ode")
    norm = TreeNorm(ddof=0, eps=1e-4, zero_below=0.0)
    branched = trained(replace(BASE, schedule=tree, advantage=norm, aggregation=TokenMean()))
    torch.testing.assert_close(branched, trained(replace(BASE, schedule=Full(6, initial_noise="group"))), atol=1e-6, rtol=1e-6)


def test_unigrpo_without_its_brake_and_with_weights_of_steps_is_grpo_guard():
    guard, own = small("grpo_guard"), small("unigrpo")
    same = replace(own, objective=own.objective[:1], importance=guard.importance, schedule=guard.schedule)
    assert torch.equal(trained(same), trained(guard))


def test_sharing_the_prefix_of_a_window_changes_nothing():
    window = Window(6, 2, low=2, stride=0, initial_noise="group")
    alone, shared = trained(replace(BASE, schedule=window)), trained(replace(BASE, schedule=replace(window, share_prefix=True)))
    torch.testing.assert_close(alone, shared, atol=1e-6, rtol=1e-6)


def test_branches_of_several_trunks_are_a_larger_group():
    one, four = Branching(6, 3, at_steps=(0, 2)), replace(BASE, advantage=TreeNorm(ddof=0, eps=1e-4), group_size=24)
    assert not torch.equal(trained(replace(four, schedule=one)), trained(replace(four, schedule=one, group_size=6)))


@pytest.mark.parametrize(
    "name", ["flow_grpo", "branch_grpo", "temp_flow_grpo", "grpo_guard", "diffusion_nft", "dance_grpo", "crd", "dgpo", "flow_dpo"]
)
@pytest.mark.parametrize("micro_batch", [1, 7, 50])
def test_updates_do_not_depend_on_the_cut(name, micro_batch):
    algorithm = replace(small(name), minibatches=1)
    whole, cut = (trained(algorithm, micro_batch=size, lr=1e-3) for size in (10_000, micro_batch))
    torch.testing.assert_close(cut, whole, atol=3e-6, rtol=1e-4)
