"""A Chrome trace of some steps of a run: what the process did when, with the spans of mmrl.runtime.spans as named bars."""

import logging
import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from mmrl.runtime.spans import recorded_spans

log = logging.getLogger("mmrl")
LONGEST = 10
"""Steps of one trace; one step of a tiny model on a CPU is some megabytes already."""


@dataclass(frozen=True)
class StepRange:
    """The steps first, first + 1, ..., last, counted from 1 over the whole run."""

    first: int
    last: int

    @classmethod
    def read(cls, text: str, total: int, done: int = 0) -> "StepRange":
        """`3` or `3-5`, in a run of `total` steps of which `done` are done.

        Raises ValueError where it is neither, too long for one trace, or names steps that this run will not take.
        """
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", text.strip())
        if match is None:
            raise ValueError(f"--profile is {text!r}: write a step such as 3, or several such as 3-5")
        steps = cls(int(match[1]), int(match[2] or match[1]))
        if not 1 <= steps.first <= steps.last:
            raise ValueError(f"--profile is {text!r}: steps count from 1, and the first one is not after the last")
        if steps.last > total:
            raise ValueError(f"--profile is {text!r}, but the run ends after step {total}: choose earlier ones, or raise `steps`")
        if steps.first <= done:
            raise ValueError(f"--profile is {text!r}, but the run goes on after step {done}: choose steps from {done + 1} on")
        if steps.last - steps.first >= LONGEST:
            raise ValueError(f"--profile is {text!r}: a trace of more than {LONGEST} steps is too large to open, choose fewer")
        return steps

    def __str__(self) -> str:
        return f"step {self.first}" if self.first == self.last else f"steps {self.first}-{self.last}"


class Profile:
    """Records steps of one process, with the evaluations and checkpoints that follow them; without steps it does nothing.

    A process's first step warms libraries up and is slower than others: choose a later one. What other threads compute is not
    in the trace: rewards beside sampling, the writing of checkpoints.
    """

    def __init__(self, steps: StepRange | None = None, folder: Path = Path(), process: int | None = None) -> None:
        """`folder` is made when there is something to write; `process` numbers the file where a run has several."""
        self.steps = steps
        number = "" if process is None else f"-process-{process}"
        self.file = folder / f"{str(steps).replace(' ', '-')}{number}.json.gz"
        self.is_written = False
        self._recording: ExitStack | None = None
        self._profiler: profile | None = None

    def reach(self, step: int) -> None:
        """To be called before every step: starts recording at the first wanted step, ends after the last."""
        if self.steps is None:
            return
        if step == self.steps.first:
            activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
            with ExitStack() as stack:
                self._profiler = stack.enter_context(profile(activities=activities))
                stack.enter_context(recorded_spans())
                self._recording = stack.pop_all()
        elif step > self.steps.last:
            self.close()

    def close(self) -> None:
        """Write what was recorded, if anything was; a failure to write the trace does not end the run."""
        if self._recording is None or self._profiler is None:
            return
        self._recording.close()
        self._recording = None
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            self._profiler.export_chrome_trace(str(self.file))
            self.is_written = True
        except (OSError, RuntimeError) as error:
            log.warning("no trace of %s: %s cannot be written (%s)", self.steps, self.file, error)
        self._profiler = None
