"""The changes under which rows are read again to find a cause."""

import pytest

from mmrl.core.types import Prompt, Request
from mmrl.policies.text.policy import Sampling
from tests.support.text_policies import make, picture


@pytest.mark.parametrize(("temperature", "tried"), [(0.7, ["0.7", "1"]), (1.0, ["1"]), (0.0, ["1"])])
def test_rows_are_read_again_at_one_and_at_the_temperature_of_the_settings(tiny, temperature: float, tried: list[str]):
    policy = make(tiny("qwen3_vl"), sampling=Sampling(temperature=temperature, max_new_tokens=2))
    rollouts = policy.rollout([Request(Prompt("p", "where?", (picture(0),)), 1, 0)])
    changes = [hypothesis.change for hypothesis in policy.diagnostics.hypotheses(rollouts)]
    assert [change.removeprefix("at temperature ") for change in changes if change.startswith("at temperature")] == tried
