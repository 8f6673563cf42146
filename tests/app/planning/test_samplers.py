"""The memory of a process that draws beside the trainer: the weights and sampling, and nothing that training needs."""

import json
from typing import Any

import pytest
import torch

from mmrl.app.commands import plan
from mmrl.app.commands.options import PlanArguments
from mmrl.app.config.run import load
from mmrl.app.fit.plan import Plan, draw_up
from mmrl.app.planning.memory import CONTEXT, GIB, WRITTEN
from mmrl.app.run.build import build
from mmrl.policies.shared.dry_run import size_of

WORDS = ["cluster.samplers=2", "ahead=1", "policy.lora.rank=2"]


@pytest.fixture(scope="module")
def made() -> Plan:
    return draw_up(load("tiny/flow", WORDS), on_card=True)


def test_a_sampler_holds_the_weights_of_a_real_policy_and_no_more(made: Plan):
    policy: Any = build(load("tiny/flow", WORDS[-1:])).policy
    networks = [part for part in policy.pipeline.components.values() if isinstance(part, torch.nn.Module)]
    assert made.sampler is not None
    assert sum(made.sampler.stays.values()) == pytest.approx(sum(size_of(one.parameters()) for one in networks), rel=0.01)
    trained, trainer = size_of(policy.parameters()), made.memory
    # gradient, two of AdamW, and three copies of the steps in flight
    assert sum(trainer.stays.values()) - sum(made.sampler.stays.values()) == 6 * trained
    assert made.sampler.phases == {name: trainer.phases[name] for name in ("rollout", "decode")}
    assert made.sampler.peak < trainer.peak


def test_samplers_that_share_the_trainers_card_are_counted_there(made: Plan):
    drains = ["ahead_drain=true", "save_every=2"]
    shared = draw_up(load("tiny/flow", [*WORDS, "cluster.samplers_share=true", *drains]), on_card=True)
    assert made.sampler is not None and shared.sampler is not None
    assert shared.memory.peak - made.memory.peak == 2 * (made.sampler.peak + CONTEXT)
    assert shared.sampler.peak == made.sampler.peak
    weights = made.memory.stays["gradients"]
    assert made.memory.host[WRITTEN] - shared.memory.host[WRITTEN] == weights, "with no step in flight none is kept for one"


def test_a_plan_says_it(capsys: pytest.CaptureFixture[str]):
    assert plan.plan(PlanArguments(["tiny/flow", *WORDS], card="24GB"))
    said = " ".join(capsys.readouterr().out.split())
    assert said.count("gradients") == 1 and "memory of a sampler, on a card of its own" in said
    assert not plan.plan(PlanArguments(["tiny/flow", *WORDS, "cluster.samplers_share=true"], card="1.2GB"))
    assert "2 sampler(s) that share it" in capsys.readouterr().out
    plan.plan(PlanArguments(["tiny/flow", *WORDS], card="24GB", as_json=True))
    sampler = json.loads(capsys.readouterr().out)["sampler"]
    assert 0 < sampler["peak"] < GIB and "gradients" not in sampler["stays"]
    plan.plan(PlanArguments(["tiny/flow"], card="24GB"))
    assert "sampler" not in capsys.readouterr().out
