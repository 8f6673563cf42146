"""Embeddings that rest on the host are the same rows, and their table stays when the model moves."""

import pytest
import torch
from torch import nn

from mmrl.lab.tiny.text.vlms import build
from mmrl.policies.shared.dry_run import size_of
from mmrl.policies.shared.quantized.layer import HostEmbedding, host_weights
from mmrl.policies.text.dry_run import meta_model
from mmrl.policies.text.settings import QuantizedSettings, TextPolicyConfig
from tests.policies.text.test_quantized import LORA, in_4_bits
from tests.support.text_policies import gradients, logprobs, make, mixed, relative_difference

HOST = QuantizedSettings(embeddings="host")


def test_rows_are_those_of_the_table_and_the_table_stays():
    table = nn.Embedding(5, 3)
    found = nn.Sequential(HostEmbedding(table), nn.Linear(3, 2))
    ids = torch.tensor([[4, 0], [2, 2]])
    assert torch.equal(found[0](ids), table(ids))
    found.to("meta")
    assert found[1].weight.is_meta and table.weight.device.type == "cpu"
    assert list(host_weights(found)) == [table.weight]
    found.to(torch.bfloat16)
    assert table.weight.dtype == torch.float32


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llava_onevision"])
def test_a_policy_reads_writes_and_learns_as_before(family: str, tmp_path):
    folder = str(build(family, tmp_path / family))
    far, near = in_4_bits(folder, quantized=HOST), in_4_bits(folder)
    rollouts = near.rollout(mixed())
    other = far.rollout(mixed())
    assert [one.token_ids for _, one in other.samples()] == [one.token_ids for _, one in rollouts.samples()]
    assert torch.equal(logprobs(far, rollouts), logprobs(near, rollouts))
    assert relative_difference(gradients(far, rollouts), gradients(near, rollouts)) == 0
    planned, _ = meta_model(far.config)
    assert size_of(host_weights(planned)) == size_of(host_weights(far.net.model)) > 0
    state = near.state_dict()
    far.load_state_dict(state)


def test_a_head_that_is_the_same_table_keeps_it_on_the_device(tmp_path):
    folder = str(build("gemma3", tmp_path / "gemma3"))
    with pytest.raises(ValueError, match=r"embeddings is 'host', and the head of policy.model .*gemma3' is the same table"):
        make(folder, weights="nf4", lora=LORA, quantized=HOST)
    with pytest.raises(ValueError, match=r"is the same table"):
        meta_model(TextPolicyConfig(folder, weights="nf4", lora=LORA, quantized=HOST))
