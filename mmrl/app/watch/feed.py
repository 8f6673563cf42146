"""The files of a run that trains: read as they grow, held in little memory however long the run is."""

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from mmrl.app.report.data import EVAL, TRAIN, RunData, is_evaluation, read_config, warning_counts
from mmrl.app.report.rows import SampleLine, mean
from mmrl.app.run.folder import REQUESTS, SEEN, Line, RunDir, lines_of_changes
from mmrl.app.run.launch import is_locked
from mmrl.app.toml.tables import Values, value_at
from mmrl.app.watch.tail import MetricTail, Tail, number

RECENT = 50
"""Steps whose time says where time goes and how long the rest will take."""
MOST_WARNINGS = 2000
"""Lines of warnings.jsonl that are kept, the first ones."""
PROMPTS_SHOWN = 6
MOST_READ = 8 << 20
"""Bytes of a samples file that are read for them."""


@dataclass(frozen=True)
class RunProgress:
    """How far a run is."""

    step: int
    wanted: int | None
    is_training: bool
    """A process trains into the folder."""
    step_s: float
    """Mean seconds of the recent steps; NaN where they are unknown."""
    asked: tuple[str, ...]
    """Requests that the run has not followed yet."""

    @property
    def is_finished(self) -> bool:
        return self.wanted is not None and self.step >= self.wanted

    @property
    def seconds_left(self) -> float:
        """The steps that are left, without evaluations; NaN where it is unknown."""
        return float("nan") if self.wanted is None else max(0, self.wanted - self.step) * self.step_s


class Feed:
    """A run's files, followed by `follow`."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.notices: list[str] = []
        self._forget()

    def _forget(self) -> None:
        self._metrics, self._warnings = Tail(self.run.metrics_file), Tail(self.run.warnings_file)
        self._train, self._evals = MetricTail(), MetricTail()
        self._recent = deque[Line](maxlen=RECENT)
        self._said = list[Line]()

    def follow(self) -> None:
        """Read what was added; all of it where a run that resumes has cut its files."""
        if self._metrics.is_another() or self._warnings.is_another():
            self._forget()
        for line in self._metrics.fresh():
            if is_evaluation(line):
                self._evals.add(line)
            else:
                self._train.add(line)
                self._recent.append({name: line[name] if name == "step" else number(value) for name, value in line.items()})
        self._said += [line for line in self._warnings.fresh() if isinstance(line.get("text"), str)]
        del self._said[MOST_WARNINGS:]

    @property
    def seen(self) -> tuple[int, ...]:
        """Other after everything that `follow` finds."""
        return self._train.num_lines, self._evals.num_lines, len(self._said), self._metrics.num_bad

    @property
    def width(self) -> int:
        """Steps in a point of the curves."""
        return self._train.width

    @property
    def recent(self) -> list[Line]:
        return list(self._recent)

    def data(self) -> RunData:
        """The run as the report's charts take it: long curves in few points, no samples."""
        notices: list[str] = []
        config, text, changes = Values(), "", list[str]()
        try:
            config, text = read_config(self.run, notices)
            changes = lines_of_changes(self.run)
        except (ValueError, KeyError, TypeError) as error:
            notices.append(f"{type(error).__name__}: {error}")
        if self._metrics.num_bad:
            notices.append(f"Lines of metrics.jsonl that are no metrics, and left out: {self._metrics.num_bad}.")
        notices += [f"Settings {text}." for text in changes]
        alarms = [line["text"] for line in self._said if line.get("level") == "error"]
        no_rows: list[SampleLine] = []
        return RunData(
            *(self.run, config, text, self._train.lines(), self._evals.lines(), no_rows, no_rows, no_rows, no_rows),
            *(warning_counts(self._said), {}, value_at(config, "policy", "box_space"), notices, alarms),
        )

    def state(self, data: RunData) -> RunProgress:
        asked = tuple(what for what in REQUESTS if self.run.request_file(what).exists())
        step_s = mean(line.get("time/step_s", float("nan")) for line in self._recent)
        return RunProgress(data.steps_done, data.steps_wanted, is_locked(self.run.path), step_s, asked)

    def newest_samples(self) -> list[tuple[str, int, Path]]:
        """Split, step and file of the newest samples of training, and of held-out or seen prompts."""
        steps = [(split, self.run.sample_steps(split)[-1:]) for split in (TRAIN, EVAL, SEEN)]
        return [(split, step, self.run.samples_file(split, step)) for split, last in steps for step in last]

    def rows(self, file: Path, space: str | None) -> list[SampleLine]:
        """The first sample of each of a file's first prompts."""
        found: dict[str, SampleLine] = {}
        for line in first_lines(file):
            row = SampleLine(line, line["box_space"] or space)
            found.setdefault(row.prompt, row)
            if len(found) == PROMPTS_SHOWN:
                break
        return list(found.values())


def first_lines(file: Path) -> Iterator[Line]:
    """The JSON lines of a file's first MOST_READ bytes; none where it is gone."""
    try:
        with file.open("rb") as stream:
            left = MOST_READ
            while (text := stream.readline(left)).endswith(b"\n"):
                left -= len(text)
                yield json.loads(text)
    except FileNotFoundError:
        return
