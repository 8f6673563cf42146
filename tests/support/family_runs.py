"""Rollouts, two updates and readings of models of several families, by one process and by two."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from mmrl.core.readings import EMA_LOGPROBS, LOGPROBS, REF_LOGPROBS
from mmrl.core.types import Request, Rollouts
from mmrl.training.checkpoints.state import copy_state
from tests.support.launcher import Kind, accelerator_of, both, end, keep, kinds_in

AllTrained = Callable[[Kind, Any, Path, Sequence[str]], dict[str, Any]]
"""What one process reads of each model, which is saved below a folder."""
Joined = Callable[[Kind, str], dict[str, Any]]
"""The readings of each process of a family's model, joined, and the state that all of them hold."""


def trained(
    policy: Any, kind: Kind, accelerator: Any, requests: Sequence[Request], saved: Path, plan: object = None
) -> tuple[dict[str, Any], Rollouts]:
    """What this process reads after two updates on its share of three prompts, and the state that all hold."""
    world, rank = accelerator.num_processes, accelerator.process_index
    policy.prepare(accelerator)
    assert (type(policy.parameters()[0]).__name__ == "DTensor") == (kind == "sharded")
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-2)
    mine = requests if world == 1 else requests[:2] if rank == 0 else requests[2:]
    rollouts = policy.rollout(mine, plan)
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
    return {"rows": rows, "state": state}, rollouts


def run(all_trained: AllTrained, kinds: str, out: str, *models: str) -> None:
    """One of two processes: KINDS OUT FOLDER..."""
    for kind in kinds_in(kinds):
        accelerator, folder = accelerator_of(kind), Path(out) / kind
        keep(accelerator, folder, all_trained(kind, accelerator, folder, models))
    end()


def joined(
    module: str, all_trained: AllTrained, tiny: Callable[[str], str], folder: Path
) -> Callable[[tuple[str, ...]], tuple[Path, Joined]]:
    """Families -> what they save, by kind, and their readings: by this process and two that `run` in this module, once each."""

    @cache
    def together(families: tuple[str, ...]) -> tuple[Path, Joined]:
        models = {family: tiny(family) for family in families}
        one = all_trained("one", Accelerator(cpu=True), folder / "one", list(models.values()))
        ran = {"one": [one], **both(module, folder, *models.values())}

        def of(kind: Kind, family: str) -> dict[str, Any]:
            parts = [part[models.get(family, family)] for part in ran[kind]]
            return {"rows": {name: value for part in parts for name, value in part["rows"].items()}, "state": parts[0]["state"]}

        return folder, of

    return together
