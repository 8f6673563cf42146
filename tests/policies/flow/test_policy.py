"""Questions that a flow policy cannot answer are refused, not answered by something else."""

import re
from dataclasses import replace

import pytest
import torch

from mmrl.core.readings import LOGPROBS
from mmrl.core.types import Reading
from mmrl.flow.dynamics import DPM2, ODE
from mmrl.flow.plan import RolloutPlan, StepPlan
from mmrl.flow.schedules import Full
from tests.support.flow_policies import LORA, latents, make, requests


@pytest.mark.parametrize("lora", [LORA, None])
@pytest.mark.parametrize("solver", [ODE(), DPM2()])
def test_the_base_may_finish_what_trained_weights_began(tiny, lora, solver):
    """From the first step on it is the base, from behind the last one it is not there."""
    policy = make(tiny("sd3"), ["ref"], lora=lora)
    steps, asked = (StepPlan(solver),) * 4, requests(count=1)
    tuned, base = (
        latents(policy, [replace(one, model=model) for one in asked], RolloutPlan(steps)) for model in ("policy", "ref")
    )
    mixed = [latents(policy, asked, RolloutPlan(steps, base_from=first)) for first in (0, 2, 4)]
    assert torch.equal(mixed[0], base) and torch.equal(mixed[2], tuned)
    assert min(float((mixed[1] - end).abs().max()) for end in (tuned, base)) > 1e-4
    assert torch.equal(latents(policy, asked, RolloutPlan(steps)), tuned), "the trained weights are back"
    with pytest.raises(ValueError, match=r'base_from .*shadows = \["ref"\]'):
        make(tiny("sd3")).rollout(asked, RolloutPlan(steps, base_from=2))


def test_readings_nobody_offers_are_refused(tiny):
    policy = make(tiny("sd3"))
    rollouts = policy.rollout(requests(1, 1), Full(num_steps=2).at(0))
    assert policy.read(rollouts.trace, [LOGPROBS], rollouts.action_mask)[LOGPROBS].shape == (1, 2)
    wrong = [
        (LOGPROBS._replace(view="masked"), "view 'masked'"),
        (LOGPROBS._replace(model="ref"), "model 'ref'"),
        (Reading("entropy"), "quantity 'entropy'"),
        (Reading("velocity", "old"), "model 'old'"),
    ]
    for reading, named in wrong:
        with pytest.raises(ValueError, match=re.escape(f"{named} cannot be read from this flow policy")):
            policy.read(rollouts.trace, [reading], rollouts.action_mask)
