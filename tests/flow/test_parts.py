"""Advantages, weights and terms of flow methods: what must hold whatever the numbers."""

from dataclasses import replace

import pytest
import torch

from mmrl.algorithms.advantages.decoupled import Decoupled
from mmrl.algorithms.advantages.flow import BestOfN
from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.advantages.tree import TreeNorm
from mmrl.algorithms.objectives.forward import AdvantageMatching, CenteredReward, GroupPreference, NegativeAware
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.weights.importance import EqualGradient
from mmrl.core.readings import ORIGIN, PULL, SIGMA, TARGET_VELOCITY, VELOCITY
from mmrl.core.types import Counts
from mmrl.flow.dynamics import dynamics_of
from mmrl.flow.integrate import gaussian_of
from mmrl.flow.layout import lay_out
from mmrl.flow.plan import RolloutPlan, StepPlan
from mmrl.flow.schedules import Branching, Full, Tree
from mmrl.flow.sigmas import StaticShift
from tests.support.flow_fakes import FakeFlowPolicy
from tests.support.refused import refused
from tests.support.rows import Nothing, make_batch, rollouts, scores
from tests.support.trainers import make_trainer


def rows_of(schedule, counts, shared=True):
    """Rollouts of groups with a schedule's mask, node ids and origins."""
    layout = lay_out(schedule.at(0), counts, [0] * len(counts))
    ids = [group for group, count in enumerate(counts) for _ in range(count)]
    plain = rollouts(layout.trained, ids)
    origins = {ORIGIN: layout.state_ids[:, :-1].float()}
    return replace(plain, trace=Nothing(), node_ids=layout.node_ids if shared else None, recorded=origins), layout


def test_tree_norm_without_sharing_is_group_norm():
    rows, _ = rows_of(Full(4), [5, 3], shared=False)
    rewards = scores(torch.randn(8, 1, dtype=torch.float64))
    found = TreeNorm(ddof=0, eps=1e-4, zero_below=0.0)(rewards, rows)
    expected = GroupNorm(ddof=0, eps=1e-4, clip=5.0)(rewards, rows)
    torch.testing.assert_close(found.values[rows.action_mask], expected.values[rows.action_mask])


def test_every_node_counts_once_whatever_its_leaves():
    # leaves 0 1 of one node, leaf 2 of another: worth 1 and 4, so +-1, not the leaf-weighted mean
    plain = rollouts(torch.ones(3, 1))
    rows = replace(plain, node_ids=torch.tensor([[7], [7], [9]]), action_mask=torch.tensor([[True], [False], [True]]))
    values = TreeNorm(ddof=0, eps=0.0)(scores(torch.tensor([[0.0], [2.0], [4.0]])), rows).values
    torch.testing.assert_close(values[:, 0], torch.tensor([-1.0, -1.0, 1.0]))


def test_a_failed_leaf_leaves_the_statistics_of_its_nodes():
    rows, _ = rows_of(Tree(2, (0, 1), 2), [4])
    credit = TreeNorm(ddof=0, eps=0.0)(scores(torch.tensor([[1.0], [torch.nan], [5.0], [7.0]])), rows)
    assert credit.keep.tolist() == [True, False, True, True]
    torch.testing.assert_close(credit.values[:, 0], torch.tensor([-1.0, 0.0, 1.0, 1.0]))
    assert credit.values.isfinite().all()


def test_a_branchs_reward_credits_exactly_its_step():
    schedule = Branching(4, 3)
    rows, _ = rows_of(schedule, [9])
    rewards = torch.randn(9, 1, dtype=torch.float64)
    part = TreeNorm(ddof=0, eps=1e-4)
    before = part(scores(rewards), rows).values
    rewards[4] += 1.0  # a child of step 1
    after = part(scores(rewards), rows).values
    changed = (before - after).abs() > 1e-9
    assert changed[3:6, 1].all()
    changed[3:6, 1] = False
    assert not changed.any()
    siblings = rewards[3:6, 0]
    torch.testing.assert_close(after[3:6, 1], (siblings - siblings.mean()) / (siblings.std(correction=0) + 1e-4))


