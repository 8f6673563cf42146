"""Copies of weights that rest on the CPU, and the state that one process alone builds, on a real policy."""

from pathlib import Path

import torch
from torch import Tensor

from mmrl.core.ranks import Ranks
from mmrl.core.types import Request
from mmrl.policies.shared.dry_run import tensors_in
from mmrl.training.checkpoints.save import Checkpoints
from tests.support.text_policies import make, prompts


def test_a_policy_whose_copies_rest_reads_the_same(tiny):
    read: list[Tensor] = []
    for place in ("device", "cpu"):
        policy = make(tiny("smolvlm"), {"ref"}, copies_on=place)
        rollouts = policy.rollout([Request(prompt, 1, i) for i, prompt in enumerate(prompts()[:2])])
        with torch.no_grad():
            for weight in policy.parameters():
                weight += 0.01
        reading = next(iter(rollouts.recorded))._replace(model="ref")
        read.append(policy.read(rollouts.trace, [reading], rollouts.action_mask)[reading])
        assert policy.weights.shadows["ref"].rest == place
    assert torch.equal(*read)


def test_the_state_of_the_second_process_holds_no_weights(tmp_path: Path, tiny):
    policy = make(tiny("smolvlm"))
    policy.ranks.rank = 1
    assert not list(tensors_in(policy.state_dict()))
    policy.ranks.rank = 0
    Checkpoints(tmp_path).save(1, {"index": 1, "policy": policy.state_dict()}, Ranks())
    loaded = Checkpoints(tmp_path).load(1)["policy"]["weights"]
    assert {name: x.shape for name, x in loaded.items()} == {name: x.shape for name, x in policy.weights.named.items()}
