"""Models of several families, and the first one with an adapter too: see tests/support/family_runs.py.

With an adapter the vision part, which does not train, looks at each prompt once.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from mmrl.core.types import Reading, Rollouts, Target
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.policy import Sampling, TextPolicy
from mmrl.policies.text.settings import TextTeacher
from tests.support.family_runs import run, trained
from tests.support.launcher import Kind, renew
from tests.support.text_policies import make, mixed, text_trace


def all_trained(kind: Kind, accelerator: Any, out: Path, models: Sequence[str]) -> dict[str, Any]:
    found = dict[str, Any]()
    for name, model, lora in [*((model, model, None) for model in models), ("adapter", models[0], LoraSettings(rank=2))]:
        renew(accelerator)
        torch.manual_seed(0)
        sampling = Sampling(max_new_tokens=12, stop=tuple("eaist"))
        checkpointing = "qwen3_vl" in Path(model).name
        teachers = () if lora is None else (TextTeacher("first", model=models[0], dtype="float32"),)
        policy = make(
            model, {"ref", "ema"}, sampling=sampling, lora=lora, gradient_checkpointing=checkpointing, teachers=teachers
        )
        # the third has no picture
        found[name], rollouts = trained(policy, kind, accelerator, mixed()[:3], out / Path(name).name)
        assert text_trace(rollouts.trace).packed
        assert lora is None or policy.net.features is not None
        if teachers:
            found[name]["rows"] |= compared(policy, accelerator, rollouts)
    return found


def compared(policy: TextPolicy, accelerator: Any, rollouts: Rollouts) -> dict[str, torch.Tensor]:
    """How far every group is from its teacher, the reference and the average; a process may have none of the pictures."""
    rows = dict[str, torch.Tensor]()
    for model in ("teacher", "ref", "ema"):
        reading = Reading("divergence", target=Target(model, beta=0.5))
        values = policy.read(rollouts.trace, [reading], rollouts.action_mask)[reading]
        accelerator.backward(values.sum())
        rows |= {f"{group.id} from {model}": values.detach()[rollouts.group_ids == group.id].sum() for group in rollouts.groups}
    return rows


if __name__ == "__main__":
    run(all_trained, *sys.argv[1:])
