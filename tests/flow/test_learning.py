"""What methods learn on a fake policy: every preset to draw its points, and one what another learns where they should agree."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.algorithms.advantages.flow import BestOfN, StepRewards
from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.advantages.tree import TreeNorm
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.ema_decay import RampDecay
from mmrl.algorithms.objectives.flow import DivergenceMask, FlowKL
from mmrl.algorithms.objectives.forward import AdvantageMatching, DenoisingPreference, GroupPreference, Matching
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.algorithms.planners.flow import extremes
from mmrl.algorithms.weights.aggregate import TokenMean
from mmrl.algorithms.weights.importance import EqualGradient
from mmrl.app.modality.flow_checks import USUAL_ELEMENTS
from mmrl.core.readings import SIGMA, TARGET_VELOCITY, VELOCITY
from mmrl.flow.schedules import Branching, Forward, Full, OneStep, RandomSubset, Tree, Window
from mmrl.training.trainer import Trainer
from tests.support.flow_fakes import FakeFlowPolicy
from tests.support.presets import FLOW as PRESETS
from tests.support.rows import make_batch, rollouts, scores
from tests.support.trainers import make_trainer, rises

CLIP = 2e-2
"""Latents of two elements need a wide clip: the log-ratio spreads as 1 / sqrt(elements)."""
SPREAD = (USUAL_ELEMENTS / 2) ** 0.5
"""How much more means over two elements spread than those that published coefficients are for; differences of errors, too."""


def widened(term: Any) -> Any:
    """The term with a range for latents of two elements."""
    if isinstance(term, DivergenceMask):
        return replace(term, threshold=1e-3)
    if isinstance(term, GroupPreference):
        return replace(term, beta=term.beta / SPREAD, clip=(term.clip or 0.0) * SPREAD)
    if isinstance(term, DenoisingPreference):
        return replace(term, beta=term.beta / SPREAD)
    return replace(term, low=CLIP, high=CLIP) if hasattr(term, "low") else term


def small(name: str) -> Algorithm:
    """The preset with the steps, groups and clip ranges of latents of two elements, and at most four updates per step."""
    algorithm = PRESETS[name]
    terms: list[tuple[float, Any]] = list(algorithm.objective)
    objective = tuple((coef, widened(term)) for coef, term in terms)
    steps: dict[str, Any] = {"num_steps": 6, "spacing": None}
    match algorithm.schedule:
        case Full(trained_per_row=int()):
            steps["trained_per_row"] = 3
        case Tree():
            steps["split_steps"] = (0, 1, 3)
        case Branching():
            steps |= {"at_steps": (0, 2), "branches": 4}
        case OneStep():
            steps |= {"high": 4}
        case RandomSubset():
            steps |= {"candidates": (0, 1, 2, 3, 4)}
        case Window():
            steps |= {"size": 3, "dwell": 5, "high": 5}
        case Forward(times=times):
            steps["times"] = replace(times, count=4)
    own: Any = algorithm.schedule
    schedule = replace(own, **steps)
    trunks = 2 if isinstance(schedule, Branching) else 1
    size, minibatches = trunks * getattr(schedule, "group_size", 12), min(4, algorithm.minibatches)
    advantage = algorithm.advantage
    if isinstance(advantage, StepRewards):  # rewards here are negative
        algorithm = replace(algorithm, advantage=replace(advantage, weigh=False, anchor=0.0))
    return replace(algorithm, objective=objective, schedule=schedule, group_size=size, minibatches=minibatches)


BOUND = 0.5


def trainer_of(name: str, seed: int = 0) -> Trainer:
    policy = FakeFlowPolicy(ema_decay=RampDecay(slope=0.01, most=0.5))
    return make_trainer(small(name), policy=policy, lr=1e-2, seed=seed)


def num_steps(name: str) -> int:
    """Trees share most of a path among their rows: after 40 steps they are 3 deviations above the bound, after 60 seven."""
    return 60 if isinstance(small(name).schedule, Tree) else 40


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_learn(name):
    assert rises(trainer_of(name), num_steps(name), BOUND, "reward/total")


NORM = GroupNorm(ddof=0, eps=1e-4, clip=5.0)
BASE = replace(
    PRESETS["flow_grpo"],
    objective=((1.0, Clip(0.02, 0.02)), (0.1, FlowKL("true"))),
    advantage=NORM,
    schedule=Full(6),
    group_size=6,
)


def trained(algorithm, steps=2, function=None, **numbers):
    """Weights after a few steps."""
    trainer = make_trainer(algorithm, function, ratio_bound=1e-5, **numbers)
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


@pytest.mark.parametrize(
    "one",
    [OneStep(6, high=5, initial_noise="group"), Window(6, 2, low=2, stride=0, initial_noise="group")],
    ids=["step", "window"],
)
def test_sharing_the_prefix_changes_nothing(one):
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


def test_rewards_per_step_that_count_the_end_alone_are_flow_grpo():
    """Where every preview has the reward of the end: gamma, anchor and weights of steps off."""

    def of_the_caption(group):
        return [float(i % 3) for i in range(len(group.samples))]

    process = StepRewards(gamma=0.0, anchor=0.0, weigh=False, eps=NORM.eps, clip=NORM.clip)
    found = [
        trained(replace(BASE, advantage=advantage, schedule=replace(Full(6), previews=previews)), function=of_the_caption)
        for advantage, previews in ((NORM, False), (process, True))
    ]
    torch.testing.assert_close(*found, atol=1e-6, rtol=1e-6)


def test_the_deviation_of_the_most_spread_group_is_that_of_a_lone_prompts():
    rewards = scores(torch.tensor([[1.0], [2.0], [4.0]]))
    rows = rollouts(torch.ones(3, 2), [5, 5, 5])
    most, own = (GroupNorm(scale, ddof=0, zero_below=0.0)(rewards, rows).values for scale in ("max_group", "group"))
    assert torch.equal(most, own)


def preference(term, v, ref, target, advantages, ids):
    """Values, measures and the gradient with respect to v of a term on errors."""
    live = v.clone().requires_grad_()
    readings = {reading: live if reading.model == "policy" else ref for reading in term.reads}
    readings |= {TARGET_VELOCITY: target, SIGMA: torch.full(v.shape[:2], 0.5, dtype=v.dtype)}
    values, infos = term(readings, make_batch(torch.ones(v.shape[:2]), torch.tensor(advantages, dtype=v.dtype), {}, ids))
    return values, infos, torch.autograd.grad(values.sum(), live)[0]


def errors(rows, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, 1, 6, generator=generator, dtype=torch.float64) for _ in range(3)]


def test_what_all_errors_of_a_group_share_is_no_preference():
    """Where advantages add up to 0, a constant added to every error changes neither the sum nor the gradient."""
    v, ref, target = errors(3)
    term, more = GroupPreference(beta=20.0, clip=None), torch.zeros(3, 1, 6, dtype=torch.float64)
    more[:, :, 0] = 1.5
    wide, *others = (torch.cat([x, torch.zeros_like(x)], 2) for x in (v, ref, target))
    found = [
        preference(term, wide + torch.cat([torch.zeros_like(more), shift], 2), others[0], others[1], [1.5, -0.5, -1.0], [4, 4, 4])
        for shift in (0 * more, more)
    ]
    torch.testing.assert_close(found[0][1]["policy/disorder"], found[1][1]["policy/disorder"])
    torch.testing.assert_close(found[0][2][:, :, :6], found[1][2][:, :, :6])


def test_rejection_fine_tuning_is_matching_with_labels_for_advantages():
    """Of a group of one it is plain flow matching on the policy's own samples."""
    v, ref, target = errors(4)
    for labels, ids in (([0.0, 1.0, 1.0, 0.0], [0] * 4), ([1.0] * 4, [0, 1, 2, 3])):
        terms = (Matching(guidance=None), AdvantageMatching("uniform"))
        ours, theirs = (preference(term, v, ref, target, labels, ids)[2] for term in terms)
        wanted = torch.tensor(labels, dtype=v.dtype)[:, None, None] * 2 * (v - target) / 6
        torch.testing.assert_close(ours, wanted)
        torch.testing.assert_close(theirs, wanted)


@pytest.mark.parametrize("seed", range(3))
def test_scouts_in_all_steps_train_the_rows_of_best_of_n(seed):
    """But on means and deviations of these rows alone, where BestOfN has those of all."""
    rewards = torch.randn(12, generator=torch.Generator().manual_seed(seed))
    kept = BestOfN(6)(scores(rewards[:, None]), rollouts(torch.ones(12, 1), [0] * 12)).keep
    assert sorted(extremes(rewards.tolist(), 3, 3)) == kept.nonzero()[:, 0].tolist()


def test_a_reference_without_guidance_is_the_plain_one():
    """For a policy that has none."""
    term = FlowKL("velocity_mse", guidance=1.0)
    plain = replace(BASE, objective=((1.0, Clip(0.02, 0.02)), (0.1, replace(term, guidance=None))))
    guided = replace(plain, objective=(plain.objective[0], (0.1, term)))
    assert VELOCITY._replace(model="ref", guidance=1.0) in term.reads
    torch.testing.assert_close(trained(guided), trained(plain), atol=1e-6, rtol=1e-6)
