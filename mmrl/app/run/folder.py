"""The folder of one run: where everything lies, and the lines of numbers and warnings in it."""

import json
import logging
import math
import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from glob import escape
from importlib.metadata import PackageNotFoundError, version
from logging.handlers import MemoryHandler
from pathlib import Path
from typing import Any

from mmrl import __version__
from mmrl.app.files import Below, replace_text
from mmrl.runtime.disk import room_for
from mmrl.runtime.near import near
from mmrl.runtime.net.secrets import hide_in_json

PACKAGES = ("torch", "torchvision", "transformers", "diffusers", "accelerate", "peft", "numpy", "pillow")
"""What can change a run's numbers."""
CHANGED = "run/changed_settings"
"""The metric that says how many settings changed before the next step."""
SEEN = "seen"
"""The split under which answers to training prompts are kept in a run that has no held-out ones."""
REQUESTS = ("stop", "checkpoint")
"""What a run can be asked for while it trains, by a file `stop.request` or `checkpoint.request` in its folder."""
Line = dict[str, Any]


@dataclass(frozen=True)
class JsonLines:
    """The lines of a file, and whether its last one was torn (a run killed while writing); a torn line is left out."""

    lines: list[Line]
    torn: bool = False


@dataclass(frozen=True)
class RunDir:
    """The folder of a run: config.toml, versions.json, samples/, checkpoints/, report.html, and {metrics, spans, warnings,
    changes}.jsonl.

    `RunDir(path)` only names the files; `create` starts a run, `open` finds one.
    """

    path: Path

    config_file = Below("config.toml")
    prompt_file = Below("prompt.txt")
    """The first prompt as the model reads it."""
    template_file = Below("prompt_template.json")
    """The text around every prompt, and how held-out ones are answered."""
    metrics_file = Below("metrics.jsonl")
    spans_file = Below("spans.jsonl")
    """Spans of some steps: when each part of them ran (mmrl/app/run/trackers.py)."""
    warnings_file = Below("warnings.jsonl")
    versions_file = Below("versions.json")
    changes_file = Below("changes.jsonl")
    start_file = Below("started_in.txt")
    settings_file = Below("settings.json")
    """Who chose which settings."""
    samples = Below("samples")
    media = Below("samples/media")
    checkpoints = Below("checkpoints")
    report_file = Below("report.html")

    @classmethod
    def create(cls, path: Path | str) -> "RunDir":
        """A new run folder with its versions.json; ValueError if the folder already holds a run."""
        run = cls(Path(path))
        if run.exists():
            raise ValueError(
                f"{run.path} already holds a run: choose another output folder, or continue it with --resume {run.path}"
            )
        run.samples.mkdir(parents=True, exist_ok=True)
        replace_text(run.versions_file, json.dumps(installed_versions(), indent=2) + "\n")
        replace_text(run.start_file, f"{Path.cwd()}\n")
        return run

    @classmethod
    def open(cls, path: Path | str) -> "RunDir":
        """A run that is already there; FileNotFoundError if there is none."""
        run = cls(Path(path))
        if not run.path.is_dir():
            raise FileNotFoundError(
                f"{run.path} is not a folder{near(run.path)}: give the output folder of a run (it holds config.toml and "
                "metrics.jsonl)"
            )
        if not run.exists():
            raise FileNotFoundError(f"{run.path} holds neither config.toml nor metrics.jsonl: give the output folder of a run")
        return run

    def exists(self) -> bool:
        return self.config_file.exists() or self.metrics_file.exists()

    def request_file(self, what: str) -> Path:
        """The file that asks for one of REQUESTS."""
        return self.path / f"{what}.request"

    def take_requests(self) -> frozenset[str]:
        """Those of REQUESTS that were asked for since the last call; their files are removed."""
        found: set[str] = set()
        for what in REQUESTS:
            with suppress(OSError):
                self.request_file(what).unlink()
                found.add(what)
        return frozenset(found)

    def samples_file(self, split: str, step: int) -> Path:
        return self.samples / f"{split}-{step:06d}.jsonl"

    def also_names(self) -> list[str]:
        """The further ways in which held-out prompts were answered, of which there are samples."""
        found = {file.stem.rpartition("-")[0] for file in self.samples.glob(also_split("*-*.jsonl"))}
        return sorted(name.removeprefix(also_split("")) for name in found)

    def sample_steps(self, split: str) -> list[int]:
        """The steps at which samples of this split were written, ascending."""
        return sorted(int(file.stem.rsplit("-", 1)[1]) for file in self.samples.glob(f"{escape(split)}-*.jsonl"))

    def append(self, step: int, metrics: Mapping[str, float]) -> None:
        """One more line of metrics.jsonl, on disk when this returns. Numbers that JSON lacks become "NaN", "Infinity"."""
        append_line(self.metrics_file, {"step": step} | {name: to_json(float(value)) for name, value in metrics.items()})

    def read_metrics(self) -> JsonLines:
        """All lines as numbers, none of an absent file; ValueError where a line before the last is not JSON."""
        read = read_lines(self.metrics_file)
        return JsonLines(
            [{name: float(x) if name != "step" else int(x) for name, x in line.items()} for line in read.lines], read.torn
        )

    def truncate(self, step: int) -> None:
        """Forget everything written after `step`, so that a resumed run repeats no line."""
        for file in (self.metrics_file, self.spans_file, self.warnings_file):
            if file.exists():
                kept = [line for line in read_lines(file).lines if line["step"] <= step]
                replace_text(file, "".join(map(as_text, kept)))
        if self.changes_file.exists():
            # config.toml is not taken back, so what changed later holds from here on
            kept = [line | {"step": min(line["step"], step)} for line in read_lines(self.changes_file).lines if step >= 0]
            replace_text(self.changes_file, "".join(map(as_text, kept)))
        for file in self.samples.glob("*-*.jsonl"):
            if int(file.stem.rsplit("-", 1)[1]) > step:
                file.unlink()

    @contextmanager
    def record_warnings(self, step: Callable[[], int], early: MemoryHandler | None = None) -> Iterator[None]:
        """Write the warnings of the logger `mmrl` to warnings.jsonl, too, with the step they happened at.

        Those of `early` come first, unless they are there: a run that resumes says them again.
        """
        handler = WarningsFile(self.warnings_file, step)
        logger = logging.getLogger("mmrl")
        logger.addHandler(handler)
        if early is not None:
            known = {line["text"] for line in read_lines(self.warnings_file).lines}
            logger.removeHandler(early)
            handler.addFilter(is_fresh := lambda record: record.getMessage() not in known)
            early.setTarget(handler)
            early.close()
            handler.removeFilter(is_fresh)
        try:
            yield
        finally:
            logger.removeHandler(handler)