@pytest.mark.parametrize("at_steps", [(0,), (0, 2), (1, 2)])
def test_temp_flow_compares_the_branches_of_one_trunk(at_steps):
    schedule, part = Branching(4, 3, at_steps=at_steps), PRESETS["temp_flow_grpo"].advantage
    size = schedule.group_size
    rewards = torch.randn(2 * size, 1, dtype=torch.float64)
    rewards[size:] += 5.0  # what the second trunk began from is worth more
    together, _ = rows_of(schedule, [2 * size])
    found = part(scores(rewards), together).values
    apart = [part(scores(rewards[rows]), rows_of(schedule, [size])[0]).values for rows in (slice(size), slice(size, None))]
    torch.testing.assert_close(found, torch.cat(apart))
    by_prompt = TreeNorm(ddof=0, eps=1e-4)(scores(rewards), together).values
    assert bool(((found[:size] > 0) & (by_prompt[:size] < 0)).any()), "the better ones of the worse trunk"


def test_siblings_of_a_tree_are_the_children_of_one_node():
    # leaves 1 3 | 5 7: by depth they are compared with all four, as siblings with one
    rows, _ = rows_of(Tree(2, (0, 1), 2), [4])
    part = TreeNorm(compared="siblings", ddof=0, eps=0.0)
    values = part(scores(torch.tensor([[1.0], [3.0], [5.0], [7.0]])), rows).values
    torch.testing.assert_close(values, torch.tensor([[-1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 1.0]]))


def test_path_fusion_needs_the_log_probabilities():
    rows, _ = rows_of(Tree(2, (0, 1), 2), [4])
    refused("fusion = 'mean'", TreeNorm(fusion="path"), scores(torch.randn(4, 1)), rows)


def test_pruned_chains_leave_the_baseline_alone():
    rows, _ = rows_of(Tree(4, (0, 1), 2), [4])
    rewards = scores(torch.tensor([[1.0], [9.0], [2.0], [4.0]]))
    whole, pruned = TreeNorm()(rewards, rows), TreeNorm(kept_chains=0.5)(rewards, rows)
    assert pruned.actions is not None
    assert pruned.actions[:, 2:].any(1).tolist() == [True, True, False, False]
    assert pruned.actions[:, :2].all()
    torch.testing.assert_close(pruned.values[pruned.actions], whole.values[pruned.actions])


@pytest.mark.parametrize(
    ("leaves", "share", "best", "worst"),
    [
        (2, 0.5, 1, 1),
        (3, 0.5, 1, 1),
        (3, 0.1, 1, 1),
        (5, 0.6, 1, 2),
        (6, 0.5, 1, 2),
        (7, 0.9, 3, 3),
        (9, 0.8, 3, 4),
        (4, 1.0, 2, 2),
    ],
)
def test_an_odd_chain_is_kept_from_the_worst_and_two_at_least(leaves, share, best, worst):
    """The counts of BranchGRPO's official code: k = max(2, int(n share)), k // 2 best and k - k // 2 worst."""
    rows, _ = rows_of(Tree(3, (0,), leaves), [leaves])
    order = torch.randperm(leaves, generator=torch.Generator().manual_seed(leaves))
    credit = TreeNorm(kept_chains=share)(scores(order[:, None].double()), rows)
    assert credit.actions is not None
    kept = sorted(order[credit.actions[:, -1]].tolist())
    assert kept == [*range(worst), *range(leaves - best, leaves)]
    assert credit.actions[:, 0].all()


def test_of_equal_chains_the_first_is_the_better():
    rows, _ = rows_of(Tree(2, (0,), 5), [5])
    actions = TreeNorm(kept_chains=0.4)(scores(torch.tensor([[1.0], [2.0], [1.0], [2.0], [1.0]])), rows).actions
    assert actions is not None and actions[:, 1].tolist() == [False, True, False, False, True]


