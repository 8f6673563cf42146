"""Rollouts, two updates and readings of models of several families, by two processes: KINDS OUT FOLDER...

The first one also with an adapter, whose vision part, which does not train, looks at each prompt once.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mmrl.core.readings import EMA_LOGPROBS, LOGPROBS, REF_LOGPROBS
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.policy import Sampling
from mmrl.training.checkpoints.state import copy_state
from tests.support.launcher import Kind, accelerator_of, end, keep, kinds_in, renew
from tests.support.text_policies import logprobs, make, mixed, text_trace


def trained(kind: Kind, model: str, accelerator: Any, saved: Path, lora: LoraSettings | None = None) -> dict[str, Any]:
    """What this process reads after two updates on its share of the prompts, and the state that all hold."""
    world, rank = accelerator.num_processes, accelerator.process_index
    sampling = Sampling(max_new_tokens=12, stop=tuple("eaist"))
    torch.manual_seed(0)
    policy = make(model, {"ref", "ema"}, sampling=sampling, lora=lora, gradient_checkpointing="qwen3_vl" in Path(model).name)
    policy.prepare(accelerator)
    assert (type(policy.parameters()[0]).__name__ == "DTensor") == (kind == "sharded")
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-2)
    requests = mixed()[:3]  # the third has no picture
    mine = requests if world == 1 else requests[:2] if rank == 0 else requests[2:]
    rollouts = policy.rollout(mine)
    assert text_trace(rollouts.trace).packed
    for _ in range(2):
        optimizer.zero_grad()
        accelerator.backward(-logprobs(policy, rollouts).sum() / 20 * world)
        optimizer.step()
        policy.advance()
    readings = [LOGPROBS, REF_LOGPROBS, EMA_LOGPROBS]
    values = policy.read(rollouts.trace, readings, rollouts.action_mask)
    rows = {
        f"{group.id} {reading.model}": values[reading][rollouts.group_ids == group.id].detach().sum()
        for group in rollouts.groups
        for reading in readings
    }
    state = copy_state(policy.weights.state_dict())
    policy.load_state_dict(state)
    policy.save(saved)
    return {"rows": rows, "state": state, "kept": lora is not None and policy.net.features is not None}


def all_trained(kind: Kind, accelerator: Any, out: Path, models: Sequence[str]) -> dict[str, Any]:
    """What is read of each model, and of the first one with an adapter; they are saved below `out`."""
    found = dict[str, Any]()
    for model in models:
        renew(accelerator)
        found[model] = trained(kind, model, accelerator, out / Path(model).name)
    renew(accelerator)
    return {**found, "adapter": trained(kind, models[0], accelerator, out / "adapter", LoraSettings(rank=2))}


def main(kinds: str, out: str, *models: str) -> None:
    for kind in kinds_in(kinds):
        accelerator, folder = accelerator_of(kind), Path(out) / kind
        keep(accelerator, folder, all_trained(kind, accelerator, folder, models))
    end()


if __name__ == "__main__":
    main(*sys.argv[1:])
