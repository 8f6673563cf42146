"""Models of several families, whose prompts have other sizes: see tests/support/family_runs.py."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmrl.core.types import Request
from tests.support.family_runs import run, trained
from tests.support.flow_policies import PLANS, make, prompts
from tests.support.launcher import Kind, renew

SIZES = ({}, {"width": 32, "height": 16}, {"width": 16, "height": 32})
"""Of the prompts: the first process has two sizes, the second one a third."""


def all_trained(kind: Kind, accelerator: Any, out: Path, models: Sequence[str]) -> dict[str, Any]:
    chosen = [replace(prompt, columns=size) for prompt, size in zip(prompts(), SIZES, strict=True)]
    requests = [Request(prompt, 4 - 2 * (i > 0), i, seed=7 + i) for i, prompt in enumerate(chosen)]
    found = dict[str, Any]()
    for model in models:
        renew(accelerator)
        policy = make(model, ["ref", "ema"], lora=None, forward_rows=3)
        found[model], _ = trained(policy, kind, accelerator, requests, out / Path(model).name, PLANS["flow_grpo"])
    return found


if __name__ == "__main__":
    run(all_trained, *sys.argv[1:])