def test_pruning_may_keep_the_best_chain_of_every_branch():
    rows, _ = rows_of(Tree(4, (0, 1), 3), [9])
    rewards = torch.tensor([1.0, 9.0, 2.0, 4.0, 3.0, 2.5, 0.1, 0.2, 0.3])[:, None]
    part = TreeNorm(kept_chains=0.5, pruning="best_per_branch")
    credit = part(scores(rewards), rows)
    assert credit.actions is not None
    assert credit.actions[:, 2:].all(1).nonzero()[:, 0].tolist() == [1, 3, 8]
    assert credit.actions[:, 2:].any(1).sum() == 3 and credit.actions[:, :2].all()
    two = replace(part, kept_chains=0.7)(scores(rewards), rows).actions
    assert two is not None and two[:, 3].nonzero()[:, 0].tolist() == [1, 2, 3, 4, 7, 8]


@pytest.mark.parametrize("share", [0.0, -0.5, 1.5, float("nan")])
def test_a_share_of_chains_is_a_share(share):
    refused(r"TreeNorm.kept_chains is .*: it must be", TreeNorm, kept_chains=share)


def test_best_of_n_keeps_the_extremes_of_every_group_and_their_advantages():
    rewards = torch.tensor([3.0, 1.0, 4.0, 1.5, 9.0, 2.0, 0.0, 5.0, 5.5, 6.0])[:, None]
    rows = rollouts(torch.ones(10, 1), [0] * 6 + [1] * 4)
    part = BestOfN(3)
    credit, whole = part(scores(rewards), rows), part.norm(scores(rewards), rows)
    assert credit.keep.nonzero()[:, 0].tolist() == [1, 2, 4, 6, 8, 9]
    torch.testing.assert_close(credit.values[credit.keep], whole.values[credit.keep])


@pytest.mark.parametrize("kind", ["flow_sde", "dance_sde", "wan", "cps", "ddim"])
def test_the_gradients_of_all_steps_are_equally_large_once_weighed(kind):
    """|d log p / d v| = pull |noise| / elements at every step, so a weight of 1 / pull makes it |noise| / elements."""
    sigmas = StaticShift(3.0).sigmas(StaticShift(3.0).grid(8)).double()
    steps = [StepPlan(dynamics_of(kind, 0.6), trained=True)] * 7
    pulls, noise = RolloutPlan((*steps, StepPlan())).pulls(sigmas).double(), torch.randn(1, 30, dtype=torch.float64)
    for i, step in enumerate(steps):
        x, v = torch.randn(2, 1, 30, dtype=torch.float64)
        gaussian = gaussian_of(step, x, v, sigmas, i)
        v.requires_grad_()
        (gradient,) = torch.autograd.grad(gaussian_of(step, x, v, sigmas, i).log_density(gaussian.draw(noise)).sum(), v)
        torch.testing.assert_close(gradient.abs(), pulls[i] * noise.abs() / 30, rtol=1e-5, atol=1e-9)
    weight = EqualGradient()(make_batch(torch.ones(1, 8), torch.ones(1), {PULL: pulls[None]}), Counts(1, 1, 1))[0]
    torch.testing.assert_close((weight * pulls)[:7], (weight * pulls)[:1].expand(7))
    torch.testing.assert_close(weight[:7].mean(), torch.ones((), dtype=torch.float64))
    assert weight[7] == 0


