"""A published test set: files, prompts, a scorer, and which of its numbers is the headline."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from mmrl.answers.block import answer_block, opened_text
from mmrl.answers.boxes.box import Space
from mmrl.core.samples import Prompt, Sample, Scored
from mmrl.data.readers import Row, prompts_of, read_rows
from mmrl.data.validate import Report
from mmrl.data.video_rows import VideoFolder
from mmrl.runtime.near import near

Scorer = Callable[[Prompt, Sample, Space], Scored]
"""The score of one sample. The space is how the model writes boxes; norm1 where that does not matter."""
Rows = Callable[["Suite", Path, Report], Iterable[Row]]
"""The rows of a suite's files in a folder; those that cannot be read go into the report."""
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


def rows_of_files(suite: "Suite", folder: Path, report: Report) -> Iterator[Row]:
    """The rows of all files but media, file after file; the source of a row is its file's path in the folder."""
    for file in suite.files:
        if not file.is_media:
            yield from (replace(row, source=file.name) for row in read_rows(folder / file.name, report))


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
    prompt: Callable[[Row, VideoFolder], Prompt]
    """The prompt of a row, given the folder of pictures or clips; ValueError for a row of another layout."""
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
    rows: Rows = rows_of_files
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


NAMED = 3
"""Missing files that an error names."""


def load_suite(
    suite: Suite, path: str | Path | None = None, media: str | Path | None = None, any_size: bool = False
) -> list[Prompt]:
    """All prompts of a suite, in the order of its files.

    Args:
        path: the folder with its files; None: the hub's snapshot of them on this machine.
        media: the folder of pictures or clips; None: the one in `path` that the suite names.
        any_size: True takes files with another number of prompts than was published.

    Raises:
        FileNotFoundError: files are missing.
        ValueError: files of another version.
    """
    folder = find_folder(suite, path)
    named = [folder / file.name for file in suite.files if file.is_media]
    shown = Path(media).expanduser() if media is not None else named[0] if len(named) == 1 else folder
    if not shown.is_dir():
        raise FileNotFoundError(
            f"{shown} is no folder{near(shown)}: set evaluation.data.media to the pictures or clips of suite {suite.name}"
        )
    report, clips = Report(str(folder)), VideoFolder(shown)
    prompts = list(prompts_of(suite.rows(suite, folder, report), report, lambda row: suite.prompt(row, clips)))
    if not report.ok:
        first, more = report.problems[0], f" (and {report.num_problems - 1} more)" if report.num_problems > 1 else ""
        raise ValueError(f"{folder} lacks something of suite {suite.name}, or is another version of it: {first}{more}")
    found = Counter(str(prompt.columns[suite.by[0]]) for prompt in prompts)
    for kind, size in {**dict.fromkeys(found, 0), **suite.sizes}.items():
        if found[kind] != size and not any_size:
            counted = "prompt of" if found[kind] == 1 else "prompts of"
            raise ValueError(
                f"{folder} has {found[kind]} {counted} {suite.by[0]} {kind!r}, and suite {suite.name} was published with "
                f"{size}: get its published files, or set evaluation.data.any_size=true, whose numbers compare with no paper"
            )
    return prompts


def find_folder(suite: Suite, path: str | Path | None) -> Path:
    """The folder with the suite's files; FileNotFoundError names the missing ones and where they come from."""
    folder = snapshot(suite.hub) if path is None else Path(path).expanduser()
    missing = [file for file in suite.files if folder is None or not (folder / file.name).exists()]
    # pictures may be elsewhere: evaluation.data.media then names the folder
    if folder is not None and all(file.is_media for file in missing):
        return folder
    files = ", ".join([*map(str, missing[:NAMED]), *([f".. ({len(missing)} in all)"] if len(missing) > NAMED else [])])
    where = "" if folder is None else f" in {folder}" if folder.is_dir() else f": there is no folder {folder}{near(folder)}"
    raise FileNotFoundError(
        f"suite {suite.name} lacks files{where}, and nothing is downloaded: get {files} and name their folder with --data"
    )


def snapshot(repository: str) -> Path | None:
    """The newest snapshot of a data set of the hub on this machine; None without one."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(repository, repo_type="dataset", local_files_only=True)) if repository else None
    except FileNotFoundError:
        return None
