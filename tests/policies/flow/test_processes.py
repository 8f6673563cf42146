"""Two processes with prompts of different cost and size equal one: replicated (DDP) and sharded (FSDP2)."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.core.types import Request
from tests.support import family_runs
from tests.support.family_runs import Joined
from tests.support.flow_policies import PLANS, make, prompts
from tests.support.launcher import KINDS, Kind, renew

pytestmark = pytest.mark.slow
FAMILIES = ("wan_a14b",)
"""It has two networks; a process may have no rows for one of them, and must not keep the other waiting."""
MORE = ("sd3", "qwen_image")
"""In `make evidence`."""

SIZES = ({}, {"width": 32, "height": 16}, {"width": 16, "height": 32})
"""Of the prompts: the first process has two sizes, the second one a third."""


def all_trained(kind: Kind, accelerator: Any, out: Path, models: Sequence[str]) -> dict[str, Any]:
    chosen = [replace(prompt, columns=size) for prompt, size in zip(prompts(), SIZES, strict=True)]
    requests = [Request(prompt, 4 - 2 * (i > 0), i, seed=7 + i) for i, prompt in enumerate(chosen)]
    found = dict[str, Any]()
    for model in models:
        renew(accelerator)
        policy = make(model, ["ref", "ema"], lora=None, forward_rows=3)
        found[model], _ = family_runs.trained(policy, kind, accelerator, requests, out / Path(model).name, PLANS["flow_grpo"])
    return found


@pytest.fixture(scope="module")
def joined(tiny: Callable[[str], str], tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, Joined]]:
    """What these families save and their readings; they are trained together."""
    return family_runs.joined("tests.policies.flow.test_processes", all_trained, tiny, tmp_path_factory.mktemp("processes"))


def saved(folder: Path, model: str) -> dict[str, int]:
    """The networks' files and their sizes."""
    files = (folder / Path(model).name).glob("transformer*/diffusion_pytorch_model.safetensors")
    return {file.parent.name: file.stat().st_size for file in files}


@pytest.mark.parametrize(
    ("families", "family"),
    [*((FAMILIES, one) for one in FAMILIES), *(pytest.param(MORE, one, marks=pytest.mark.evidence) for one in MORE)],
)
def test_two_processes_equal_one(tiny: Callable[[str], str], joined: Any, families: tuple[str, ...], family: str):
    folder, of = joined(families)
    one = of("one", family)
    for kind in KINDS:
        torch.testing.assert_close(of(kind, family), one, atol=5e-5, rtol=1e-4)
        assert saved(folder / kind, tiny(family)) == saved(folder / "one", tiny(family)) != {}
    assert len(saved(folder / "one", tiny(family))) == (2 if family == "wan_a14b" else 1)
    assert one["rows"]["0 policy"] > one["rows"]["0 ema"] > one["rows"]["0 ref"]


if __name__ == "__main__":
    family_runs.run(all_trained, *sys.argv[1:])
