"""The surroundings of every command that runs a model: processes, devices, the terminal."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

from mmrl.algorithms.algorithm import Algorithm
from mmrl.app.run.launch import end_together, open_accelerator
from mmrl.core.ranks import Ranks

RUNS = Path("runs")


console = Console(stderr=True, soft_wrap=True)


def updates(algorithm: Algorithm) -> str:
    """How often a step's rollouts are trained on: clip ranges and the learning rate mean something only together with it."""
    count = algorithm.epochs * algorithm.minibatches
    if count == 1:
        return "1 update per step: ratios are 1 there, so clipping has nothing to do"
    return f"{count} updates per step ({algorithm.minibatches} minibatches, {algorithm.epochs} passes), the first at ratio 1"


@contextmanager
def distributed_run() -> Iterator[tuple[Any, Ranks]]:
    """Accelerate's processes and devices, and warnings on the terminal; left by all processes together."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")
    from transformers.utils.logging import disable_progress_bar

    if not console.is_terminal:
        disable_progress_bar()
    accelerator = open_accelerator()
    ranks = Ranks(accelerator)
    if accelerator.device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        # What trains on a CPU is so small that threads cost more than they give.
        torch.set_num_threads(1)
    logger, handler = logging.getLogger("mmrl"), OnTerminal(logging.WARNING)
    if ranks.is_main:
        logger.addHandler(handler)
    try:
        with end_together(ranks):
            yield accelerator, ranks
            ranks.close()
    finally:
        logger.removeHandler(handler)


class OnTerminal(logging.Handler):
    """Warnings as yellow lines, above the progress bar where there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        console.print(f"{record.levelname.lower()}: {record.getMessage()}", style="yellow", markup=False, highlight=False)
