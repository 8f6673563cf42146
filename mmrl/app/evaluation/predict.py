"""The loop of an evaluation: chunk after chunk is answered, scored and written, so that a killed one goes on where it was."""

import time
from collections.abc import Callable, Iterator, Sequence

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mmrl.app.errors import Lines, Terminal, printable
from mmrl.app.report.rows import SampleLine
from mmrl.app.run.evaluation_folder import EvaluationDir
from mmrl.app.run.folder import Line
from mmrl.app.run.revive import Ready
from mmrl.app.run.sample_files import sample_lines
from mmrl.core.ranks import Ranks
from mmrl.training.callbacks import Examples
from mmrl.training.evaluate import Answered, Evaluator, Variant
from mmrl.training.measure import diversity


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
        self,
        num_prompts: int,
        console: Console | None = None,
        every_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
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
