"""Runs of several stages in tests: processes that are killed, and whether two runs are one."""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from mmrl.app.run.folder import RunDir
from mmrl.training.callbacks import Callback, Examples
from tests.support.forked import run


class Killer(Callback):
    """Kills the process at the end of a step, before its checkpoint."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, step: int, metrics: Mapping[str, float], examples: Examples | None) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(module: str, folder: Path, step: int, resume: bool = False, chain: str = "resolved") -> None:
    """Train the chain that a function of a test module gives in a process that is killed after this step."""
    program = (
        "import sys; from pathlib import Path; from mmrl.app.commands.train import run_job; "
        f"from {module} import {chain} as resolved; from tests.support.chains import Killer; "
        "folder, step, resume = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == 'True'; "
        "run_job(resolved(folder), folder if resume else None, watchers=lambda config: [Killer(step)])"
    )
    done = run("-c", program, str(folder), str(step), str(resume))
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]


def lines(run: RunDir) -> list[dict[str, Any]]:
    """What the run measured, without times."""
    read = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in read]


def same(one: Any, other: Any) -> bool:
    """Are two states equal bit for bit?"""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)
