"""Questions that a flow policy cannot answer are refused, not answered by something else."""

import re

import pytest

from mmrl.core.readings import LOGPROBS
from mmrl.core.types import Reading
from mmrl.flow.schedules import Full
from tests.support.flow_policies import make, requests


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
