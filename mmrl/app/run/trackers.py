"""Where a run's metrics and examples go: its own files, the terminal, TensorBoard, wandb, trackio."""

import importlib.util
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from mmrl.app.errors import Terminal, printable
from mmrl.app.files import replace_text
from mmrl.app.run.folder import Line, RunDir, as_text
from mmrl.app.run.sample_files import frames_of, sample_lines, strip
from mmrl.core.types import Examples, Group, Scores, Status
from mmrl.training.measure import PHASES

KEY_FIGURES = (("reward", "reward/total"), ("no spread", "reward/no_spread"), ("kl", "policy/kl"), ("length", "rollout/length"))
"""What the terminal shows of a step, in this order, where the run has it."""
NAMES = ("tensorboard", "wandb", "trackio")

Service = Any
"""A tracker of accelerate: of tensorboard, wandb or trackio, each with calls of its own."""


@dataclass(frozen=True)
class JsonlTracker:
    """metrics.jsonl and samples/ of the run folder; every run has it."""

    run: RunDir
    box_space: str | None = None
    """How completions write boxes (the policy's box_space); noted in every samples line."""

    def after_step(self, step: int, metrics: Mapping[str, float], examples: Examples | None) -> None:
        if examples is not None:
            self.samples(step, examples.groups, examples.scores, "train")
        self.log(step, metrics)

    def after_evaluation(self, step: int, metrics: Mapping[str, float], examples: Examples) -> None:
        self.log(step, metrics)
        self.samples(step, examples.groups, examples.scores, "eval")

    def after_checkpoint(self, step: int, folder: Path) -> None:
        """The folder says it all."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self.run.append(step, metrics)

    def samples(self, step: int, groups: Sequence[Group], scores: Scores, split: str) -> None:
        self.run.samples.mkdir(parents=True, exist_ok=True)
        lines = sample_lines(self.run, step, groups, scores, split, self.box_space)
        replace_text(self.run.samples_file(split, step), "".join(map(as_text, lines)))

    def close(self) -> None:
        """Every line is on disk already."""


class AccelerateTrackers:
    """TensorBoard, wandb and trackio through accelerate's trackers, with pictures and completions.

    TensorBoard writes to `<folder>/tensorboard`. The other two show the folder's name as the run's name and obey their own
    environment variables (WANDB_MODE=offline, TRACKIO_DIR).
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

        Raises:
            ValueError: a name is unknown, or its package is not installed.
        """
        for name in names:
            if name not in NAMES:
                raise ValueError(f"tracker {name!r} is unknown: choose among {', '.join(NAMES)}")
            if importlib.util.find_spec(name) is None:
                raise ValueError(f'tracker {name!r} needs the package {name}, which is not installed: pip install "mmrl[track]"')
        self.num_examples = num_examples
        self.trackers = {name: started(name, folder, project) for name in names}
        for tracker in self.trackers.values():
            tracker.store_init_configuration(flat(config or {}))

    def after_step(self, step: int, metrics: Mapping[str, float], examples: Examples | None) -> None:
        if examples is not None:
            self.samples(step, examples.groups, examples.scores, "train")
        self.log(step, metrics)

    def after_evaluation(self, step: int, metrics: Mapping[str, float], examples: Examples) -> None:
        self.log(step, metrics)
        self.samples(step, examples.groups, examples.scores, "eval")

    def after_checkpoint(self, step: int, folder: Path) -> None:
        """Weights stay on this machine."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for tracker in self.trackers.values():
            tracker.log({name: float(value) for name, value in metrics.items()}, step=step)

    def samples(self, step: int, groups: Sequence[Group], scores: Scores, split: str) -> None:
        """A table of completions with their scores, and the pictures shown or made, of the first `num_examples` groups."""
        rows = example_rows(groups[: self.num_examples], scores)
        pictures = [
            (f"{split}/{group.prompt.id}/{place}", picture)
            for group in groups[: self.num_examples]
            for place, picture in pictures_of(group)
        ]
        for name, tracker in self.trackers.items():
            EXAMPLES[name](tracker, step, split, rows, pictures)

    def close(self) -> None:
        for tracker in self.trackers.values():
            tracker.finish()


Pictures = Sequence[tuple[str, Image.Image]]


def started(name: str, folder: Path, project: str) -> Service:
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


def show_in_tensorboard(tracker: Service, step: int, split: str, rows: list[Line], pictures: Pictures) -> None:
    tracker.log({f"{split}/completions": markdown_table(rows)}, step=step)
    for tag, picture in pictures:
        tracker.log_images({tag: np.asarray(picture)[None]}, step=step, dataformats="NHWC")


def show_in_wandb(tracker: Service, step: int, split: str, rows: list[Line], pictures: Pictures) -> None:
    if rows:
        tracker.log_table(f"{split}/completions", columns=list(rows[0]), data=[list(row.values()) for row in rows], step=step)
    if pictures:
        tracker.log_images({f"{split}/pictures": [picture for _, picture in pictures]}, step=step)


def show_in_trackio(tracker: Service, step: int, split: str, rows: list[Line], pictures: Pictures) -> None:
    import pandas
    import trackio  # pyright: ignore[reportMissingImports] - part of the extra [track]

    tracker.log({f"{split}/completions": trackio.Table(dataframe=pandas.DataFrame(rows))}, step=step)
    for tag, picture in pictures:
        tracker.log({tag: trackio.Image(picture, caption=tag)}, step=step)


EXAMPLES: dict[str, Callable[[Service, int, str, list[Line], Pictures], None]] = {
    "tensorboard": show_in_tensorboard,
    "wandb": show_in_wandb,
    "trackio": show_in_trackio,
}