def test_a_centred_reward_is_matching_with_centred_goodness_where_it_starts():
    generator = torch.Generator().manual_seed(3)
    v, target = (torch.randn(6, 2, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    advantages, ids = torch.tensor([2.0, -1.0, 0.5, 3.0, 3.0, 3.0], dtype=torch.float64), [4, 4, 4, 7, 7, 7]
    batch = make_batch(torch.ones(6, 2), advantages, {}, ids)

    def gradient(batch, live):
        live = live.clone().requires_grad_()
        readings = {VELOCITY: live, VELOCITY._replace(model="ema"): v, TARGET_VELOCITY: target}
        return torch.autograd.grad(CenteredReward(beta=0.7)(readings, batch)[0].sum(), live)[0]

    gap = v - target
    centred = advantages / 10 - torch.tensor([0.05] * 3 + [0.3] * 3, dtype=torch.float64)
    expected = 10 * centred[:, None, None] * 2 * gap / 5 / gap.abs().mean(2, keepdim=True)
    torch.testing.assert_close(gradient(batch, v), expected)
    assert gradient(batch, v)[3:].abs().max() < 1e-12, "equal rewards teach nothing at the start"
    moved = v + 0.1 * torch.randn(6, 2, 5, generator=generator, dtype=torch.float64)
    raised = make_batch(torch.ones(6, 2), advantages + 0.7 * torch.tensor([1.0] * 3 + [-2.0] * 3), {}, ids)
    torch.testing.assert_close(gradient(raised, moved), gradient(batch, moved))
    assert gradient(batch, moved)[3:].any(), "what spreads the implicit rewards of equal samples is pushed back"


@pytest.mark.parametrize(("beta", "moved"), [(50.0, 0.0), (1e-9, 0.3)])
def test_a_group_preference_is_half_of_matching_at_its_reference_and_without_a_brake(beta, moved):
    generator = torch.Generator().manual_seed(5)
    v, target, way = (torch.randn(6, 2, 5, generator=generator, dtype=torch.float64) for _ in range(3))
    advantages = torch.tensor([1.5, -0.5, -1.0, 0.25, 0.25, -0.5], dtype=torch.float64)
    batch = make_batch(torch.ones(6, 2), advantages, {}, [4, 4, 4, 7, 7, 7])
    gradients = []
    for term in (GroupPreference(beta, clip=None), AdvantageMatching("uniform")):
        live = (v + moved * way).requires_grad_()
        readings = {VELOCITY: live, VELOCITY._replace(model="ref"): v, TARGET_VELOCITY: target, SIGMA: torch.rand(6, 2)}
        gradients.append(torch.autograd.grad(term(readings, batch)[0].sum(), live)[0])
    torch.testing.assert_close(gradients[0], gradients[1] / 2)


def test_a_group_of_equal_rewards_has_no_preference():
    """Beside one that has: it keeps its value and gets no gradient, nor takes one away."""
    generator = torch.Generator().manual_seed(6)
    v, target, moved = (torch.randn(5, 2, 5, generator=generator, dtype=torch.float64) for _ in range(3))
    ids, values = [4, 4, 7, 7, 7], torch.tensor([[1.0], [3.0], [2.0], [2.0], [2.0]])
    credit = GroupNorm(ddof=0, eps=1e-4)(scores(values), rollouts(torch.ones(5, 2), ids))
    gradients = []
    for rows in (slice(0, 5), slice(0, 2)):
        live = moved[rows].clone().requires_grad_()
        batch = make_batch(torch.ones(len(live), 2), credit.values[rows, 0].double(), {}, ids[rows])
        own = {"ref": v[rows], "ema": v[rows]}
        readings = {VELOCITY: live, TARGET_VELOCITY: target[rows], **{VELOCITY._replace(model=m): x for m, x in own.items()}}
        gradients.append(torch.autograd.grad(GroupPreference(5.0)(readings, batch)[0].sum(), live)[0])
    assert not gradients[0][2:].any() and bool(gradients[1].any())
    torch.testing.assert_close(gradients[0][:2], gradients[1])


def forward_gradient(term, advantages, seed=0):
    """Gradient of a forward term with respect to the velocity, at the velocity that sampled."""
    generator = torch.Generator().manual_seed(seed)
    v, target = (torch.randn(3, 2, 5, generator=generator, dtype=torch.float64) for _ in range(2))
    live = v.clone().requires_grad_()
    t = torch.tensor([[0.2, 0.9]] * 3, dtype=torch.float64)
    readings = {VELOCITY: live, VELOCITY._replace(model="ema"): v, TARGET_VELOCITY: target, SIGMA: t}
    batch = make_batch(torch.ones(3, 2), torch.tensor(advantages, dtype=torch.float64), {})
    (gradient,) = torch.autograd.grad(term(readings, batch)[0].sum(), live)
    return gradient, v - target, t


@pytest.mark.parametrize("normalized", [True, False])
def test_negative_aware_pushes_by_the_sign_of_the_advantage_and_not_at_all_without(normalized):
    term = NegativeAware(beta=0.5, normalized=normalized)
    gradient, gap, t = forward_gradient(term, [0.0, 2.0, -2.0])
    assert gradient[0].abs().max() < 1e-12
    torch.testing.assert_close(gradient[1].sign(), gap[1].sign())
    torch.testing.assert_close(gradient[2].sign(), -gap[2].sign())
    # (2 r - 1) clip 2 t^2 gap / (w size), w = mean |t gap|, 2 r - 1 = A / clip
    scale = t[..., None] ** 2 / (t[..., None] * gap).abs().mean(-1, keepdim=True) if normalized else torch.ones(())
    torch.testing.assert_close(gradient[1], (2.0 * 2 * scale * gap / 5)[1])


def test_matching_may_take_one_ratio_per_sample():
    apart, together = (
        forward_gradient(AdvantageMatching("t", combine=how), [1.0, -2.0, 0.0])[0] for how in ("exp_first", "sum_first")
    )
    # on the policy's own samples every time has the gradient of both
    torch.testing.assert_close(together, 2 * apart)
    generator = torch.Generator().manual_seed(3)
    v, old, target = (torch.randn(1, 2, 5, generator=generator) for _ in range(3))
    readings = {VELOCITY: v, VELOCITY._replace(model="old"): old, TARGET_VELOCITY: target, SIGMA: torch.ones(1, 2)}
    term = AdvantageMatching("uniform", clip=9.0, off_policy=True, combine="sum_first")
    error = ((v - target) ** 2).mean(2) - ((old - target) ** 2).mean(2)
    values, _ = term(readings, make_batch(torch.ones(1, 2), torch.ones(1), {}))
    torch.testing.assert_close(values, -(-error).sum(1, keepdim=True).exp().expand(1, 2))
    assert (term.scope, AdvantageMatching().scope) == ("rollout", "action")


def test_rows_without_advantage_may_leave_with_their_penalties():
    rows = rollouts(torch.ones(5, 2), [0, 0, 1, 1, 1])
    part = GroupNorm(drop_zero=True)
    credit = part(scores(torch.tensor([[3.0], [3.0], [1.0], [2.0], [3.0]])), rows)
    assert credit.keep.tolist() == [False, False, True, False, True]
    flat = part(scores(torch.ones(5, 1)), rows)
    assert flat.keep.all() and not flat.values.any()


def test_the_lowest_rewards_may_leave_the_statistics():
    rows = rollouts(torch.ones(5, 1))
    credit = Decoupled(ddof=1, eps=0.0, whiten="none", trimmed=0.4)(
        scores(torch.tensor([[5.0], [0.0], [3.0], [4.0], [1.0]])), rows
    )
    # mean 4 and deviation 1 of 3 4 5
    torch.testing.assert_close(credit.values[:, 0], torch.tensor([1.0, -4.0, -1.0, 0.0, -3.0]))
    refused(r"trimmed is 1\.0", Decoupled, trimmed=1.0)


def test_groups_that_fill_no_tree_stop_before_sampling_and_what_the_policy_cannot_read_at_build():
    refused("group_size = 16", make_trainer(replace(PRESETS["branch_grpo"], group_size=12)).step)
    policy = FakeFlowPolicy(offers=frozenset({"logprobs", "mean", "std", "dt"}))
    refused("sampled_mean", make_trainer, PRESETS["grpo_guard"], policy=policy)
