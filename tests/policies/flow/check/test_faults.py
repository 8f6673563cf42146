"""Faults between sampling and training of an image generator: the run stops before its first update and names the cause."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from mmrl.algorithms.presets import PRESETS
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Rollouts
from mmrl.flow.dynamics import CPS
from mmrl.flow.plan import RolloutPlan
from mmrl.flow.schedules import Full, Window
from mmrl.policies.flow.check import diagnose as causes
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.trace import FlowTrace, Latents
from mmrl.training.stopping import TrainingStoppedError
from tests.support.faults import Fault, assert_named, guided, injected, traced, trainer_of, usual_faults
from tests.support.flow_policies import FAMILIES, make, prompts, requests, stir
from tests.support.refused import refused

ALGORITHM = replace(PRESETS["flow_grpo_fast"], schedule=Full(num_steps=4), group_size=3)


FAULTS = {
    **usual_faults(lambda policy: (policy.net.transformer.transformer_blocks[0], "ff"), stir),
    "sampling without guidance": Fault(causes.GUIDANCE, guided(1.0)),
    "training without guidance": Fault(causes.GUIDANCE, training=guided(1.0)),
    "training with odd guidance": Fault(causes.GUIDANCE, guided(3.37)),
    "prompts permuted in training": Fault(
        causes.PROMPT, record=traced(lambda trace: replace(trace, conditions=(*trace.conditions[1:], trace.conditions[0])))
    ),
    "times halved in training": Fault(causes.POSITIONS, record=traced(lambda x: replace(x, timesteps=x.timesteps / 2))),
    "times truncated in training": Fault(
        causes.POSITIONS, record=traced(lambda trace: replace(trace, timesteps=trace.timesteps.floor()))
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_every_fault_is_named(tiny, name):
    assert_named(make(tiny("sd3"), ["ema"]), ALGORITHM, prompts(), FAULTS[name], ratio_bound=1e-6)


@pytest.mark.parametrize("schedule", [Full(num_steps=4, last="ode"), Window(num_steps=5, size=2)], ids=["last", "window"])
def test_a_deterministic_step_under_a_ratio_is_named(tiny, schedule):
    """Its ratio is 1 always, so only the audit can see it."""

    def everything(policy: FlowPolicy, rollouts: Rollouts) -> Rollouts:
        return replace(rollouts, action_mask=torch.ones_like(rollouts.action_mask))

    policy = make(tiny("sd3"))
    trainer = trainer_of(policy, replace(ALGORITHM, schedule=schedule), prompts(), ratio_bound=1e-6)
    with (
        injected(policy, Fault("", record=everything)),
        pytest.raises(TrainingStoppedError, match=r"prompt '\w+', sample 0 of group \d: deterministic step under a ratio"),
    ):
        trainer.step()


def test_a_noiseless_step_that_trains_is_named(tiny):
    """The density of cps has no deviation in it, so nothing else would notice."""
    plan = Full(num_steps=4, dynamics="cps", level=0.5).at(0)
    object.__setattr__(plan.steps[1], "dynamics", CPS(0.0))
    policy = make(tiny("sd3"))
    trainer = trainer_of(policy, replace(ALGORITHM, schedule=Fixed(plan)), prompts(), ratio_bound=1e-6)
    refused("deterministic step under a ratio", trainer.step, error=TrainingStoppedError)


@dataclass(frozen=True)
class Fixed:
    """The same plan at every step."""

    plan: RolloutPlan

    def at(self, step: int) -> RolloutPlan:
        return self.plan


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.evidence)])
@pytest.mark.parametrize("family", FAMILIES)
def test_clean_runs_are_not_stopped(tiny, family, seed):
    policy = make(tiny(family), ["ema"], forward_rows=3)
    trainer = trainer_of(policy, ALGORITHM, prompts(), ratio_bound=1e-6, seed=seed, micro_batch=7, audit_steps=1)
    for _ in range(2):
        trainer.step()
    assert not trainer.reader.gate.closed


def other_size(rollouts: Rollouts) -> Rollouts:
    group = rollouts.groups[1]
    samples = (replace(group.samples[0], image=group.samples[0].image.resize((8, 8))), *group.samples[1:])
    return replace(rollouts, groups=(rollouts.groups[0], replace(group, samples=samples)))


def on_trace(change: Any) -> Any:
    return lambda rollouts: traced(change)(None, rollouts)  # type: ignore[arg-type]


def burst(trace: FlowTrace) -> FlowTrace:
    (latents,) = (part.clone() for part in trace.latents.parts)
    latents[trace.after[3, 0]] = torch.nan
    return replace(trace, latents=Latents((latents,)))


def nameless(rollouts: Rollouts) -> Rollouts:
    noted = rollouts.recorded[ROLLOUT_LOGPROBS].clone()
    noted[3, 0] = torch.nan
    return replace(rollouts, recorded={ROLLOUT_LOGPROBS: noted})


ROW = "prompt 'dogs', sample 0 of group 1: "
BROKEN: dict[str, tuple[Any, str]] = {
    "picture": (other_size, ROW + "its picture is 8 x 8 pixels, not 16 x 16 pixels"),
    "latents": (on_trace(burst), ROW + "its latents are not finite"),
    "shape": (
        on_trace(lambda trace: replace(trace, latents=Latents(tuple(part[..., :2] for part in trace.latents.parts)))),
        "latents are .*, but pictures of 16 x 16 pixels",
    ),
    "record": (nameless, ROW + "its noted log-probabilities are not finite"),
    "times": (
        on_trace(lambda trace: replace(trace, timesteps=trace.timesteps + 1)),
        ROW.replace("dogs", "cat").replace("1:", "0:") + "its timesteps are not those of its schedule",
    ),
    "prompts": (
        on_trace(lambda trace: replace(trace, prompt_index=1 - trace.prompt_index)),
        "prompt 'cat', sample 0 of group 0: the embeddings it is trained with are not those of its prompt",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_the_audit_names_the_row(tiny, name):
    policy, (change, message) = make(tiny("sd3")), BROKEN[name]
    assert ALGORITHM.schedule is not None
    rollouts = policy.rollout(requests(3), ALGORITHM.schedule.at(0))
    policy.audit(rollouts)
    refused(message, policy.audit, change(rollouts))
