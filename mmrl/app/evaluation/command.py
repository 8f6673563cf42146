"""`mmrl eval`: a run's checkpoint, a config's model as it is, or any model on any data; every sample and number is kept."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path

import torch
import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mmrl.app.commands.options import EvalArguments
from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved, resolve
from mmrl.app.config.tasks import one_line
from mmrl.app.errors import Lines, Terminal, printable
from mmrl.app.evaluation.tables import (
    ALL,
    metrics_of,
    numbers,
    of_suite,
    print_numbers,
    suite_facts,
    suite_numbers,
    suite_words,
    summary,
)
from mmrl.app.files import json_text
from mmrl.app.plugins.lab import TINY
from mmrl.app.plugins.suites import find_suite
from mmrl.app.report.rows import SampleLine
from mmrl.app.run.context import RUNS, console, distributed_run
from mmrl.app.run.evaluation_folder import EvaluationDir, Subject
from mmrl.app.run.folder import Line, RunDir
from mmrl.app.run.launch import check_same, lock_folder
from mmrl.app.run.revive import EvaluationPlan, Ready, ask, prepare
from mmrl.app.run.sample_files import sample_lines
from mmrl.core.ranks import Ranks
from mmrl.runtime.accelerator import Accelerator
from mmrl.runtime.repeating import deterministic
from mmrl.training.callbacks import Examples
from mmrl.training.evaluate import Answered, Evaluator, Variant
from mmrl.training.measure import diversity

USUAL_REWARDS: dict[str, tuple[str, ...]] = {"grounding": ("iou",), "video": ("by_type",), "qa": ("by_type",)}
"""Task -> the rewards that its answers are scored with where none are named."""


def resolve_words(given: EvalArguments) -> tuple[Resolved, RunDir | None]:
    """The settings that they describe, and the run whose weights answer.

    Raises FileNotFoundError without such a run, config or data, and ValueError for neither a run, a config, a suite nor a
    task, two of them, or options that belong to another one.
    """
    words = list(given.arguments)
    name = words.pop(0) if words and "=" not in words[0] else None
    if given.suite is not None:
        return words_of_suite(given, given.suite, name, words)
    if given.task is not None:
        if name is not None:
            raise ValueError(
                f"give a run or config ({name}) or --task {given.task}, not both: a model is named as in "
                f"--model {name}, and settings are written key=value"
            )
        if given.step is not None:
            raise ValueError(f"--step {given.step} needs a run's folder; --task {given.task} evaluates a model as it is")
        return of_task(given.task, given.model, given.data, given.rewards, words), None
    for option, value in (("--model", given.model), ("--data", given.data), ("--reward", given.rewards)):
        if value:
            raise ValueError(
                f"{option} goes with --task, for example mmrl eval --task grounding --model M --data boxes.jsonl; for a run "
                "or config write policy.model=..., evaluation.data.path=... or [[reward]]"
            )
    if name is None:
        raise ValueError("give a run's folder, a config (see `mmrl ls configs`), or --task with --model and --data")
    run = RunDir.open(name) if Path(name).is_dir() else None
    if run is None and given.step is not None:
        raise ValueError(f"--step {given.step} needs a run's folder; {name} is a config")
    return configs.load(str(run.config_file) if run else name, words), run


def words_of_suite(given: EvalArguments, suite: str, name: str | None, words: Sequence[str]) -> tuple[Resolved, RunDir | None]:
    """A run or model on a published test set; ValueError for neither, both, or options that the suite settles."""
    if (name is None) == (given.model is None) or given.task is not None or given.rewards:
        raise ValueError(
            f"--suite {suite} needs a run's folder or a model, and settles task and rewards: write "
            f"mmrl eval MODEL --suite {suite} --data FOLDER"
        )
    resolved, run = of_suite(suite, str(name or given.model), given.data, words)
    if run is None and given.step is not None:
        raise ValueError(f"--step {given.step} needs a run's folder; {name or given.model} is a model")
    return resolved, run


def of_task(task: str, model: str | None, data: str | None, rewards: Sequence[str], overrides: Sequence[str]) -> Resolved:
    """A model as it is on data of a task: all of the file that is named, or of a folder the part that nothing trains on.

    Raises FileNotFoundError without the data, ValueError for an unknown task or if something is missing.
    """
    resolved = one_line(task, model, data, rewards or USUAL_REWARDS.get(task, ()), overrides)
    table, path = resolved.table, ("evaluation", "data")
    is_said = any(word.startswith("evaluation.data") for word in overrides)
    beside = table.values.get("evaluation", {}).get("data") is not None and Path(str(data)).expanduser().is_dir()
    if not is_said and not beside:
        table.set(path, deepcopy(table.values["data"]), "--data")
    if not any(word.startswith("evaluation.num_prompts") for word in overrides):
        table.set(("evaluation", "num_prompts"), ALL, f"task {task}")
    if table.origin(("policy", "lora")) == f"task {task}":
        table.values["policy"].pop("lora")
    is_real = not str(model).startswith(TINY)
    if is_real and torch.cuda.is_available() and table.origin(("policy", "dtype")) in (None, f"task {task}"):
        table.set(("policy", "dtype"), "bfloat16", f"task {task}, for a GPU")
    return resolve(table, (), task)


def run_evaluation(given: EvalArguments) -> Mapping[str, float]:
    """Answer held-out prompts, write every sample and print the numbers, which are returned under their names in metrics.jsonl.

    An evaluation that was killed goes on where it was, if the same words are given again. With --json it prints what summary.json
    holds, and where the samples are.
    Raises FileNotFoundError without a run, config, data, model or plug-in, and ValueError if no held-out prompts are named, the
    settings do not fit together, or the folder holds another evaluation.
    """
    resolved, run = resolve_words(given)
    suite = None if given.suite is None else find_suite(given.suite)
    with deterministic(resolved.config.deterministic), distributed_run() as (accelerator, ranks):
        check_same(ranks, resolved)
        asked = ask(resolved, ranks, run, given.step)
        subject = Subject.of(asked.weights, asked.prompts)
        place = EvaluationDir(folder_for(asked, subject, given.output, ranks))
        with lock_folder(place.path, ranks):
            if not place.is_finished:
                answer(asked, subject, place, accelerator, ranks)
            lines = place.lines() if ranks.is_main else []
            by = asked.config.evaluation.by
            metrics = metrics_of(lines, by)
            if ranks.is_main:
                found = numbers(lines, by) if suite is None else suite_numbers(suite, lines)
                facts = {"weights": asked.weights, "prompts": subject.num_prompts, "samples": len(lines)}
                facts |= {} if suite is None else suite_facts(suite, resolved)
                place.finish(contents := summary(found, facts, metrics))
                if given.as_json:
                    typer.echo(json_text({**contents, "predictions": place.predictions}))
                    return metrics
                many = "" if asked.config.evaluation.num_samples == 1 else f", {asked.config.evaluation.num_samples} samples each"
                what = f"{subject.num_prompts} held-out prompts" if suite is None else suite_words(suite, facts)
                print_numbers(f"{asked.weights}: {what}{many}", found, Terminal(markup=True))
                console.print(f"every sample: {place.predictions}", markup=False, highlight=False)
    return metrics


def answer(asked: EvaluationPlan, subject: Subject, place: EvaluationDir, accelerator: Accelerator | None, ranks: Ranks) -> None:
    """Load the model and answer what is not answered yet."""
    ready = prepare(asked, ranks, accelerator)
    meter = None
    if ranks.is_main:
        place.begin(subject, asked.config)
        if done := place.num_done(""):
            console.print(
                f"going on after {done} of {subject.num_prompts} prompts in {place.path}", markup=False, highlight=False
            )
        meter = ProgressLine(subject.num_prompts)
    try:
        predict(ready, place, asked.step, ranks, meter)
    finally:
        ready.evaluator.rewards.close()
        if meter is not None:
            meter.close()


def folder_for(asked: EvaluationPlan, subject: Subject, output: Path | None, ranks: Ranks) -> Path:
    """The folder of this evaluation, the same on all processes; ValueError if `output` holds something else."""
    path, problem = Path(), None
    if ranks.is_main:
        try:
            path = usual_folder(asked, subject, output)
        except ValueError as error:
            problem = str(error)
    ranks.agree(problem)
    return ranks.gather(path)[0]


def usual_folder(asked: EvaluationPlan, subject: Subject, output: Path | None) -> Path:
    """`output`, which may hold this evaluation; else the first of the usual folders that is free or holds it unfinished.

    Raises ValueError if `output` holds something else.
    """
    if output is not None:
        place = EvaluationDir(output.expanduser().absolute())
        if place.is_begun and (found := place.differences(subject, asked.config)):
            raise ValueError(f"{output} holds another evaluation ({found[0]}): choose another --output")
        if not place.is_begun and not is_free(place.path):
            raise ValueError(f"{output} is not empty, and holds no evaluation: choose another --output")
        return place.path
    usual = RUNS / f"eval-{asked.resolved.name}"
    if asked.run is not None:
        usual = asked.run.path / "evaluations" / f"step-{asked.step}"
    usual, number = usual.absolute(), 1
    while True:
        place = EvaluationDir(usual if number == 1 else usual.with_name(f"{usual.name}-{number}"))
        if is_free(place.path):
            return place.path
        if place.is_begun and not place.is_finished and not place.differences(subject, asked.config):
            return place.path
        number += 1


def is_free(folder: Path) -> bool:
    """True if there is no such folder, or nothing in it but the lock of an evaluation that never began."""
    return not folder.exists() or (folder.is_dir() and not {file.name for file in folder.iterdir()} - {".lock"})


def predict(ready: Ready, place: EvaluationDir, step: int, ranks: Ranks, meter: "ProgressLine | None" = None) -> None:
    """Answer and score what is not answered yet, on all processes; the main one writes predictions.jsonl."""
    evaluator = ready.evaluator
    for way in ways(evaluator):
        start = ranks.gather(place.num_done(way.name) if ranks.is_main else 0)[0]
        for mine in evaluator.chunks(way, start):
            pairs = sorted((pair for part in ranks.gather(mine) for pair in part), key=lambda pair: pair[0].id)
            if not ranks.is_main:
                continue
            done = pairs[-1][0].id + 1
            place.add(way.name, prediction_rows(ready, place, step, way.name, pairs), done)
            if meter is not None:
                meter.move(way.name, done)


def ways(evaluator: Evaluator) -> Sequence[Variant]:
    """The way to answer without a name, then those of `[[evaluation.also]]`."""
    return (Variant("", evaluator.sampling, evaluator.settings.weights), *evaluator.variants)


def prediction_rows(ready: Ready, place: EvaluationDir, step: int, way: str, pairs: Answered) -> Iterator[Line]:
    """The lines of predictions.jsonl; drawn pictures are kept pixel for pixel.

    A line is one of a samples file (`mmrl.app.run.sample_files`) and besides: way, parsed (the answer as it was read), tokens of
    the completion, diversity of the prompt's pictures.
    """
    examples: Examples = ready.evaluator.examples(pairs)
    lines = sample_lines(place.media, step, examples, "eval", ready.box_space, whole=True)
    samples = [(sample, spread) for group in examples.groups for spread in [diversity([group])] for sample in group.samples]
    for line, (sample, spread) in zip(lines, samples, strict=True):
        yield line | {
            "way": way,
            "parsed": SampleLine(line, ready.box_space).value,
            "tokens": None if sample.token_ids is None else sample.num_written,
            "diversity": spread[0] if spread else None,
        }


class ProgressLine:
    """How many prompts are answered: a bar on a terminal, else a line now and then."""

    def __init__(
        self, num_prompts: int, console: Console | None = None, every_s: float = 5.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.num_prompts, self.console = num_prompts, console or Terminal(stderr=True)
        self.lines = Lines(self.console, every_s, clock)
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=None),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=self.console,
            transient=True,
        )
        self.task = self.bar.add_task("prompts", total=num_prompts)
        if self.console.is_terminal:
            self.bar.start()

    def move(self, way: str, done: int) -> None:
        """The number of prompts answered in this way."""
        words = printable(f"prompts, {way}" if way else "prompts")
        self.bar.update(self.task, completed=done, description=words)
        self.lines.say(f"{done} of {self.num_prompts} {words}", done == self.num_prompts)

    def close(self) -> None:
        if self.console.is_terminal:
            self.bar.stop()
