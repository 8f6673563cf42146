"""The folder of one evaluation: what was evaluated, every sample, and how far it has come, so that a killed one goes on."""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from mmrl.app.config import run as configs
from mmrl.app.config.run import RunConfig
from mmrl.app.files import Below, replace_text
from mmrl.app.run.folder import Line, as_text, read_lines
from mmrl.app.run.resume import changed_settings
from mmrl.app.run.sample_files import digest_of_prompt
from mmrl.core.types import Prompt
from mmrl.runtime.disk import room_for

OF_TABLES = (("evaluation", "by"),)
"""Settings that change what is made of the samples, and no sample."""
READ = ("prompt", "text", "completion", "scores", "total", "answer_boxes", "media", "media_sizes", "box_space")
"""What is read of every line of predictions.jsonl; other keys may be missing."""


@dataclass(frozen=True)
class Subject:
    """Which weights answer which prompts: two evaluations of equal subjects and settings are the same one."""

    weights: str
    """A run's folder and step, or the model's name."""
    prompts: str
    """A digest of the held-out prompts."""
    num_prompts: int

    @classmethod
    def of(cls, weights: str, prompts: Sequence[Prompt]) -> "Subject":
        digest = hashlib.sha256("".join(map(digest_of_prompt, prompts)).encode())
        return cls(weights, digest.hexdigest()[:20], len(prompts))


@dataclass(frozen=True)
class EvaluationDir:
    """evaluation.toml, predictions.jsonl, media/, progress.json and summary.json of one evaluation; only names the files."""

    path: Path

    config_file = Below("evaluation.toml")
    predictions = Below("predictions.jsonl")
    """One line per sample, in the order of the prompts; of further ways to answer after those of the first."""
    media = Below("media")
    progress_file = Below("progress.json")
    """The subject, how many prompts are answered in which way, and how long predictions.jsonl is with them."""
    summary_file = Below("summary.json")
    """The numbers; there once the evaluation is finished."""

    @property
    def is_begun(self) -> bool:
        return self.progress_file.is_file() and self.config_file.is_file()

    @property
    def is_finished(self) -> bool:
        return self.summary_file.is_file()

    def begin(self, subject: Subject, config: RunConfig) -> None:
        """Write down what is evaluated, or take away what a killed process wrote half; ValueError if lines are damaged."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not self.is_begun:
            configs.save(replace(config, output=""), self.config_file)
            self.predictions.write_bytes(b"")
            self._note(subject, {}, 0)
        self.predictions.touch()
        wanted, there = self._progress()["bytes"], self.predictions.stat().st_size
        if there < wanted:
            raise ValueError(f"{self.predictions} has {there} bytes, and had {wanted}: remove {self.path} and evaluate again")
        os.truncate(self.predictions, wanted)

    def differences(self, subject: Subject, config: RunConfig) -> list[str]:
        """The settings and facts that are others in the evaluation that is here; none where it is the same one."""
        before = configs.load(str(self.config_file)).config
        known = Subject(**self._progress()["subject"])
        found = [str(one) for one in changed_settings(before, config) if one.path not in OF_TABLES]
        if known.weights != subject.weights:
            found.insert(0, f"its weights are those of {known.weights}, not {subject.weights}")
        elif known != subject:
            found.append(f"its {known.num_prompts} prompts are others")
        return found

    def num_done(self, way: str) -> int:
        """The prompts that are answered in this way."""
        return int(self._progress()["done"].get(way, 0))

    def add(self, way: str, lines: Iterable[Line], done: int) -> None:
        """Write the samples of further prompts; `done` prompts are answered then. A kill in between forgets these samples."""
        with room_for(self.predictions, "evaluate again: it goes on"), self.predictions.open("ab") as stream:
            stream.write("".join(map(as_text, lines)).encode())
            stream.flush()
            os.fsync(stream.fileno())
            size = stream.tell()
        progress = self._progress()
        self._note(Subject(**progress["subject"]), {**progress["done"], way: done}, size)

    def lines(self) -> list[Line]:
        """Every sample; FileNotFoundError if there are none, ValueError where a line is not JSON."""
        return prediction_lines(self.predictions)

    def finish(self, summary: Mapping[str, object]) -> None:
        replace_text(self.summary_file, json.dumps(summary, indent=1, ensure_ascii=False) + "\n")

    def _progress(self) -> Line:
        try:
            found = json.loads(self.progress_file.read_text(encoding="utf-8"))
            Subject(**found["subject"])
            return {"subject": found["subject"], "done": dict(found["done"]), "bytes": int(found["bytes"])}
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.progress_file} is damaged ({error}): remove {self.path} and evaluate again") from None

    def _note(self, subject: Subject, done: Mapping[str, int], size: int) -> None:
        progress = {"subject": vars(subject), "done": done, "bytes": size}
        replace_text(self.progress_file, json.dumps(progress, indent=1) + "\n")


def prediction_lines(file: Path) -> list[Line]:
    """The samples of a predictions.jsonl; FileNotFoundError without it, ValueError if it holds something else."""
    if not file.is_file():
        raise FileNotFoundError(f"{file} is not there: `mmrl eval` writes it")
    lines = read_lines(file).lines
    for number, line in enumerate(lines, start=1):
        lacking = [name for name in READ if name not in line]
        if lacking:
            raise ValueError(f"{file}, line {number} has no {lacking[0]!r}: give a predictions.jsonl that `mmrl eval` wrote")
    return lines
