"""The cost of every method in forwards: a counter at the transformer, and a dry run, against formulas written out by hand.

T steps, c = 2 passes with guidance else 1, w steps of a window, K branches: per image and multiplied by the images of a group.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.algorithms.advantages.flow import BestOfN
from mmrl.algorithms.advantages.tree import TreeNorm
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.planners.flow import Scouts
from mmrl.flow.schedules import Branching, Forward, Full, OneStep, RandomSubset, Tree, Window
from mmrl.flow.times import TimeSampler
from mmrl.policies.flow.dry_run import FlowDryRun
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.training.trainer import Trainer
from tests.support import faults
from tests.support.each import for_each
from tests.support.flow_costs import forwards
from tests.support.flow_policies import counted, make, prompts
from tests.support.presets import FLOW, WITH_TEACHERS

PRESETS = {name: one for name, one in FLOW.items() if name not in WITH_TEACHERS}
PLAINLY = {"flow_sft": 1, "flow_dpo": 2}
"""Those that read without guidance whatever the policy has, and how many samples of a group they train."""
SCOUTS = {"sol_rl": 16 * 6}
"""Forwards of the scouts of a group, which the schedule does not tell."""
GUIDED = {"crd": 1, "dgpo": 1}
"""Of these, those with two passes whatever the policy has."""
SMALL: dict[str, tuple[Any, int, int, int, int, tuple[float, float]]] = {
    # schedule, images of a group, forwards of its rollout, transitions that train; T = 5 and 4 images unless told;
    # other weights that read each of these: the reference, the old policy of DiffusionNFT, the average of AWM;
    # and, per image, the forwards of the rollout and the transitions that train of the preset's own settings, c = 1
    "flow_grpo": (Full(5), 4, 4 * 5, 4 * 4, 1, (10, 9)),
    "flow_grpo_fast": (Window(5, 2, "cps", 0.8, move="random", high=4), 4, 4 * 5, 4 * 2, 0, (10, 3)),
    "cps": (Full(5, "cps", 0.8), 4, 4 * 5, 4 * 4, 0, (10, 9)),
    "few_step": (Full(5, "cps", 1.0), 4, 4 * 5, 4 * 4, 0, (4, 3)),
    "grpo_guard": (Full(5), 4, 4 * 5, 4 * 4, 0, (10, 9)),
    "flow_dppo": (RandomSubset(5, (0, 1, 2), 2), 4, 4 * 5, 4 * 2, 0, (10, 3)),
    "flash_grpo": (OneStep(5, high=4), 4, 4 * 5, 4, 0, (20, 1)),
    "mix_grpo": (Window(5, 2, dwell=1, initial_noise="group"), 4, 4 * 5, 4 * 2, 0, (25, 4)),
    # last = 2 at the second step: last + 1 + n - 1 with n = int((10 - 2) 0.4) = 3
    # published: last = 3: 3 + 1 + int(22 * 0.4) - 1
    "mix_grpo_flash": (Window(10, 2, dwell=1, flash=0.4), 4, 4 * (2 + 1 + 3 - 1), 4 * 2, 0, (11, 4)),
    # one trunk: (T - 1) + K T (T - 1) / 2
    "temp_flow_grpo": (Branching(5, 2), 8, 4 + 2 * 5 * 4 // 2, 8, 1, (279 / 54, 1)),
    "dance_grpo": (Full(5, "dance_sde", 0.3, trained_per_row=2, initial_noise="group"), 4, 4 * 5, 4 * 2, 0, (16, 9)),
    # splits at 0 and 2: nodes that have children 1 + 2 + 2 + 4 + 4, edges 2 + 2 + 4 + 4 + 4
    "branch_grpo": (Tree(5, (0, 2)), 4, 13, 16, 0, (203 / 16, 218 / 16)),
    # the same tree, of which steps 0, 2 and (the window at the second step) 3 are noisy
    # published: splits 2 + 4 + 8 + 16, and steps 1 and 2 of the window
    "branch_mix_grpo": (Tree(5, (0, 2), window=(2, 1), window_every=1, last="ode"), 4, 13, 2 + 4 + 4, 0, (203 / 16, 34 / 16)),
    "unigrpo": (Window(5, 2, move="random", high=4), 4, 4 * 5, 4 * 2, 1, (25, 3)),
    "ddpo": (Full(5, "ddim", 1.0), 4, 4 * 5, 4 * 4, 0, (50, 49)),
    "vgpo": (Full(5, previews=True), 4, 4 * 5, 4 * 4, 1, (10, 9)),
    "pref_grpo": (Full(5, trained_per_row=3), 4, 4 * 5, 4 * 3, 0, (25, 14)),
    "diffusion_nft": (Forward(5, times=TimeSampler("rollout", count=3)), 4, 4 * 5, 4 * 3, 2, (10, 9)),
    "crd": (Forward(5, "ode", times=TimeSampler("uniform", count=3, shared=True)), 4, 4 * 5, 4 * 3, 2, (10, 20)),
    "dgpo": (Forward(5, times=TimeSampler("discrete", count=3, shared=True)), 4, 4 * 5, 4 * 3, 3, (10, 4)),
    "flow_sft": (Forward(5, "ode", times=TimeSampler("logit_normal", count=3)), 4, 4 * 5, 4 * 3, 0, (40, 1)),
    "flow_dpo": (Forward(5, "ode", times=TimeSampler("logit_normal", count=3, shared=True)), 4, 4 * 5, 4 * 3, 1, (40, 1)),
    "sol_rl": (Forward(5, times=TimeSampler("discrete", count=3)), 4, 4 * 5, 4 * 3, 2, (10, 6)),
    "awm": (Forward(5, "sa", 0.4, times=TimeSampler("discrete_wo_init", count=2)), 4, 4 * 5, 4 * 2, 2, (14, 6)),
}


def small(name: str) -> Algorithm:
    algorithm, (schedule, images, *_) = PRESETS[name], SMALL[name]
    return replace(algorithm, schedule=schedule, group_size=images, minibatches=min(algorithm.minibatches, images))


def trainer_of(policy: Any, algorithm: Algorithm, **settings: Any) -> Trainer:
    return faults.trainer_of(policy, algorithm, prompts(), prompts_per_step=2, micro_batch=7, **settings)


def counts_of(folder: str, algorithm: Algorithm, guidance: float) -> Any:
    """The counts of a dry run's second step."""
    dry_run = FlowDryRun(FlowPolicyConfig(folder, 16, 16, guidance=guidance, max_prompt_tokens=3), algorithm.shadows)
    trainer = trainer_of(dry_run.policy, algorithm)
    trainer.step()
    dry_run.log.clear()
    trainer.step()
    return dry_run.log.counts


