"""A model in 4 bits is the model with rounded weights and nothing else: the same numbers from every way of computing."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.shared.quantized.layer import nf4_layers
from mmrl.policies.text.policy import TextPolicy
from mmrl.policies.text.settings import QuantizedSettings, TextPolicyConfig
from tests.support.text_policies import FAMILIES, FP32_BOUND, gradients, logprobs, make, mixed, plain_model, relative_difference

LORA = LoraSettings(rank=4, alpha=8)


def in_4_bits(folder: str, **settings: Any) -> TextPolicy:
    return with_adapter(make(folder, weights="nf4", lora=LORA, **settings))


def with_adapter(policy: TextPolicy) -> TextPolicy:
    """The policy with an adapter that adds something, always the same."""
    numbers = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in sorted(policy.net.model.named_parameters()):
            if weight.requires_grad:
                weight.copy_(0.1 * torch.randn(weight.shape, generator=numbers))
    return policy


def rounded(folder: str, policy: TextPolicy, target: Path) -> str:
    """A folder of the model with the weights that codes stand for."""
    model, _ = plain_model(folder)
    with torch.no_grad():
        for name, layer in nf4_layers(policy.net.model):
            plain = name.removeprefix("base_model.model.").removesuffix(".base_layer")
            model.get_submodule(plain).weight.copy_(layer.whole(torch.float32))
    shutil.copytree(folder, target)
    model.save_pretrained(target)
    return str(target)


@pytest.mark.parametrize("family", FAMILIES)
def test_reads_writes_and_learns_as_the_rounded_model(tiny, family, tmp_path):
    policy = in_4_bits(tiny(family))
    twin = with_adapter(make(rounded(tiny(family), policy, tmp_path / "rounded"), lora=LORA))
    rollouts = policy.rollout(mixed())
    torch.testing.assert_close(rollouts.recorded[ROLLOUT_LOGPROBS], logprobs(policy, rollouts).detach(), atol=FP32_BOUND, rtol=0)
    torch.testing.assert_close(logprobs(policy, rollouts), logprobs(twin, rollouts), atol=1e-6, rtol=0)
    assert relative_difference(gradients(policy, rollouts), gradients(twin, rollouts)) < 1e-6
    with torch.no_grad():
        assert (logprobs(make(tiny(family), lora=LORA), rollouts) - logprobs(twin, rollouts)).abs().max() > 1e-3, "4 bits round"
