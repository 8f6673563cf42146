"""Where a run's metrics, examples and spans go: its own files, the terminal, and TensorBoard, wandb and trackio."""

import importlib.util
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from threading import Lock, current_thread, get_ident
from typing import Any, NamedTuple

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from mmrl.app.errors import Lines, Terminal, printable
from mmrl.app.files import replace_text
from mmrl.app.run.folder import Line, RunDir, also_split, append_line, as_text
from mmrl.app.run.sample_files import frames_of, sample_lines, strip, write_clip
from mmrl.app.toml.tables import dotted_key, leaves
from mmrl.core.types import Group, Scores, Status
from mmrl.runtime.net.secrets import hide_in_json
from mmrl.runtime.spans import tell_of_spans
from mmrl.training.callbacks import Callback, Examples
from mmrl.training.measure import PHASES

Note = Callable[[int, int, float], None]
"""Called with the step (from 1), the number of steps, and the loss."""
KEY_FIGURES = (
    ("reward", "reward/total"),
    ("imitation", "policy/imitation"),
    ("matching error", "policy/matching_error"),
    ("preferred", "policy/preferred"),
    ("error", "policy/error"),
    ("agreement", "teacher/agreement"),
    ("no spread", "reward/no_spread"),
    ("kl", "policy/kl"),
    ("length", "rollout/length"),
)
"""What the terminal shows of a step, in this order, where the run has it."""


@dataclass(frozen=True)
class JsonlTracker(Callback):
    """metrics.jsonl and samples/ of the run folder; every run has it."""

    run: RunDir
    box_space: str | None = None
    """How completions write boxes (the policy's box_space); noted in every samples line."""

    def after_step(self, step: int, metrics: Mapping[str, float], examples: Examples | None) -> None:
        if examples is not None:
            self.write(step, examples, "train")
        self.run.append(step, metrics)

    def after_evaluation(self, step: int, metrics: Mapping[str, float], examples: Examples) -> None:
        self.run.append(step, metrics)
        self.write(step, examples, "eval")
        for name, one in examples.also.items():
            self.write(step, one, also_split(name))

    def write(self, step: int, examples: Examples, split: str) -> None:
        """The samples file of a step."""
        self.run.samples.mkdir(parents=True, exist_ok=True)
        lines = sample_lines(self.run.media, step, examples, split, self.box_space)
        replace_text(self.run.samples_file(split, step), "".join(map(as_text, lines)))


def flat(config: Mapping[str, object]) -> dict[str, str | int | float | bool]:
    """Nested tables as dotted names, those in lists by their number; other lists become one string."""
    return {dotted_key(path): one if isinstance(one, str | int | float | bool) else str(one) for path, one in leaves(config)}


