"""Two processes with prompts of different cost equal one: replicated (DDP) and sharded (FSDP2)."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.launcher import KINDS, Kind, results

SCRIPT = """
import sys
from pathlib import Path
import torch
from mmrl.core.readings import EMA_LOGPROBS, LOGPROBS, REF_LOGPROBS
from mmrl.core.types import Request
from tests.support.flow_policies import PLANS, make, prompts
from tests.support.launcher import accelerator_of, leave

kind, out, folder = sys.argv[1:]
accelerator = accelerator_of(kind)
world, rank = accelerator.num_processes, accelerator.process_index
policy = make(folder, ["ref", "ema"], lora=None, forward_rows=3)
policy.prepare(accelerator)
assert (type(policy.parameters()[0]).__name__ == "DTensor") == (kind == "sharded")
optimizer = torch.optim.SGD(policy.parameters(), lr=1e-2)
requests = [Request(prompt, 4 - 2 * (i > 0), i, seed=7 + i) for i, prompt in enumerate(prompts())]
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
rows = {f"{group.id} {reading.model}": values[reading][rollouts.group_ids == group.id].detach().sum()
        for group in rollouts.groups for reading in readings}
state = policy.state_dict()
policy.load_state_dict(state)
policy.save(Path(out) / "model")
leave(accelerator, out, {"rows": rows, "state": state})
"""


def run(kind: Kind, model: str, folder: Path) -> dict[str, Any]:
    """The readings of each process, joined, and the state that all of them hold."""
    script = folder / "run.py"
    script.write_text(SCRIPT)
    parts = results(script, kind, folder / kind, model)
    return {"rows": {name: value for part in parts for name, value in part["rows"].items()}, "state": parts[0]["state"]}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["sd3", "qwen_image"])
def test_two_processes_equal_one(tiny, family, tmp_path):
    one = run("one", tiny(family), tmp_path)
    for kind in KINDS:
        two = run(kind, tiny(family), tmp_path)
        torch.testing.assert_close(two, one, atol=5e-5, rtol=1e-4)
        saved = tmp_path / kind / "model" / "transformer" / "diffusion_pytorch_model.safetensors"
        assert saved.stat().st_size == (tmp_path / "one" / "model" / "transformer" / saved.name).stat().st_size
    assert one["rows"]["0 policy"] > one["rows"]["0 ema"] > one["rows"]["0 ref"]
