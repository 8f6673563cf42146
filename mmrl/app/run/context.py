"""The surroundings of every command that runs a model: processes, devices, the terminal."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.surrogates import Clip
from mmrl.app.config.algorithm import Assembly, preset
from mmrl.app.errors import Terminal, brief, start
from mmrl.app.run.launch import end_together, open_accelerator
from mmrl.core.hooks import TermHooks, with_hooks
from mmrl.core.protocols import Term
from mmrl.core.ranks import Ranks
from mmrl.runtime.net.secrets import hide_in_record

RUNS = Path("runs")

console = Terminal(stderr=True, soft_wrap=True)


def updates(algorithm: Algorithm) -> str:
    """How often a step's rollouts are trained on: clip ranges and the learning rate mean something only together with it."""
    has_ratios = any(with_hooks(term, TermHooks).at_first_update for _, term in algorithm.objective)
    if algorithm.updates == 1:
        return "1 update per step" + (": ratios are 1 there, so clipping has nothing to do" if has_ratios else "")
    return f"{algorithm.updates} updates per step ({passes_of(algorithm)})" + (", the first at ratio 1" if has_ratios else "")


def passes_of(algorithm: Algorithm) -> str:
    """`2 minibatches, 1 pass`."""
    return f"{count_of(algorithm.minibatches, 'minibatch', 'es')}, {count_of(algorithm.epochs, 'pass', 'es')}"


def count_of(number: int, thing: str, ending: str = "s") -> str:
    """`1 pass`, `2 passes`."""
    return f"{number} {thing}{ending if number != 1 else ''}"


def idle_terms(made: Assembly) -> str | None:
    """The warning for an objective that is nothing but plain policy gradient because a step takes one update; else None.

    Presets whose paper takes one update are left alone, as long as their objective is made of the preset's kinds of terms.
    """
    published, idle = preset(made.preset), unmeant(made)
    if not idle:
        return None
    what = " and ".join(f"{type(term).__name__} is {with_hooks(term, TermHooks).at_first_update}" for term in idle)
    count, source = "2 minibatches or more", ""
    if published.updates > 1:
        count, source = passes_of(published), f" (preset {made.preset})"
    return (
        f"this objective acts only from the second update on, and a step takes one, where {what}: take {count}{source} with "
        "algorithm.minibatches and algorithm.epochs"
    )


def unmeant(made: Assembly) -> list[Term]:
    """The terms that one update per step leaves idle, one of each kind; not those that the preset's paper leaves so."""
    published = preset(made.preset)
    meant = {type(term) for _, term in published.objective} if published.updates == 1 else set[type]()
    return list({type(term): term for term in made.algorithm.idle_terms if type(term) not in meant}.values())


def refuse_idle_methods(*algorithms: Assembly) -> None:
    """Raise ValueError for an objective whose own term is nothing but plain policy gradient, because a step takes one update.

    `idle_terms` warns of the usual clip of single actions: the other parts of a method with it act all the same. Rows of earlier
    steps have a ratio at the first update.
    """
    for made in algorithms:
        own = [term for term in unmeant(made) if not (isinstance(term, Clip) and term.level == "action")]
        if own and not made.algorithm.replays:
            raise ValueError(idle_terms(made))


@contextmanager
def distributed_run() -> Iterator[tuple[Any, Ranks]]:
    """Accelerate's processes and devices, and warnings on the terminal; left by all processes together."""
    start.end()
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
    logger.addFilter(hide_in_record)
    if ranks.is_main:
        logger.addHandler(handler)
    try:
        with end_together(ranks):
            yield accelerator, ranks
            ranks.close()
    finally:
        logger.removeHandler(handler)
        logger.removeFilter(hide_in_record)


class OnTerminal(logging.Handler):
    """Warnings as yellow lines, above the progress bar where there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        console.print(f"{record.levelname.lower()}: {brief(record.getMessage())}", style="yellow")


def is_ours(record: logging.LogRecord) -> bool:
    """Does mmrl say it? What it says of a model, such as that its Python files run, is never kept back."""
    return record.name.partition(".")[0] == "mmrl"


@contextmanager
def hushed_saving() -> Iterator[None]:
    """Keep libraries' progress bars and remarks off the terminal, where a model is saved that takes no time."""
    from diffusers.utils import logging as drawing
    from transformers.utils import logging as words

    bars = [one for one in (words, drawing) if one.is_progress_bar_enabled()]
    for one in bars:
        one.disable_progress_bar()
    # not by a logger's level, which libraries set when they are imported
    loggers = [logging.root, *(one for one in logging.root.manager.loggerDict.values() if isinstance(one, logging.Logger))]
    handlers = [handler for one in loggers for handler in one.handlers]
    handlers += [] if logging.lastResort is None else [logging.lastResort]
    for handler in handlers:
        handler.addFilter(is_ours)
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            yield
    finally:
        for handler in handlers:
            handler.removeFilter(is_ours)
        for one in bars:
            one.enable_progress_bar()
