"""Two processes with prompts of different cost equal one: replicated (DDP) and sharded (FSDP2)."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

SCRIPT = """
import os, sys
import torch
torch.set_num_threads(1)
from accelerate import Accelerator
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType, FullyShardedDataParallelPlugin
from mmrl.core.types import Reading, Request
from tests.policies_flow.helpers import LOGPROBS, PLANS, batch_of, make, prompts

kind, folder, out = sys.argv[1:]
if kind == "sharded":
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2, auto_wrap_policy="transformer_based_wrap")
    accelerator = Accelerator(cpu=True, fsdp_plugin=plugin)
    # accelerate has no FSDP on a CPU unless told so.
    for state in (AcceleratorState, PartialState):
        state._shared_state["distributed_type"] = DistributedType.FSDP
    accelerator.state.fsdp_plugin = plugin
else:
    accelerator = Accelerator(cpu=True)
world, rank = accelerator.num_processes, accelerator.process_index
assert world == (1 if kind == "one" else 2)
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
readings = [LOGPROBS, Reading("logprobs", "ref"), Reading("logprobs", "ema")]
values = policy.read(rollouts.trace, readings, rollouts.action_mask)
rows = {f"{group.id} {reading.model}": values[reading][rollouts.group_ids == group.id].detach().sum()
        for group in rollouts.groups for reading in readings}
state = policy.state_dict()
policy.load_state_dict(state)
policy.save(out + ".model")
torch.save({"rows": rows, "state": state}, f"{out}.{rank}")
accelerator.wait_for_everyone()
os._exit(0)  # gloo's threads sometimes abort the interpreter's own farewell on a busy machine
"""


def run(kind: str, model: str, folder: Path) -> dict[str, Any]:
    """What each process read, joined, and the state all of them hold."""
    script, out = folder / "run.py", folder / kind
    script.write_text(SCRIPT)
    launch = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0"]
    argv = [sys.executable, *([] if kind == "one" else launch), str(script), kind, model, str(out)]
    environment = {**os.environ, "PYTHONPATH": os.getcwd(), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    parts = [torch.load(path, weights_only=True) for path in sorted(folder.glob(f"{kind}.[01]"))]
    return {"rows": {name: value for part in parts for name, value in part["rows"].items()}, "state": parts[0]["state"]}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["sd3", "qwen_image"])
def test_two_processes_equal_one(tiny, family, tmp_path):
    one = run("one", tiny(family), tmp_path)
    for kind in ("replicated", "sharded"):
        two = run(kind, tiny(family), tmp_path)
        torch.testing.assert_close(two, one, atol=5e-5, rtol=1e-4)
        saved = tmp_path / f"{kind}.model" / "transformer" / "diffusion_pytorch_model.safetensors"
        assert saved.stat().st_size == (tmp_path / "one.model" / "transformer" / saved.name).stat().st_size
    assert one["rows"]["0 policy"] > one["rows"]["0 ema"] > one["rows"]["0 ref"]