def counted_step(policy: FlowPolicy, algorithm: Algorithm) -> dict[str, int]:
    """Latents the transformer saw in the second step of a run: while sampling, with a gradient, and under frozen weights."""
    seen: dict[str, int] = {"rollout": 0, "update": 0, "frozen": 0}
    sampling: list[bool] = []

    def note(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        kind = "rollout" if sampling else "update" if torch.is_grad_enabled() else "frozen"
        seen[kind] += len(kwargs["hidden_states"])

    rollout: Callable[..., Any] = policy.rollout

    def noticed(*args: Any) -> Any:
        sampling.append(True)
        try:
            return rollout(*args)
        finally:
            sampling.clear()

    policy.rollout = noticed  # type: ignore[method-assign]
    trainer = trainer_of(policy, algorithm, ratio_bound=1e-4)
    trainer.step()
    seen.update(dict.fromkeys(seen, 0))
    policy.net.transformer.register_forward_pre_hook(note, with_kwargs=True)
    trainer.step()
    return seen


UNGUIDED = ("flow_grpo", *GUIDED, *PLAINLY, *SCOUTS)
"""A second pass doubles what all others cost; of these it matters which forwards have one."""
PASSES = [(name, 2.0) for name in sorted(PRESETS)] + [
    pytest.param(name, 1.0, marks=() if name in UNGUIDED else pytest.mark.evidence) for name in sorted(PRESETS)
]


@pytest.mark.parametrize(("name", "guidance"), PASSES)
def test_a_step_costs_what_the_formulas_say(tiny, name, guidance):
    """In latents that the transformer sees, and would see by a dry run."""
    schedule, images, rollout, trained, others, _ = SMALL[name]
    algorithm, passes, groups = small(name), int(guidance), 2
    each, guided = passes * groups, GUIDED.get(name, 0)
    frozen = groups * trained * (passes * (others - guided) + 2 * guided)
    update = each * trained
    if name in PLAINLY:
        update, frozen = groups * trained * PLAINLY[name] // images, groups * trained * others
    expected = {"rollout": each * (rollout + SCOUTS.get(name, 0)), "update": update, "frozen": frozen}
    assert counted_step(make(tiny("sd3"), sorted(algorithm.shadows), guidance=guidance), algorithm) == expected
    counts = counts_of(tiny("sd3"), algorithm, guidance)
    assert [counts[kind].rows for kind in ("rollout", "update", "read")] == [*expected.values()]
    told = forwards(schedule.at(1), images, guided=guidance > 1, frozen_models=others)
    assert (told.rollout, told.update, told.frozen) == (passes * rollout, passes * trained, passes * trained * others)


@for_each("name", sorted(PRESETS))
def test_published_settings_cost_what_is_published(name):
    algorithm = PRESETS[name]
    assert algorithm.schedule is not None
    found = forwards(algorithm.schedule.at(0), algorithm.group_size)
    assert (found.rollout / found.images, found.update / found.images) == pytest.approx(SMALL[name][-1])


def test_best_of_n_trains_the_chosen_only(tiny):
    schedule = Full(4, "dance_sde", 0.3, trained_per_row=2, initial_noise="group")
    algorithm = replace(PRESETS["dance_grpo"], schedule=schedule, group_size=6, advantage=BestOfN(2), minibatches=1)
    found = counted_step(make(tiny("sd3"), guidance=1.0), algorithm)
    assert found == {"rollout": 2 * 6 * 4, "update": 2 * 2 * 2, "frozen": 0}


def test_pruned_branches_are_not_evaluated(tiny):
    tree = Tree(5, (0, 1))
    algorithm = replace(PRESETS["branch_grpo"], schedule=tree, group_size=4, minibatches=4)
    whole = counted_step(make(tiny("sd3"), guidance=1.0), algorithm)
    half = replace(algorithm, advantage=TreeNorm(kept_chains=0.5))
    pruned = counted_step(make(tiny("sd3"), guidance=1.0), half)
    late = counted_step(make(tiny("sd3"), guidance=1.0), replace(algorithm, schedule=replace(tree, pruned_depths=(4, 5))))
    # edges 2 + 4 + 4 + 4 + 4; after the last split half of 12; without the last two depths 10
    assert [found["update"] // 2 for found in (whole, pruned, late)] == [18, 12, 10]
    assert whole["rollout"] == pruned["rollout"] == 2 * (1 + 2 + 4 + 4 + 4)


def test_every_preset_is_counted():
    assert set(PRESETS) == set(SMALL)


def test_sol_rl_whose_scouts_are_all_drawn_again_in_as_many_steps_is_diffusion_nft(tiny):
    schedule, images, *_ = SMALL["diffusion_nft"]
    nft = replace(PRESETS["diffusion_nft"], schedule=schedule, group_size=images)
    found = []
    for planner in (nft.planner, Scouts(each=1, steps=5), Scouts(each=2, steps=5)):
        policy = make(tiny("sd3"), sorted(nft.shadows), guidance=1.0)
        trainer_of(policy, replace(nft, planner=planner)).step()
        found.append(torch.cat([weight.detach().flatten() for weight in policy.parameters()]))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


@pytest.mark.parametrize("name", ["flow_grpo", "diffusion_nft"])
def test_forwards_are_as_many_and_as_large_as_those_of_a_real_model(tiny, name):
    algorithm = small(name)
    policy = make(tiny("sd3"), sorted(algorithm.shadows), guidance=2.0)
    trainer = trainer_of(policy, algorithm)
    trainer.step()
    with counted(policy) as seen:
        trainer.step()
    counts = counts_of(tiny("sd3"), algorithm, 2.0)
    assert sum(count.passes for count in counts.values()) == len(seen)
    assert sum(count.rows for count in counts.values()) == sum(seen)