class Progress(Callback):
    """A progress bar with the step's key figures, speed and time left; plain lines where there is no terminal."""

    def __init__(
        self,
        num_steps: int,
        prompts_per_step: int,
        console: Console | None = None,
        every_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
        denoises: bool = False,
    ) -> None:
        self.num_steps, self.prompts_per_step, self.clock, self.denoises = num_steps, prompts_per_step, clock, denoises
        self.console = console or Terminal(stderr=True)
        self.lines = Lines(self.console, every_s, clock)
        self.first: dict[str, float] = {}
        self.started: tuple[int, float] | None = None
        self.place, self.begin = "", 0
        self.bar = Bar(
            TextColumn("{task.fields[place]}step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.description}", markup=False),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
        )
        self.task = self.bar.add_task("", total=num_steps, place="")
        if self.console.is_terminal:
            self.bar.start()

    def enter(self, place: str, begin: int, num_steps: int) -> None:
        """Count the steps of a stage, such as `stage 2 of 3, rl`, which come after `begin` others; empty: no stage."""
        self.place, self.begin, self.num_steps, self.started = place, begin, num_steps, None
        self.bar.update(self.task, total=num_steps, completed=0, place=f"{place}: " if place else "")

    def after_step(self, step: int, metrics: Mapping[str, float], examples: Examples | None) -> None:
        """Move the bar."""
        step -= self.begin
        now = self.clock()
        self.started = self.started or (step, now - metrics.get("time/step_s", 0.0))
        text = printable("  ".join(filter(None, (figures(metrics, self.prompts_per_step, self.denoises), time_line(metrics)))))
        self.bar.update(self.task, completed=step, description=text)
        counted = f"{self.place}: step {step} of {self.num_steps}" if self.place else f"step {step}/{self.num_steps}"
        left = (now - self.started[1]) / (step - self.started[0] + 1) * (self.num_steps - step)
        self.lines.say(f"{counted}  {text}  {duration(left)} left", step == self.num_steps)

    def after_evaluation(self, step: int, metrics: Mapping[str, float], examples: Examples) -> None:
        """Write the figures above the bar, compared with the first, without rewards' parts; a line for each way to answer."""
        for way in ("", *examples.also):
            prefix = f"eval/{way}/" if way else "eval/"
            own = {name: value for name, value in metrics.items() if name.startswith(prefix)}
            shown = [
                f"{name.removeprefix(prefix)} {'no score' if math.isnan(value) else f'{value:.3f}{self._change(name, value)}'}"
                for name, value in own.items()
                if "/" not in name.removeprefix(prefix)
            ]
            text = f"step {step}  held out{f', {way}' if way else ''}: {'  '.join(shown)}"
            self.console.print(printable(text), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        if self.console.is_terminal:
            self.bar.stop()

    def _change(self, name: str, value: float) -> str:
        if name not in self.first:
            self.first[name] = value
            return ""
        return f" ({value - self.first[name]:+.3f})"


@dataclass
class Losses(Callback):
    """Says how far a stage is of a run that keeps nothing: its step, its last step and the loss."""

    note: Note | None
    steps: int
    begin: int = 0
    """The steps of all stages before."""

    def enter(self, place: str, begin: int, num_steps: int) -> None:
        """Count the steps of a stage."""
        self.begin, self.steps = begin, num_steps

    def after_step(self, step: int, metrics: Mapping[str, float], examples: Examples | None) -> None:
        if self.note is not None:
            self.note(step - self.begin, self.steps, metrics["loss"])


def figures(metrics: Mapping[str, float], prompts_per_step: int, denoises: bool = False) -> str:
    """'reward 0.41  iou 0.31  no spread 0.12  kl 0.0031  length 17  8.1 prompts/s  1.1k actions/s'.

    Samples that are denoised have no length, and their actions are denoising steps.
    """
    known = [one for one in KEY_FIGURES if not (denoises and one[0] == "length")]
    shown = [(label, metrics[name]) for label, name in known if math.isfinite(metrics.get(name, math.nan))]
    parts = [(name.removeprefix("reward/"), v) for name, v in metrics.items() if is_reward(name)]
    shown[1:1] = parts if len(parts) > 1 else []
    texts = [f"{label} {value:.3g}" for label, value in shown]
    seconds = metrics.get("time/step_s", 0.0)
    if seconds > 0:
        texts.append(f"{prompts_per_step / seconds:.1f} prompts/s")
        if "rollout/actions" in metrics:
            texts.append(f"{metrics['rollout/actions'] / seconds:.0f} {'denoising steps' if denoises else 'actions'}/s")
    return "  ".join(texts)


def time_line(metrics: Mapping[str, float]) -> str:
    """'rollout 41 %  read 3 %  update 52 %  idle 4 %', without parts that took nothing."""
    shares = {name: metrics.get(f"time/{name}_share", 0.0) for name in (*PHASES, "idle")}
    return "  ".join(f"{name} {share:.0%}".replace("%", " %") for name, share in shares.items() if share >= 0.005)


def is_reward(name: str) -> bool:
    """reward/<name>, without totals, spreads and parts."""
    return name.startswith("reward/") and name.count("/") == 1 and name not in ("reward/total", "reward/no_spread")


def duration(seconds: float) -> str:
    """'1 h 02 min', '3 min 20 s', '12 s'."""
    whole = round(max(0.0, seconds))
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {whole % 60:02d} s" if minutes else f"{whole} s"


STEP = "step"
"""The span around all others."""
KEPT = 32
"""How many steps are kept of those up to a power of two."""
MOST_SPANS = 120
"""Of a step, the longest ones."""
BESIDE = ("mmrl-ahead", "sampler-")
"""How the names of threads begin that sample beside training."""
SLOW = 1.5
"""Times the median of the steps before it, from which on a step is kept in any case."""


class Timed(NamedTuple):
    """A span, by its place in the order in which spans began: one that holds others stands before them."""

    place: int
    name: str
    start: float
    """Seconds from the beginning of the step."""
    length: float = 0.0


class ThreadLane:
    """The outermost spans of another thread, in seconds of the clock."""

    def __init__(self) -> None:
        self.depth, self.lock = 0, Lock()
        self.spans: deque[tuple[str, float, float]] = deque()

    def begin(self, name: str) -> None:
        with self.lock:
            if not self.depth:
                self.spans.append((name, time.perf_counter(), math.inf))
            self.depth += 1

    def end(self) -> None:
        with self.lock:
            self.depth -= 1
            if not self.depth:
                name, begun, _ = self.spans.pop()
                self.spans.append((name, begun, time.perf_counter()))

    def between(self, start: float, end: float) -> list[tuple[str, float, float]]:
        """Name, beginning and length of what lies in a stretch, cut to it; what ended before its end is forgotten."""
        with self.lock:
            found = [(name, max(begun, start), min(ended, end)) for name, begun, ended in self.spans]
            while self.spans and self.spans[0][2] <= end:
                self.spans.popleft()
        return [(name, begun - start, ended - begun) for name, begun, ended in found if ended > begun]


class StepSpans(Callback):
    """Writes a line of spans.jsonl for every step up to 63, then for fewer and fewer, and for every slow one.

    {"step": 7, "seconds": 0.51, "is_first": false, "spans": [["rollout", 0.0, 0.31], ["generate", 0.002, 0.29], ...]}

    A span is its name, its beginning and its length in seconds. What the threads did meanwhile that sample beside training is in
    `"beside": {"sampler-0": [["chunk", 0.0, 0.12], ...]}`, cut to the step; spans of other threads are left out.
    """

    def __init__(self, run: RunDir) -> None:
        self.file, self.is_first = run.spans_file, True
        self._thread, self._start, self._seconds = get_ident(), 0.0, 0.0
        self._open: list[Timed] = []
        self._spans: list[Timed] = []
        self._begun = 0
        self._lanes: dict[str, ThreadLane] = {}
        self._recent: deque[float] = deque(maxlen=KEPT)
        tell_of_spans(self)

    def begin(self, name: str) -> None:
        if get_ident() != self._thread:
            if current_thread().name.startswith(BESIDE):
                self._lanes.setdefault(current_thread().name, ThreadLane()).begin(name)
            return
        now = time.perf_counter()
        if name == STEP:
            self._start, self._spans, self._open = now, [], []
        self._begun += 1
        self._open.append(Timed(self._begun, name, now - self._start))

    def end(self, name: str) -> None:
        if get_ident() != self._thread:
            if current_thread().name in self._lanes:
                self._lanes[current_thread().name].end()
            return
        if not self._open:
            return
        opened = self._open.pop()
        length = time.perf_counter() - self._start - opened.start
        if name == STEP:
            self._seconds = length
        elif self._open:
            self._spans.append(opened._replace(length=length))

    def after_step(self, step: int, metrics: Mapping[str, float], examples: Examples | None) -> None:
        stretch = self._start, self._start + self._seconds
        beside = {name: rows_of(lane.between(*stretch)) for name, lane in sorted(self._lanes.copy().items())}
        usual = median(self._recent) if len(self._recent) > 2 else self._seconds
        if step % stride(step) == 0 or self._seconds > SLOW * usual:
            longest = sorted(sorted(self._spans, key=lambda one: -one.length)[:MOST_SPANS])
            line = {"step": step, "seconds": round(self._seconds, 4), "is_first": self.is_first}
            line |= {"spans": rows_of((one.name, one.start, one.length) for one in longest)}
            append_line(self.file, line | ({"beside": beside} if any(beside.values()) else {}))
        self._recent.append(self._seconds)
        self.is_first = False


def rows_of(spans: Iterable[tuple[str, float, float]]) -> list[list[str | float]]:
    """Spans as the file has them, the first ones where there are too many."""
    return [[name, round(start, 4), round(length, 4)] for name, start, length in islice(spans, MOST_SPANS)]


def stride(step: int) -> int:
    """The distance of the steps that are kept: 1 up to step 63, 2 up to 127, 4 up to 255, ..."""
    return 1 << max(0, (step // KEPT).bit_length() - 1)


Service = Any
"""A tracker of accelerate: of tensorboard, wandb or trackio, each with calls of its own."""
Rows = list[Line]
Pictures = Sequence[tuple[str, Image.Image, str]]
"""Tag, picture and caption of each."""
Clips = Sequence[tuple[str, Path, str]]
"""Tag, .mp4 file and caption of each."""


class AccelerateTrackers(Callback):
    """TensorBoard, wandb and trackio through accelerate's trackers, with pictures, clips and completions.

    All get the same numbers under the same names. TensorBoard writes to `<folder>/tensorboard`, and shows clips as strips of
    frames. The other two show the folder's name as the run's name and obey their own environment variables (WANDB_MODE=offline,
    TRACKIO_DIR).
    """

    def __init__(
        self,
        names: Sequence[str],
        folder: Path,
        project: str = "mmrl",
        config: Mapping[str, object] | None = None,
        num_examples: int = 8,
    ) -> None:
        """`config` is the resolved run config; `num_examples` groups of every samples call are shown.

        Raises ValueError if a name is unknown, or its package is not installed.
        """
        for name in names:
            if name not in EXAMPLES:
                raise ValueError(f"tracker {name!r} is unknown: choose among {', '.join(EXAMPLES)}")
            if importlib.util.find_spec(name) is None:
                raise ValueError(f'tracker {name!r} needs the package {name}, which is not installed: pip install "mmrl[track]"')
        self.num_examples, self.media = num_examples, RunDir(folder).media
        self.trackers = {name: start_service(name, folder, project) for name in names}
        for tracker in self.trackers.values():
            tracker.store_init_configuration(flat(config or {}))

    def after_step(self, step: int, metrics: Mapping[str, float], examples: Examples | None) -> None:
        if examples is not None:
            self.samples(step, examples.groups, examples.scores, "train")
        self.log(step, metrics)

    def after_evaluation(self, step: int, metrics: Mapping[str, float], examples: Examples) -> None:
        self.log(step, metrics)
        self.samples(step, examples.groups, examples.scores, "eval")
        for name, one in examples.also.items():
            self.samples(step, one.groups, one.scores, f"eval/{name}")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for tracker in self.trackers.values():
            tracker.log({name: float(value) for name, value in metrics.items()}, step=step)

    def samples(self, step: int, groups: Sequence[Group], scores: Scores, split: str) -> None:
        """A table of completions with their scores, and pictures and clips shown or made, of the first `num_examples` groups."""
        chosen = groups[: self.num_examples]
        rows: list[Line] = hide_in_json(example_rows(chosen, scores))
        texts, shows_clips = iter(captions(rows)), not {"wandb", "trackio"}.isdisjoint(self.trackers)
        pictures, clips = list[tuple[str, Image.Image, str]](), list[tuple[str, Path, str]]()
        for group in chosen:
            own, tag = list(islice(texts, len(group.samples))), f"{split}/{group.prompt.id}"
            pictures += [(f"{tag}/{place}", picture, text) for place, picture, text in pictures_of(group, own)]
            for i, sample in enumerate(group.samples if shows_clips else ()):
                if (file := write_clip(self.media, sample)) is not None:
                    clips.append((f"{tag}/sample-{i}-clip", file, own[i]))
        for name, tracker in self.trackers.items():
            EXAMPLES[name](tracker, step, split, rows, pictures, clips)

    def close(self) -> None:
        for tracker in self.trackers.values():
            tracker.finish()


def start_service(name: str, folder: Path, project: str) -> Service:
    """The running accelerate tracker of this name."""
    from accelerate.state import PartialState
    from accelerate.tracking import TensorBoardTracker, TrackioTracker, WandBTracker

    PartialState()
    if name == "tensorboard":
        tracker = TensorBoardTracker("tensorboard", folder)
    elif name == "wandb":
        tracker = WandBTracker(project, name=folder.resolve().name, dir=str(folder))
    else:
        tracker = TrackioTracker(project, name=folder.resolve().name)
    tracker.start()
    return tracker


def show_in_tensorboard(tracker: Service, step: int, split: str, rows: Rows, pictures: Pictures, clips: Clips) -> None:
    tracker.log({f"{split}/completions": markdown_table(rows)}, step=step)
    for tag, picture, _ in pictures:
        tracker.log_images({tag: np.asarray(picture)[None]}, step=step, dataformats="NHWC")


def show_in_wandb(tracker: Service, step: int, split: str, rows: Rows, pictures: Pictures, clips: Clips) -> None:
    import wandb  # pyright: ignore[reportMissingImports] - part of the extra [track]

    if rows:
        columns, data = list(rows[0]), [list(row.values()) for row in rows]
        tracker.log_table(f"{split}/completions", columns=columns, data=data, step=step)
    if pictures:
        shown = [wandb.Image(picture, caption=caption) for _, picture, caption in pictures]
        tracker.log({f"{split}/pictures": shown}, step=step)
    if clips:
        moving = [wandb.Video(str(file), caption=caption, format="mp4") for _, file, caption in clips]
        tracker.log({f"{split}/clips": moving}, step=step)


def show_in_trackio(tracker: Service, step: int, split: str, rows: Rows, pictures: Pictures, clips: Clips) -> None:
    import pandas
    import trackio  # pyright: ignore[reportMissingImports] - part of the extra [track]

    tracker.log({f"{split}/completions": trackio.Table(dataframe=pandas.DataFrame(rows))}, step=step)
    for tag, picture, caption in pictures:
        tracker.log({tag: trackio.Image(picture, caption=caption)}, step=step)
    for tag, file, caption in clips:
        tracker.log({tag: trackio.Video(str(file), caption=caption, format="mp4")}, step=step)


EXAMPLES: dict[str, Callable[[Service, int, str, Rows, Pictures, Clips], None]] = {
    "tensorboard": show_in_tensorboard,
    "wandb": show_in_wandb,
    "trackio": show_in_trackio,
}


def captions(rows: Sequence[Line]) -> list[str]:
    """A sample's prompt and total in one line each: 'a red fox: 0.41'."""
    totals = ["no total" if not math.isfinite(row["total"]) else f"{row['total']:.3g}" for row in rows]
    return [f"{row['text'] or row['prompt']}: {total}" for row, total in zip(rows, totals, strict=True)]


def example_rows(groups: Sequence[Group], scores: Scores) -> list[Line]:
    """One row of plain values per sample of the first groups; `scores` begins with their rows."""
    totals, values, status = scores.total().tolist(), scores.values.tolist(), scores.status.tolist()
    samples = [(group, sample) for group in groups for sample in group.samples]
    return [
        {"prompt": group.prompt.id, "text": group.prompt.text, "completion": sample.text or "", "total": total}
        | {name: v if s == Status.OK else None for name, v, s in zip(scores.names, row, states, strict=True)}
        for (group, sample), total, row, states in zip(samples, totals, values, status, strict=False)
    ]


def pictures_of(group: Group, texts: Sequence[str]) -> list[tuple[str, Image.Image, str]]:
    """The pictures of a prompt and those that its samples made, each with its place in the group and its caption.

    Videos are strips, and pictures made of a prompt's picture stand beside it.
    """
    shown = [(f"prompt-{i}", media, group.prompt.text) for i, media in enumerate(group.prompt.media)]
    source = frames_of(group.prompt.media[0])[0][:1] if group.prompt.media else []
    made = [
        (f"sample-{i}{'-sound' if drawn is sample.sound is not sample.output else ''}", drawn, texts[i])
        for i, sample in enumerate(group.samples)
        for drawn in (sample.image, sample.video, sample.sound)
        if drawn is not None
    ]
    found: list[tuple[str, Image.Image, str]] = []
    for place, media, text in shown + made:
        frames, kind = frames_of(media)
        if frames:
            beside = source if kind == "picture" and place.startswith("sample") else []
            whole = strip([*beside, *frames]) if beside or kind != "picture" else frames[0]
            found.append((place, whole, text))
    return found


def markdown_table(rows: list[Line]) -> str:
    """TensorBoard shows text as Markdown; cells keep to one line and show HTML as text."""
    if not rows:
        return "no samples"
    escape = {"|": "\\|", "\n": " ", "<": "&lt;", ">": "&gt;", "&": "&amp;"}
    cells = [["".join(escape.get(c, c) for c in str(value)) for value in row.values()] for row in rows]
    lines = [list(rows[0]), ["---"] * len(rows[0]), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