@contextmanager
def early_warnings() -> Iterator[MemoryHandler]:
    """Keep the warnings of the logger `mmrl` that come while a run has no folder, for `record_warnings`."""
    held, logger = MemoryHandler(10_000, logging.CRITICAL + 1), logging.getLogger("mmrl")
    held.setLevel(logging.WARNING)
    logger.addHandler(held)
    try:
        yield held
    finally:
        logger.removeHandler(held)


def also_split(name: str) -> str:
    """The split under which samples of one of `[[evaluation.also]]` are kept."""
    return f"also.{name}"


class WarningsFile(logging.Handler):
    """Writes log records from WARNING up as lines {"step", "level", "text"}."""

    def __init__(self, file: Path, step: Callable[[], int]) -> None:
        super().__init__(logging.WARNING)
        self.file = file
        self.step = step

    def emit(self, record: logging.LogRecord) -> None:
        append_line(self.file, {"step": self.step(), "level": record.levelname.lower(), "text": record.getMessage()})


def append_line(file: Path, line: Mapping[str, object]) -> None:
    """One more line, on disk when this returns."""
    with room_for(file), file.open("a", encoding="utf-8") as stream:
        stream.write(as_text(line))
        stream.flush()
        os.fsync(stream.fileno())


def as_text(line: Mapping[str, object]) -> str:
    """The object as one line of JSON without keys, newline included."""
    return json.dumps(hide_in_json(line), ensure_ascii=False) + "\n"


def read_lines(file: Path) -> JsonLines:
    """The JSON objects of a .jsonl file, none of an absent one; ValueError where a line before the last is not JSON."""
    if not file.exists():
        return JsonLines([])
    texts = [text for text in file.read_text(encoding="utf-8", errors="replace").split("\n") if text.strip()]
    lines: list[Line] = []
    for number, text in enumerate(texts, start=1):
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            if number < len(texts):
                raise ValueError(
                    f"{file}, line {number} is not JSON: the file was changed by hand or by a full disk; remove the line"
                ) from None
            return JsonLines(lines, torn=True)
    return JsonLines(lines)


def to_json(value: float) -> float | str:
    """The number, or the word for one that JSON lacks; `float` reads both back."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def installed_versions() -> dict[str, str]:
    """Versions of what can change a run's numbers."""
    found = {"mmrl": __version__, "python": platform.python_version(), "platform": platform.platform()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def lines_of_changes(run: RunDir) -> list[str]:
    """A sentence for every time that settings changed: "changed at step 31: optimizer.lr 1e-06 -> 1e-05"."""
    by_step: dict[int, list[str]] = {}
    for line in read_lines(run.changes_file).lines:
        by_step.setdefault(int(line["step"]) + 1, []).append(f"{line['key']} {line['before']} -> {line['after']}")
    return [f"changed at step {step}: {', '.join(texts)}" for step, texts in by_step.items()]
