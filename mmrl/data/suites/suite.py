"""A published test set: files, prompts, a scorer, and which of its numbers is the headline."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from mmrl.answers.block import answer_block, opened_text
from mmrl.answers.boxes.box import Space
from mmrl.core.samples import Prompt, Sample, Scored
from mmrl.data.readers import Row
from mmrl.data.validate import Report

Scorer = Callable[[Prompt, Sample, Space], Scored]
"""The score of one sample. The space is how the model writes boxes; norm1 where that does not matter."""
Reader = Callable[[Path, Path, Report], Iterable[Prompt]]
"""The prompts in a folder, given the folder of pictures or clips as well; rows of another layout go into the report."""
Verdict = Callable[[Prompt, Sequence[str]], Scored]
"""The score of one sample from a judge's answers to the questions of its prompt; NO_VERDICT where they cannot be read."""
NO_VERDICT = Scored(None, {"unparsed": 1.0})
"""The sample is left out, as official code does."""
OWN: Mapping[str, object] = MappingProxyType({"use": "suite"})
READS_BOXES: Mapping[str, object] = MappingProxyType({"use": "suite", "space": "auto"})


@dataclass(frozen=True)
class SuiteFile:
    """A file that a suite needs: `SuiteFile("refs(unc).p", "https://github.com/lichengunc/refer", "Apache-2.0")`."""

    name: str
    """Its path in the suite's folder; a folder of pictures or clips ends in a slash."""
    source: str
    """The address of its publisher."""
    licence: str

    @property
    def is_media(self) -> bool:
        return self.name.endswith("/")

    def __str__(self) -> str:
        return f"{self.name} ({self.source}; {self.licence})"


@dataclass(frozen=True)
class Judge:
    """A model that looks at what was drawn and answers the questions in the prompt's column `questions`."""

    model: str
    """The one that published numbers are of."""
    source: str
    """Where it comes from."""
    read: Verdict
    text_first: bool = False
    """True: the question stands in front of the pictures."""


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A published test set."""

    name: str
    measures: str
    paper: str
    """Its arXiv id."""
    files: tuple[SuiteFile, ...]
    read: Reader
    sizes: Mapping[str, int]
    """Value of the first column in `by` -> how many prompts were published."""
    figures: Mapping[str, str | tuple[str, ...]]
    """Figure -> the reward, or its part, that holds it (`suite`, `suite/iou`); the first is the headline.

    A tuple names kinds of the column `points`: the mean over them of the share of points, over all samples, that are right.
    """
    by: tuple[str, ...]
    """Columns whose every value gets its own figures."""
    exact: str
    """What equals the official scorer, and what does not."""
    macro: tuple[str, ...] = ()
    """Columns whose values count equally, from the outermost; without any, every prompt does."""
    score: Scorer | None = None
    """None: another reward scores it."""
    judge: Judge | None = None
    """Answers what the reward `suite_judge` asks."""
    reward: Mapping[str, object] = field(default_factory=lambda: OWN)
    """The `[[reward]]` table that scores it."""
    kind: Literal["text", "flow"] = "text"
    max_new_tokens: int = 0
    """The longest answer; of suites whose answers are texts."""
    num_samples: int = 1
    hub: str = ""
    """The data set on the hub whose snapshot holds the files under these names; empty: none does."""

    @property
    def num_prompts(self) -> int:
        """How many prompts were published."""
        return sum(self.sizes.values())

    @property
    def counts_points(self) -> bool:
        """True where a figure is of points instead of prompts."""
        return not all(isinstance(key, str) for key in self.figures.values())


def answer_text(sample: Sample) -> str:
    """The answer of a sample: its `<answer>` block if it has one, else its text without its thought."""
    return answer_block(opened_text(sample))


def part_of(kind: str) -> str:
    """The part of a reward that holds a kind's share: "Attribute - Color" is attribute_color."""
    return re.sub(r"\W+", "_", kind.lower()).strip("_")


def kinds_of(point: str) -> tuple[str, ...]:
    """The kinds that a point counts for: "Attribute - Color" for itself and for Attribute."""
    return tuple(dict.fromkeys((point.split("-")[0].strip(), point)))


def shares(points: Sequence[str], right: Sequence[float]) -> dict[str, float]:
    """The share of right points of every kind, by `part_of`."""
    found: dict[str, list[float]] = {}
    for point, value in zip(points, right, strict=True):
        for kind in kinds_of(point):
            found.setdefault(part_of(kind), []).append(value)
    return {part: sum(values) / len(values) for part, values in found.items()}


def prompts_of(rows: Iterable[Row], report: Report, make: Callable[[Row], Prompt]) -> Iterator[Prompt]:
    """The prompt of every row; rows that lack something go into the report."""
    for row in rows:
        report.num_rows += 1
        found: Prompt | None = None
        with report.collecting(row.place):
            found = make(row)
        if found is not None:
            yield found
