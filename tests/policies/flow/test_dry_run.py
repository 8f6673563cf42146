"""A dry run counts what the transformer would be asked, by the formulas that test_costs holds against a real one."""

from dataclasses import replace

import pytest
import torch

from mmrl.algorithms.planners.flow import Scouts
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.policies.flow.dry_run import FlowDryRun
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.trainer import Trainer
from tests.policies.flow.test_costs import FROZEN, PLAINLY, PRESETS, SCOUTS, SMALL, UNGUIDED, any_variety
from tests.support.flow_policies import counted, make, prompts


def trainer_of(policy, algorithm):
    settings = TrainSettings(steps=2, prompts_per_step=2, micro_batch=7, optimizer=OptimizerSettings(lr=1e-3))
    rewards = RewardRunner([NamedReward("any_variety", any_variety)])
    return Trainer(policy, algorithm, Shuffled(prompts(), seed=0), rewards, settings)


def counts_of(folder, algorithm, guidance):
    """The counts of a second step."""
    dry_run = FlowDryRun(FlowPolicyConfig(folder, 16, 16, guidance=guidance, max_prompt_tokens=3), algorithm.shadows)
    trainer = trainer_of(dry_run.policy, algorithm)
    trainer.step()
    dry_run.log.clear()
    trainer.step()
    return dry_run.log.counts


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_latents_that_the_transformer_would_see(tiny, name):
    schedule, images, rollout, trained = SMALL[name]
    algorithm = replace(PRESETS[name], schedule=schedule, group_size=images, minibatches=min(PRESETS[name].minibatches, images))
    for guidance in (1.0, 2.0) if name in UNGUIDED else (2.0,):
        counts = counts_of(tiny("sd3"), algorithm, guidance)
        each = 2 * int(guidance)
        told = (counts["rollout"].rows, counts["update"].rows, counts["read"].rows)
        # a reference that is read with guidance takes two forwards where the policy takes one
        guided = 2 * trained * (name in ("crd", "dgpo") and guidance == 1.0)
        own = 2 if name in PLAINLY else each
        update = own * trained * PLAINLY.get(name, images) // images
        assert told == (each * (rollout + SCOUTS.get(name, 0)), update, own * trained * FROZEN[name] + guided)


def test_sol_rl_whose_scouts_are_all_drawn_again_in_as_many_steps_is_diffusion_nft(tiny):
    schedule, images, _, _ = SMALL["diffusion_nft"]
    nft = replace(PRESETS["diffusion_nft"], schedule=schedule, group_size=images)
    found = []
    for planner in (nft.planner, Scouts(each=1, steps=5), Scouts(each=2, steps=5)):
        policy = make(tiny("sd3"), sorted(nft.shadows), guidance=1.0)
        trainer_of(policy, replace(nft, planner=planner)).step()
        found.append(torch.cat([weight.detach().flatten() for weight in policy.parameters()]))
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])


@pytest.mark.parametrize("name", ["flow_grpo", "diffusion_nft"])
def test_forwards_are_as_many_and_as_large_as_those_of_a_real_model(tiny, name):
    schedule, images, _, _ = SMALL[name]
    algorithm = replace(PRESETS[name], schedule=schedule, group_size=images, minibatches=min(PRESETS[name].minibatches, images))
    policy = make(tiny("sd3"), sorted(algorithm.shadows), guidance=2.0)
    trainer = trainer_of(policy, algorithm)
    trainer.step()
    with counted(policy) as seen:
        trainer.step()
    counts = counts_of(tiny("sd3"), algorithm, 2.0)
    assert (sum(count.passes for count in counts.values()), sum(count.rows for count in counts.values())) == (
        len(seen),
        sum(seen),
    )
