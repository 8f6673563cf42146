"""A run that trains: its files, read as they grow in little memory, and its page, of which a browser fetches what changed."""

import hashlib
import json
import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from urllib.parse import quote

from mmrl.app.report.curves import health, others, reward_charts
from mmrl.app.report.data import EVAL, TRAIN, RunData, is_evaluation, read_config, warning_counts
from mmrl.app.report.page import Example, description, environment
from mmrl.app.report.rows import SampleLine, mean, number_of
from mmrl.app.report.timing import phases, time_band
from mmrl.app.run.folder import REQUESTS, SEEN, Line, RunDir, lines_of_changes
from mmrl.app.run.launch import is_locked
from mmrl.app.toml.tables import Values, value_at

RECENT = 50
"""Steps whose time says where time goes and how long the rest will take."""
MOST_WARNINGS = 2000
"""Lines of warnings.jsonl that are kept, the first ones."""
PROMPTS_SHOWN = 6
MOST_READ = 8 << 20
"""Bytes of a samples file that are read for them."""
MOST_POINTS = 120
"""Points of a series; a longer one is kept as means of neighbouring lines."""
MOST_NAMES = 500
"""Metrics that are followed."""


class Feed:
    """A run's files, followed by `follow`."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self.notices: list[str] = []
        self._forget()

    def _forget(self) -> None:
        self._metrics, self._warnings = Tail(self.run.metrics_file), Tail(self.run.warnings_file)
        self._train, self._evals = MetricTail(), MetricTail()
        self.recent = deque[Line](maxlen=RECENT)
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
                self.recent.append({name: line[name] if name == "step" else number_of(value) for name, value in line.items()})
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
        space, said = value_at(config, "policy", "box_space"), warning_counts(self._said)
        lines = self._train.lines(), self._evals.lines()
        return RunData(self.run, config, text, *lines, warnings=said, box_space=space, notices=notices, alarms=alarms)

    def state(self, data: RunData) -> dict[str, object]:
        """Is a process training; seconds of a recent step and of those left (NaN: unknown), and requests not followed yet."""
        step_s = mean(line.get("time/step_s", math.nan) for line in self.recent)
        left_s = math.nan if data.steps_wanted is None else max(0, data.steps_wanted - data.steps_done) * step_s
        asked = tuple(what for what in REQUESTS if self.run.request_file(what).exists())
        return {"is_training": is_locked(self.run.path), "step_s": step_s, "seconds_left": left_s, "asked": asked}

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


class Tail:
    """The new lines of a .jsonl file; a last line without its end is left until it is whole."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._offset, self._inode = 0, 0
        self.num_bad = 0
        """Lines that were no JSON objects, and are left out."""

    def is_another(self) -> bool:
        """Was the file written anew or cut since the last look, as by a run that resumes? It must then be read from the start."""
        try:
            found = os.stat(self.file)
        except FileNotFoundError:
            return self._offset > 0
        return self._offset > 0 and (found.st_ino != self._inode or found.st_size < self._offset)

    def fresh(self) -> list[Line]:
        """The lines since the last call, none of an absent file."""
        try:
            with self.file.open("rb") as stream:
                found = os.fstat(stream.fileno())
                self._inode = found.st_ino
                stream.seek(self._offset)
                added = stream.read(max(0, found.st_size - self._offset))
        except FileNotFoundError:
            return []
        whole = added[: added.rfind(b"\n") + 1]
        self._offset += len(whole)
        lines = [line_of(text) for text in whole.split(b"\n") if text.strip()]
        self.num_bad += lines.count(None)
        return [line for line in lines if line is not None]


def line_of(text: bytes) -> Line | None:
    """A JSON object with a step, or None."""
    try:
        line = json.loads(text)
        return line if isinstance(line, dict) and math.isfinite(line["step"]) else None
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


@dataclass
class LineBucket:
    """Neighbouring lines: the last step, and the sum and number of every metric's finite values."""

    step: int
    sums: dict[str, tuple[float, int]] = field(default_factory=dict[str, tuple[float, int]])

    def add(self, values: Mapping[str, tuple[float, int]]) -> None:
        for name, (value, count) in values.items():
            total, number = self.sums.get(name, (0.0, 0))
            self.sums[name] = total + value, number + count


