"""One run of a contest: train as long as its compute suffices, evaluate at even marks, go on where a killed process left off."""

import json
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved
from mmrl.app.errors import is_for_people, sentence
from mmrl.app.files import replace_text
from mmrl.app.run.build import Job, build
from mmrl.app.run.context import distributed_run
from mmrl.app.run.folder import read_lines
from mmrl.core.ranks import Ranks
from mmrl.runtime.disk import whole_file
from mmrl.runtime.repeating import deterministic
from mmrl.training.checkpoints.save import Checkpoints

Clock = Callable[[], float]


@dataclass(frozen=True)
class Point:
    """A run's result on held-out prompts after some seconds of training and some steps."""

    seconds: float
    step: int
    metrics: Mapping[str, float]
    is_last: bool = False
    """True: the compute does not suffice for another step."""


@dataclass(frozen=True)
class Lane:
    """The folder of one run: its config, a line per evaluation, and a checkpoint as long as it is not finished."""

    folder: Path
    label: str
    seed: int

    @property
    def points_file(self) -> Path:
        return self.folder / "points.jsonl"

    @property
    def checkpoints(self) -> Checkpoints:
        return Checkpoints(self.folder / "checkpoints")

    def points(self) -> list[Point]:
        """The evaluations so far; a torn last line counts for nothing."""
        lines = read_lines(self.points_file).lines if self.points_file.exists() else []
        return [Point(line["seconds"], line["step"], line["metrics"], line.get("last", False)) for line in lines]

    def failure(self) -> str:
        """Why the run ended before its compute was spent; empty where it did not."""
        file = self.folder / "failed.txt"
        return file.read_text(encoding="utf-8") if file.exists() else ""

    def is_finished(self, budget_s: float) -> bool:
        points = self.points()
        return bool(self.failure()) or (bool(points) and (points[-1].is_last or points[-1].seconds >= budget_s))

    def seconds_left(self, budget_s: float) -> float:
        points = self.points()
        return 0.0 if self.is_finished(budget_s) else budget_s - (points[-1].seconds if points else 0.0)

    def add(self, point: Point) -> None:
        """Write one more evaluation, safe on disk when this returns."""
        line = {"seconds": round(point.seconds, 3), "step": point.step, "metrics": dict(point.metrics), "last": point.is_last}
        text = self.points_file.read_text(encoding="utf-8") if self.points_file.exists() else ""
        whole = text[: text.rfind("\n") + 1]
        replace_text(self.points_file, f"{whole}{json.dumps(line)}\n")

    def begin(self, resolved: Resolved) -> None:
        """Make the folder; ValueError if it holds a run with other settings."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / "config.toml"
        with whole_file(file) as fresh:
            configs.save(resolved.config, fresh)
            if file.exists() and file.read_bytes() != fresh.read_bytes() and self.points():
                raise ValueError(
                    f"{self.folder} holds a run of {self.label} with other settings: choose another --output, or remove that "
                    "folder to run it anew"
                )


@dataclass
class Stint:
    """The work on one lane in this process."""

    lane: Lane
    resolved: Resolved
    budget_s: float
    marks: int
    start: Point | None
    """The evaluation of the weights that all runs begin from, if it is known already."""
    spent: float = field(default=0.0, init=False)
    step_s: float = field(default=0.0, init=False)
    """Seconds that another step will take, as far as is known: those of the step before."""

    @property
    def has_time(self) -> bool:
        """Will another step end within the budget? The first one is always made."""
        return self.spent + self.step_s <= self.budget_s

    def run(self) -> None:
        """Train as long as the compute suffices. A failure that is the method's is written down and ends the lane alone."""
        self.lane.begin(self.resolved)
        config = self.resolved.config
        with deterministic(config.deterministic), distributed_run() as (accelerator, ranks):
            try:
                job = build(replace(self.resolved, config=replace(config, output="")), accelerator=accelerator)
                self.go_on(job, ranks)
                self.train(job.trainer.step, partial(self.measure, job, ranks), clock_of(job))
            except Exception as error:
                if not is_for_people(error):
                    raise
                (self.lane.folder / "failed.txt").write_text(sentence(error), encoding="utf-8")
        shutil.rmtree(self.lane.folder / "checkpoints", ignore_errors=True)

    def go_on(self, job: Job, ranks: Ranks) -> None:
        """Put the trainer where the lane's last point was taken, or take the first one."""
        points = self.lane.points()
        step = self.lane.checkpoints.recover()
        usable = [point for point in points if point.step == step]
        if step is not None and usable:
            job.trainer.load_state_dict(self.lane.checkpoints.load_whole(step))
            self.spent = usable[-1].seconds
            self.step_s = self.spent / step if step else 0.0
            return
        self.lane.points_file.unlink(missing_ok=True)
        if self.start is None:
            self.measure(job, ranks)
        else:
            self.lane.add(self.start)

    def train(self, step: Callable[[], object], measure: Callable[[], None], clock: Clock) -> None:
        """Steps as long as they end within the budget; an evaluation and a checkpoint at every mark passed, and at the end."""
        while self.has_time:
            done = self.mark()
            before = clock()
            step()
            self.step_s = clock() - before
            self.spent += self.step_s
            if self.mark() > done or not self.has_time:
                measure()

    def mark(self) -> int:
        """How many marks lie behind."""
        return int(self.marks * min(1.0, self.spent / self.budget_s))

    def measure(self, job: Job, ranks: Ranks) -> None:
        """Evaluate and write it down; the checkpoint first, so that a point without one is never the last."""
        assert job.evaluator is not None
        metrics = job.evaluator.run(job.trainer.index)[0]
        if job.trainer.index:
            self.lane.checkpoints.save(job.trainer.index, job.trainer.state_dict(), ranks)
        self.lane.add(Point(self.spent, job.trainer.index, metrics, not self.has_time))


def clock_of(job: Job) -> Clock:
    """Seconds of all cores of this process where the model is on the CPU, so that other work does not count; else of the wall."""
    on_cpu = all(parameter.device.type == "cpu" for parameter in job.policy.parameters())
    return time.process_time if on_cpu else time.perf_counter
