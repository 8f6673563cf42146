"""Configs of small image generators, shared by the tests of the commands."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved
from mmrl.app.run.build import Job
from mmrl.lab.models import tiny_model
from tests.support.trainers import weights

Make = Callable[..., Resolved]
SMALL = {
    "flow_grpo": ["group_size=4", "schedule.num_steps=4"],
    "flow_grpo_fast": ["group_size=4", "schedule.num_steps=6", "schedule.size=2", "schedule.high=4"],
    "cps": ["group_size=4", "schedule.num_steps=4"],
    "few_step": ["group_size=4", "schedule.num_steps=4"],
    "grpo_guard": ["group_size=4", "schedule.num_steps=4"],
    "flow_dppo": ["group_size=4", "schedule.num_steps=4", "schedule.candidates=[0, 1, 2]", "schedule.count=2"],
    "flash_grpo": ["group_size=4", "schedule.num_steps=4", "schedule.high=3"],
    "mix_grpo": ["group_size=4", "schedule.num_steps=6", "schedule.size=2"],
    "mix_grpo_flash": ["group_size=4", "schedule.num_steps=8", "schedule.size=2"],
    "temp_flow_grpo": ["group_size=8", "schedule.num_steps=4", "schedule.branches=2", "schedule.at_steps=[0, 1]"],
    "dance_grpo": ["group_size=4", "schedule.num_steps=5", "schedule.trained_per_row=2"],
    "branch_grpo": ["group_size=4", "schedule.num_steps=5", "schedule.split_steps=[0, 2]"],
    "branch_mix_grpo": ["group_size=4", "schedule.num_steps=6", "schedule.split_steps=[0, 2]", "schedule.window=[1, 2]"],
    "unigrpo": ["group_size=4", "schedule.num_steps=6", "schedule.size=2", "schedule.high=4"],
    "ddpo": ["group_size=4", "schedule.num_steps=4", "advantage.size=4", "advantage.least=4"],
    "vgpo": ["group_size=4", "schedule.num_steps=4", "advantage.weigh=false"],
    "pref_grpo": ["group_size=4", "schedule.num_steps=4", "schedule.trained_per_row=2", "needs_rewards=[]"],
    "sol_rl": ["group_size=4", "schedule.num_steps=5", "schedule.times.count=3", "planner.each=2", "planner.steps=2"],
    "diffusion_nft": ["group_size=4", "schedule.num_steps=5", "schedule.times.count=3"],
    "crd": ["group_size=4", "schedule.num_steps=5", "schedule.times.count=3"],
    "dgpo": ["group_size=4", "schedule.num_steps=5", "schedule.times.count=3"],
    "flow_sft": ["group_size=4", "schedule.num_steps=5"],
    "flow_dpo": ["group_size=4", "schedule.num_steps=5"],
    "diffusion_opd": ["group_size=1", "schedule.num_steps=4"],
    "awm": ["group_size=4", "schedule.num_steps=6", "schedule.times.count=2"],
}
"""Overrides under `algorithm` that make a preset cheap."""
ALONE = sorted(SMALL.keys() - {"diffusion_opd"})
"""Presets that need no adapter of another run."""
FAMILIES = {"sd3": 3, "flux": 24, "qwen_image": 40}
"""Family -> max_prompt_tokens of its tiny pipeline."""
LATE_FAMILIES = {"z_image": 40, "flux2": 128, "flux2_klein": 40, "sana": 24, "sd15": 77, "sdxl": 77}
LATE_FAMILIES |= {"krea2": 40, "chroma": 24, "lumina2": 200, "qwen_image21": 40}
"""The newer ones, and Stable Diffusion's older ones."""


def with_preset(make: Make, name: str, *words: str) -> Resolved:
    """The tiny config with another preset, made cheap, in place of its own algorithm."""
    resolved = make()
    resolved.table.set(("algorithm",), {"preset": name}, "test")
    return configs.resolve(resolved.table, [*(f"algorithm.{word}" for word in SMALL[name]), *words])


def train_steps(job: Job, count: int = 1) -> list[dict[str, float]]:
    """The metrics of steps whose loss and gradient are finite, and which move the weights."""
    before, metrics = weights(job), [job.trainer.step() for _ in range(count)]
    assert all(math.isfinite(one[name]) for one in metrics for name in ("loss", "policy/grad_norm"))
    assert not torch.equal(before, weights(job))
    return metrics


def loaded_by_card(folder: Path, *models: str) -> Any:
    """The pipeline that the code on an export's card loads; tiny models on it are looked up."""
    code = (folder / "README.md").read_text().split("```python\n")[1].split("```")[0].replace("THIS_FOLDER", str(folder))
    for model in models:
        code = code.replace(model, str(tiny_model(model, "flow")))
    names: dict[str, Any] = {}
    exec(code, names)
    return names["pipeline"]


def of_family(family: str) -> list[str]:
    """Overrides for another tiny pipeline, with guidance and an adapter."""
    tokens = (FAMILIES | LATE_FAMILIES)[family]
    words = [f"policy.model=tiny:{family}", f"policy.max_prompt_tokens={tokens}", "policy.guidance=2.0", "policy.lora.rank=2"]
    # Its smallest side.
    return [*words, "policy.width=32", "policy.height=32"] if family == "qwen_image21" else words
