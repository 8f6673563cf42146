"""The changes under which rows are read again to find a cause."""

import pytest
import torch

from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Prompt, Request
from mmrl.policies.text.check.diagnose import CACHE
from mmrl.policies.text.policy import Sampling
from tests.support.text_policies import make, picture


@pytest.mark.parametrize(("temperature", "tried"), [(0.7, ["0.7", "1"]), (1.0, ["1"]), (0.0, ["1"])])
def test_rows_are_read_again_at_one_and_at_the_temperature_of_the_settings(tiny, temperature: float, tried: list[str]):
    policy = make(tiny("qwen3_vl"), sampling=Sampling(temperature=temperature, max_new_tokens=2))
    rollouts = policy.rollout([Request(Prompt("p", "where?", (picture(0),)), 1, 0)])
    changes = [hypothesis.change for hypothesis in policy.diagnostics.hypotheses(rollouts)]
    assert [change.removeprefix("at temperature ") for change in changes if change.startswith("at temperature")] == tried


def test_rows_are_decoded_again_where_layers_that_train_keep_no_activations(tiny):
    policy = make(tiny("qwen3_vl"), gradient_checkpointing=True, sampling=Sampling(max_new_tokens=3))
    rollouts = policy.rollout([Request(Prompt("p", "where?", (picture(0),)), 1, 0)])
    found = [one for one in policy.diagnostics.hypotheses(rollouts) if one.cause == CACHE]
    assert torch.is_grad_enabled() and len(found) == 1 and found[0].read is not None
    torch.testing.assert_close(found[0].read(), rollouts.recorded[ROLLOUT_LOGPROBS], atol=1e-5, rtol=0)