class MetricTail:
    """Lines of metrics in at most MOST_POINTS means; memory and time do not grow with their number."""

    def __init__(self) -> None:
        self.width, self.num_lines = 1, 0
        """Lines in a point; lines so far."""
        self._buckets: list[LineBucket] = []
        self._names: set[str] = set()

    def add(self, line: Line) -> None:
        step, values = int(line["step"]), {name: number_of(value) for name, value in line.items() if name != "step"}
        self._names |= set(list(values)[: MOST_NAMES - len(self._names)]) if len(self._names) < MOST_NAMES else set()
        if self.num_lines % self.width == 0:
            self._buckets.append(LineBucket(step))
        self._buckets[-1].step = step
        self._buckets[-1].add({n: (v, 1) if math.isfinite(v) else (0.0, 0) for n, v in values.items() if n in self._names})
        self.num_lines += 1
        if len(self._buckets) > MOST_POINTS:
            self._halve()

    def lines(self) -> list[Line]:
        """The points as lines of a run's metrics; NaN where none of a point's values was finite."""
        return [
            {"step": one.step} | {name: total / count if count else math.nan for name, (total, count) in one.sums.items()}
            for one in self._buckets
        ]

    def _halve(self) -> None:
        pairs = [self._buckets[i : i + 2] for i in range(0, len(self._buckets), 2)]
        for first, *second in pairs:
            for other in second:
                first.step = other.step
                first.add(other.sums)
        self._buckets = [pair[0] for pair in pairs]
        self.width *= 2


MOST_CHARTS = 40
"""Curves beside those of rewards and health."""
WARNINGS_SHOWN = 100
Parts = Mapping[str, "PagePart"]


@dataclass(frozen=True)
class PagePart:
    """A part of the page."""

    html: str
    mark: str
    """Other when the part is."""


class Page:
    """A run's page; every look follows the run first. Threads may share it."""

    def __init__(self, run: RunDir) -> None:
        self.feed = Feed(run)
        self._templates = environment()
        self._lock = Lock()
        self._parts: dict[str, tuple[object, PagePart]] = {}
        """The newest of every part, with what it was made of."""

    def parts(self) -> dict[str, PagePart]:
        """Every part by its name; one whose facts are the same is not made again."""
        with self._lock:
            feed = self.feed
            feed.follow()
            data = feed.data()
            state, newest = feed.state(data), feed.newest_samples()
            newest_at = [(str(file), stamp(file)) for _, _, file in newest]
            return {
                "state": self._part(
                    "state",
                    (feed.seen, repr(state), tuple(data.notices)),
                    lambda: {"data": data, "state": state, "sentence": description(data.config)},
                ),
                "curves": self._part("curves", feed.seen[:2], lambda: self._curves(data)),
                "samples": self._part("samples", newest_at, lambda: self._samples(data, newest)),
                "warnings": self._part("warnings", feed.seen[2], lambda: {"warnings": data.warnings[-WARNINGS_SHOWN:][::-1]}),
                "timing": self._part(
                    "timing",
                    feed.seen[0],
                    lambda: {"phases": phases(feed.recent), "count": len(feed.recent), "band": time_band(data.train)},
                ),
            }

    def html(self) -> str:
        """The whole page."""
        parts, run = self.parts(), self.feed.run
        return self._templates.get_template("watch.html.j2").render(parts=parts, name=run.path.resolve().name)

    def _part(self, name: str, facts: object, look: Callable[[], Mapping[str, object]]) -> PagePart:
        before = self._parts.get(name)
        if before is not None and before[0] == facts:
            return before[1]
        html = self._templates.get_template(f"watch_{name}.html.j2").render(**look())
        part = PagePart(html, hashlib.sha256(html.encode(errors="replace")).hexdigest()[:12])
        self._parts[name] = facts, part
        return part

    def _curves(self, data: RunData) -> Mapping[str, object]:
        curves = [chart for chart in reward_charts(data) if chart is not None]
        return {"width": self.feed.width, "curves": curves, "health": health(data), "others": others(data)[:MOST_CHARTS]}

    def _samples(self, data: RunData, newest: Sequence[tuple[str, int, Path]]) -> Mapping[str, object]:
        groups: list[tuple[str, int, list[Example], str]] = []
        for split, step, file in newest:
            try:
                rows = self.feed.rows(file, data.box_space)
                groups.append((split, step, [Example(data.run, row, address) for row in rows], ""))
            except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
                groups.append((split, step, [], f"{file.name} is damaged ({type(error).__name__}), and is not shown."))
        shown = [item.row for _, _, items, _ in groups for item in items]
        return {"groups": groups, "boxes": any(row.truth for row in shown), "spans": any(row.spans for row in shown)}


def address(file: Path) -> str:
    """Where the page finds a file of a run's media: below the page's own address."""
    return f"media/{quote(file.name)}" if file.is_file() else ""


def stamp(file: Path) -> tuple[int, int]:
    """Other where a file was written again."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return 0, 0
    return found.st_mtime_ns, found.st_size