def example_rows(groups: Sequence[Group], scores: Scores) -> list[Line]:
    """One row of plain values per sample of the first groups; `scores` begins with their rows."""
    totals, values, status = scores.total().tolist(), scores.values.tolist(), scores.status.tolist()
    samples = [(group, sample) for group in groups for sample in group.samples]
    return [
        {"prompt": group.prompt.id, "text": group.prompt.text, "completion": sample.text or "", "total": total}
        | {name: v if s == Status.OK else None for name, v, s in zip(scores.names, row, states, strict=True)}
        for (group, sample), total, row, states in zip(samples, totals, values, status, strict=False)
    ]


def pictures_of(group: Group) -> list[tuple[str, Image.Image]]:
    """The pictures of a prompt and those that its samples made, each with its place in the group.

    Videos are strips, and pictures made of a prompt's picture stand beside it.
    """
    shown = [(f"prompt-{i}", media) for i, media in enumerate(group.prompt.media)]
    source = frames_of(group.prompt.media[0])[0][:1] if group.prompt.media else []
    made = [(f"sample-{i}", x) for i, sample in enumerate(group.samples) for x in (sample.image, sample.video) if x is not None]
    found: list[tuple[str, Image.Image]] = []
    for place, media in shown + made:
        frames, kind = frames_of(media)
        if frames:
            beside = source if kind == "picture" and place.startswith("sample") else []
            found.append((place, (strip([*beside, *frames]) if beside or kind != "picture" else frames[0]).convert("RGB")))
    return found


def markdown_table(rows: list[Line]) -> str:
    """TensorBoard shows text as Markdown; cells keep to one line and show HTML as text."""
    if not rows:
        return "no samples"
    escape = {"|": "\\|", "\n": " ", "<": "&lt;", ">": "&gt;", "&": "&amp;"}
    cells = [["".join(escape.get(c, c) for c in str(value)) for value in row.values()] for row in rows]
    lines = [list(rows[0]), ["---"] * len(rows[0]), *cells]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def flat(config: Mapping[str, object], prefix: str = "") -> dict[str, str | int | float | bool]:
    """Nested tables as dotted names; lists become one string."""
    found: dict[str, str | int | float | bool] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value if isinstance(value, str | int | float | bool) else str(value)
    return found


class Progress:
    """A progress bar with the step's key figures, speed and time left; plain lines where there is no terminal."""

    def __init__(
        self,
        num_steps: int,
        prompts_per_step: int,
        console: Console | None = None,
        every_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.num_steps, self.prompts_per_step, self.every_s, self.clock = num_steps, prompts_per_step, every_s, clock
        self.console = console or Terminal(stderr=True)
        self.first: dict[str, float] = {}
        self.started: tuple[int, float] | None = None
        self.last_line = -float("inf")
        self.bar = Bar(
            TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
            BarColumn(bar_width=None),
            TaskProgressColumn(),
            TextColumn("{task.description}", markup=False),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
        )
        self.task = self.bar.add_task("", total=num_steps)
        if self.console.is_terminal:
            self.bar.start()

    def after_step(self, step: int, metrics: Mapping[str, float], examples: Examples | None) -> None:
        """Move the bar."""
        now = self.clock()
        self.started = self.started or (step, now - metrics.get("time/step_s", 0.0))
        text = printable("  ".join(filter(None, (figures(metrics, self.prompts_per_step), time_line(metrics)))))
        self.bar.update(self.task, completed=step, description=text)
        if not self.console.is_terminal and (now - self.last_line >= self.every_s or step == self.num_steps):
            self.last_line = now
            self.console.print(
                f"step {step}/{self.num_steps}  {text}  {self._time_left(step, now)}",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )

    def after_evaluation(self, step: int, metrics: Mapping[str, float], examples: Examples) -> None:
        """Write the figures above the bar, compared with the first, without rewards' parts."""
        held_out = {name.removeprefix("eval/"): value for name, value in metrics.items()}
        shown = [f"{name} {value:.3f}" + self._change(name, value) for name, value in held_out.items() if "/" not in name]
        self.console.print(f"step {step}  held out: {'  '.join(shown)}", markup=False, highlight=False, soft_wrap=True)

    def after_checkpoint(self, step: int, folder: Path) -> None:
        """Only the end of a run names its folder."""

    def close(self) -> None:
        if self.console.is_terminal:
            self.bar.stop()

    def _change(self, name: str, value: float) -> str:
        if name not in self.first:
            self.first[name] = value
            return ""
        return f" ({value - self.first[name]:+.3f})"

    def _time_left(self, step: int, now: float) -> str:
        assert self.started is not None
        done = step - self.started[0] + 1
        return f"{duration((now - self.started[1]) / done * (self.num_steps - step))} left"


def figures(metrics: Mapping[str, float], prompts_per_step: int) -> str:
    """'reward 0.41  iou 0.31  no spread 0.12  kl 0.0031  length 17  8.1 prompts/s  1.1k actions/s'."""
    shown = [(label, metrics[name]) for label, name in KEY_FIGURES if name in metrics]
    parts = [(name.removeprefix("reward/"), v) for name, v in metrics.items() if is_reward(name)]
    shown[1:1] = parts if len(parts) > 1 else []
    texts = [f"{label} {value:.3g}" for label, value in shown]
    seconds = metrics.get("time/step_s", 0.0)
    if seconds > 0:
        texts.append(f"{prompts_per_step / seconds:.1f} prompts/s")
        if "rollout/actions" in metrics:
            texts.append(f"{metrics['rollout/actions'] / seconds:.0f} actions/s")
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
