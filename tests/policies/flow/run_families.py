"""Rollouts, two updates and readings of models of several families, by two processes: KINDS OUT FOLDER..."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from mmrl.core.readings import EMA_LOGPROBS, LOGPROBS, REF_LOGPROBS
from mmrl.core.types import Request
from mmrl.training.checkpoints.state import copy_state
from tests.support.flow_policies import PLANS, make, prompts
from tests.support.launcher import Kind, accelerator_of, end, keep, kinds_in, renew

SIZES = ({}, {"width": 32, "height": 16}, {"width": 16, "height": 32})
"""Of the prompts: the first process has two sizes, the second one a third."""


def trained(kind: Kind, model: str, accelerator: Any, saved: Path) -> dict[str, Any]:
    """What this process reads after two updates on its share of the prompts, and the state that all hold."""
    world, rank = accelerator.num_processes, accelerator.process_index
    policy = make(model, ["ref", "ema"], lora=None, forward_rows=3)
    policy.prepare(accelerator)
    assert (type(policy.parameters()[0]).__name__ == "DTensor") == (kind == "sharded")
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-2)
    chosen = [replace(prompt, columns=size) for prompt, size in zip(prompts(), SIZES, strict=True)]
    requests = [Request(prompt, 4 - 2 * (i > 0), i, seed=7 + i) for i, prompt in enumerate(chosen)]
    mine = requests if world == 1 else requests[:2] if rank == 0 else requests[2:]
    rollouts = policy.rollout(mine, PLANS["flow_grpo"])
    for _ in range(2):
        optimizer.zero_grad()
        live = policy.read(rollouts.trace, [LOGPROBS], rollouts.action_mask)[LOGPROBS]
        accelerator.backward(-live.sum() / 20 * world)
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
    return {"rows": rows, "state": state}


def all_trained(kind: Kind, accelerator: Any, out: Path, models: Sequence[str]) -> dict[str, Any]:
    """What is read of each model, which is saved below `out`."""
    found = dict[str, Any]()
    for model in models:
        renew(accelerator)
        found[model] = trained(kind, model, accelerator, out / Path(model).name)
    return found


def main(kinds: str, out: str, *models: str) -> None:
    for kind in kinds_in(kinds):
        accelerator, folder = accelerator_of(kind), Path(out) / kind
        keep(accelerator, folder, all_trained(kind, accelerator, folder, models))
    end()


if __name__ == "__main__":
    main(*sys.argv[1:])
