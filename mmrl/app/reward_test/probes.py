"""Outputs to test a reward with: those of files, and those whose worth is known, such as the truth, another's and nonsense.

A folder holds pictures or clips, each with its prompt in a .txt file of that name, or a metadata.jsonl (file_name, text).
A .jsonl, .json or .parquet file holds one object per prompt: `prompt` (or question, problem, text), `answer` (or boxes, as
grounding files have them, or `spans`, pairs of seconds), `completion` or `completions`, `image` or `images`, `video` or `videos`,
and whatever columns the rewards need. Without answer and completions, images and videos are what a generator drew; otherwise the
images are what the question is about. Files in other people's layouts (messages, LLaVA, COCO, ..) are read as runs read them.
"""

import inspect
import json
import random
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any, cast

import numpy as np
from PIL import Image

from mmrl.algorithms.planners.taught import message_text
from mmrl.answers.block import Template
from mmrl.answers.boxes.box import Box, Space, as_written, extent
from mmrl.answers.spans.interval import Interval
from mmrl.answers.spans.parsing import format_interval
from mmrl.answers.written import boxes_of, format_answer, format_boxes, in_template
from mmrl.app.config.tasks import root_key
from mmrl.app.plugins import resolve as plugins
from mmrl.app.toml.reader import check_keys
from mmrl.app.toml.tables import COMMAND_LINE, Table
from mmrl.core.types import Group, MediaSize, Prompt, Sample
from mmrl.data.files.mp4 import read_mp4
from mmrl.data.files.paths import path_below
from mmrl.data.files.pictures import size_of, upright
from mmrl.data.grounding import GroundingLayout
from mmrl.data.layouts.base import ANSWERS
from mmrl.data.layouts.base import BOXES as GROUNDING
from mmrl.data.layouts.files import look_at, rows_of
from mmrl.data.layouts.load import read_prompts
from mmrl.data.layouts.source import Guess, foreign, open_foreign
from mmrl.data.layouts.table import NAMES
from mmrl.data.questions import Questions
from mmrl.data.readers import Row
from mmrl.data.validate import FILE_ROW, Report
from mmrl.data.video_rows import spans_of

TEXT = ("prompt", "question", "problem", "caption", "text")
ANSWER = ("answer", "solution", "target_answer")
BOXES = ("boxes", "box", "bbox")
SPANS = ("spans", "span")
OUTPUTS = ("completion", "completions", "image", "images", "video", "videos")


@dataclass(frozen=True)
class ProbeRow:
    """A prompt, and outputs of somebody for it, perhaps none."""

    prompt: Prompt
    samples: tuple[Sample, ...] = ()
    names: tuple[str, ...] = ()
    """The name of each sample: a picture's file, or its number."""

    @property
    def draws(self) -> bool:
        """True for outputs that are pictures or clips."""
        return any(sample.image is not None or sample.video is not None for sample in self.samples)


def read_tasks(
    source: Path,
    layout: str | None = None,
    most: int | None = None,
    say: Callable[[str], object] = str,
    image_root: Path | None = None,
) -> list[ProbeRow]:
    """All rows of a file or folder, of which a layout that is not ours is named to `say`, and read for `most` rows only.

    Paths of pictures and clips start at `image_root`; None: at the source's folder. Raises FileNotFoundError, or ValueError where
    several layouts fit, or listing the rows that cannot be read.
    """
    found = None if layout is None and _holds_outputs(source) else foreign(source, layout)
    if found is not None:
        say(f"{source}: {found}")
        return _foreign_tasks(source, found, most, image_root)
    report = Report(str(source))
    tasks: list[ProbeRow] = []
    for row in rows_of(source, report):
        report.num_rows += 1
        with report.collecting(row.place):
            tasks.append(_task(row, image_root or (source if source.is_dir() else source.parent)))
    report.raise_if_bad()
    if not tasks:
        raise ValueError(f"{source} holds no rows to score")
    return tasks


def _holds_outputs(source: Path) -> bool:
    """Are its rows in the words of this module, or is it a folder of pictures with their prompts?

    Prompts with pictures and no answer are what a generator drew, and TRL would call them questions.
    """
    look = look_at(source, {})
    asks = any(isinstance(look.example(name), str) for name in TEXT)
    return asks and not look.has("path") and (look.has_one("completion", "completions") or not look.has_one(*ANSWERS, *BOXES))


def _foreign_tasks(source: Path, found: Guess, most: int | None, image_root: Path | None) -> list[ProbeRow]:
    """The prompts of a file as a run would have them, with the completions of its rows, if there are some."""
    if found.data_set not in NAMES:
        root = {} if image_root is None else {root_key(found.data_set): str(image_root)}
        reader = plugins.load(found.data_set, "datasets")
        check_keys(root, [*inspect.signature(reader).parameters], (), Table.of(root, COMMAND_LINE))
        prompts: Iterable[Prompt] = islice(reader(path=str(source), **root), most)
    else:
        opened = open_foreign(source, found)
        reader = (GroundingLayout if found.data_set == GROUNDING else Questions)(image_root or opened.root)
        prompts, report = read_prompts(str(source), lambda report: islice(opened.rows(report), most), reader)
        report.source = f"{source} ({found})"
        report.raise_if_bad()
    return [_with_texts(prompt, prompt.columns) for prompt in prompts]


def _task(row: Row, root: Path) -> ProbeRow:
    values = row.values
    if any(values.get(name) is not None for name in BOXES):
        question = next((name for name in TEXT if isinstance(values.get(name), str)), "question")
        [prompt, *more] = GroundingLayout(image_root=root, columns={"question": question}).prompts(row)
        if more:
            raise ValueError("one row asks several questions: write one row per question")
        return _with_texts(prompt, values)
    text = _first(values, TEXT)
    if not isinstance(text, str):
        raise ValueError(f"none of the columns {', '.join(TEXT)} holds the prompt (the row has {', '.join(values)})")
    spans = _first(values, SPANS)
    answer = _first(values, ANSWER) if spans is None else spans_of(spans)
    images = _list_of(values, "image", "images")
    columns = {name: value for name, value in values.items() if name not in (*TEXT, *ANSWER, *SPANS, *OUTPUTS, "id")}
    name = str(values.get("id", f"{Path(row.source).stem}-{row.number}"))
    prompt = Prompt(name, text, answer=answer, columns={**columns, FILE_ROW: row.place})
    if answer is None and not _list_of(values, "completion", "completions") and values.get(CHOSEN) is None:
        clips = _list_of(values, "video", "videos")
        drawn = [Sample(image=upright(_path_of(root, image))) for image in images]
        films = [read_mp4(Path(_path_of(root, clip))) for clip in clips]
        drawn += [Sample(video=frames, fps=fps or None) for frames, fps in films]
        return ProbeRow(prompt, tuple(drawn), tuple(map(str, [*images, *clips])))
    media = tuple(_path_of(root, image) for image in images)
    return _with_texts(Prompt(name, text, media, answer, prompt.columns), values)


def _path_of(root: Path, image: object) -> str:
    return path_below(root, str(image), "the file's folder", anywhere=True)


def _with_texts(prompt: Prompt, values: Mapping[str, object]) -> ProbeRow:
    texts, size = _list_of(values, "completion", "completions"), size_of(prompt)
    sizes = () if size is None else (size,)
    samples = tuple(Sample(str(text), media_sizes=sizes, opened=str(values.get("opened") or "")) for text in texts)
    return ProbeRow(prompt, samples, tuple(str(i) for i in range(len(samples))))


def _list_of(values: Mapping[str, object], one: str, many: str) -> Sequence[object]:
    found = [values[name] for name in (one, many) if values.get(name) is not None]
    if len(found) > 1:
        raise ValueError(f"the row has {one} and {many}: write one of them")
    return cast(Sequence[Any], found[0]) if found and isinstance(found[0], list) else found


def _first(values: Mapping[str, object], names: Sequence[str]) -> object:
    return next((values[name] for name in names if values.get(name) is not None), None)


TRUTH, OTHER, RANDOM, EMPTY, MALFORMED = "truth", "shuffled truth", "random", "empty", "malformed"
SWAPPED, DECIMALS, TAGGED = "x and y swapped", "with decimals", "in tags"
REPEATED, PADDED = "truth three times", "truth and chatter"
PROMPT, BLANK, NOISE = "swapped prompt", "blank", "noise"
DRAWN, REDRAWN, MORE_NOISE = "drawn picture", "another drawn one", "other noise"
"""Pictures without a prompt that they are known to fit."""
IN_SPACE = "in space "
CHOSEN, REJECTED = "chosen", "rejected"
CHATTER = " To be quite sure, let us look at it once more, and then again from the other side." * 8
LETTERS = string.ascii_uppercase[:5]
GREY = (127, 127, 127)


@dataclass(frozen=True)
class Style:
    """How the policy writes its answers."""

    space: Space = "norm1000"
    template: Template | None = None
    seed: int = 0
    draws: tuple[int, int] | None = None
    """Width and height of the pictures that it draws; None: it writes."""


class NoTruthError(ValueError):
    """No prompt has an answer, so there is no truth to test with."""


def text_groups(prompts: Sequence[Prompt], style: Style) -> tuple[list[str], list[Group]]:
    """Names of the probes, and one group per prompt that has an answer, with one sample per probe in that order.

    Raises NoTruthError if no prompt has an answer.
    """
    answered = [prompt for prompt in map(with_chosen, prompts) if prompt.answer is not None]
    if not answered:
        raise NoTruthError(
            "no prompt of the data has an answer, so there is no truth to test the reward with: take data with answers; if the "
            "reward scores pictures, write `Modality: image` into the docstring at the top of its file"
        )
    rng = random.Random(style.seed)
    tables = list[dict[str, str]]()
    for i, prompt in enumerate(answered):
        # those of other sources are answered in other ways
        other = next(one for one in (*answered[i + 1 :], *answered[: i + 1]) if one.source == prompt.source)
        tables.append(text_probes(prompt, other, style, rng))
    names = [name for name in tables[0] if all(name in table for table in tables)]
    groups = list[Group]()
    for i, (prompt, table) in enumerate(zip(answered, tables, strict=True)):
        sizes = () if (size := size_of(prompt)) is None else (size,)
        samples = (Sample(table[name], tuple(table[name].encode()), media_sizes=sizes) for name in names)
        groups.append(Group(i, prompt, tuple(samples)))
    return names, groups


def with_chosen(prompt: Prompt) -> Prompt:
    """The prompt with the preferred one of two completions as its truth; the other stands where another prompt's would."""
    if prompt.answer is not None or not {CHOSEN, REJECTED} <= set(prompt.columns):
        return prompt
    texts = {column: message_text(prompt.columns[column]) for column in (CHOSEN, REJECTED)}
    return replace(prompt, answer=texts[CHOSEN], columns={**prompt.columns, **texts})


def text_probes(prompt: Prompt, other: Prompt, style: Style, rng: random.Random) -> dict[str, str]:
    """Probe -> completion."""
    size = size_of(prompt)
    truth, plain = answer_text(prompt.answer, style.space, size), lambda text: in_template(text, style.template)
    swapped = answer_moved_to(other.answer, size_of(other), size)
    probes = {
        TRUTH: plain(truth),
        OTHER: plain(answer_text(prompt.columns.get(REJECTED, swapped), style.space, size)),
        RANDOM: plain(answer_text(nonsense(prompt, size, rng), style.space, size)),
        EMPTY: "",
        MALFORMED: truth[: len(truth) // 3].rstrip("0123456789.") if len(truth) > 9 else "?",
        REPEATED: plain(" ".join([truth] * 3)),
        PADDED: plain(truth) + CHATTER,
        DECIMALS: plain(answer_text(prompt.answer, style.space, size, decimals=True)),
    }
    if style.template is None:
        probes[TAGGED] = in_template(truth, "think")
    if boxes_of(prompt.answer):
        turned = [(b.y1, b.x1, b.y2, b.x2) for b in (box.to(style.space, size) for box in boxes_of(prompt.answer))]
        flipped = [[int(x) for x in as_written(corners, style.space)] for corners in turned]
        probes[SWAPPED] = plain(json.dumps([{"bbox_2d": corners} for corners in flipped]))
        for space in cast(tuple[Space, ...], ("pixel", "norm1000", "norm1")):
            if space != style.space and (size is not None or space != "pixel"):
                probes[IN_SPACE + space] = plain(answer_text(prompt.answer, space, size))
    return probes


def answer_text(answer: object, space: Space, size: MediaSize | None, decimals: bool = False) -> str:
    """An answer as models write it: boxes as JSON in their space, spans in seconds, all else as itself."""
    if boxes := boxes_of(answer):
        return format_boxes([box.to(space, size) for box in boxes], size, int(decimals))
    if isinstance(answer, Interval):
        return f"from {format_interval(answer, digits=4 if answer.unit == 'norm' else 2 if decimals else 1)}"
    if isinstance(answer, list | tuple) and answer:
        return ", ".join(answer_text(item, space, size, decimals) for item in cast(Sequence[object], answer))
    if decimals and isinstance(answer, int | float) and not isinstance(answer, bool):
        return f"{answer:.2f}"
    try:
        return format_answer(answer)
    except ValueError:
        return answer if isinstance(answer, str) else json.dumps(answer, default=str)


def nonsense(prompt: Prompt, size: MediaSize | None, rng: random.Random) -> object:
    """A random answer of the same kind."""
    answer = prompt.answer
    if boxes := boxes_of(answer):
        return tuple(_random_box(box, size, rng) for box in boxes)
    if isinstance(answer, Interval):
        return _random_span(answer, prompt, rng)
    if isinstance(answer, tuple) and answer and all(isinstance(span, Interval) for span in answer):
        return tuple(_random_span(span, prompt, rng) for span in answer)
    if isinstance(answer, bool):
        return rng.random() < 0.5
    if isinstance(answer, int | float):
        return type(answer)(answer + rng.choice([-1, 1]) * (abs(answer) + 1) * rng.uniform(1, 10))
    if isinstance(answer, str):
        if set(answer) <= set(string.ascii_uppercase + ", ") and len(answer) <= 10:
            return rng.choice([letter for letter in LETTERS if letter != answer])
        return "".join(rng.choice(string.ascii_lowercase + " ") for _ in answer) or "x"
    return "".join(rng.choice(string.ascii_lowercase) for _ in range(8))


def answer_moved_to(answer: object, old: MediaSize | None, new: MediaSize | None) -> object:
    """Another prompt's answer; its boxes at the same place of this prompt's picture."""
    if not boxes_of(answer) or old is None or new is None:
        return answer
    return tuple(replace(box.to("norm1", old), label=box.label).to("pixel", new) for box in boxes_of(answer))


def image_groups(tasks: Sequence[ProbeRow], seed: int) -> tuple[list[str], list[Group]]:
    """The same for pictures: each prompt's own, another prompt's, blank and noise; ValueError for fewer than two pictures."""
    drawn = [task for task in tasks if task.samples]
    if len(drawn) < 2:
        raise ValueError("testing a reward of pictures takes rows with `prompt` and `image`, at least two of them")
    rng = np.random.default_rng(seed)
    groups = []
    for i, (task, other) in enumerate(zip(drawn, islice(cycle(drawn), 1, None), strict=False)):
        image = task.samples[0].image
        pictures = (image, other.samples[0].image, Image.new("RGB", image.size, GREY), _noise(image.size, rng))
        groups.append(Group(i, task.prompt, tuple(Sample(image=picture) for picture in pictures)))
    return [TRUTH, PROMPT, BLANK, NOISE], groups


def groups_of_drawings(prompts: Sequence[Prompt], size: tuple[int, int], seed: int = 0) -> tuple[list[str], list[Group]]:
    """The same where nobody has a picture of the prompts: two smooth pictures of (width, height), blank, and two of noise."""
    rng, groups = np.random.default_rng(seed), []
    for i, prompt in enumerate(prompts):
        smooth = [_noise((5, 5), rng).resize(size, Image.Resampling.BICUBIC) for _ in range(2)]
        pictures = (*smooth, Image.new("RGB", size, GREY), _noise(size, rng), _noise(size, rng))
        groups.append(Group(i, prompt, tuple(Sample(image=picture) for picture in pictures)))
    return [DRAWN, REDRAWN, BLANK, NOISE, MORE_NOISE], groups


def _random_box(box: Box, size: MediaSize | None, rng: random.Random) -> Box:
    width, height = extent(box.space, size)
    (x1, x2), (y1, y2) = (sorted(rng.uniform(0.0, side) for _ in range(2)) for side in (width, height))
    return replace(box, x1=x1, y1=y1, x2=max(x2, x1 + 0.02 * width), y2=max(y2, y1 + 0.02 * height)).to(box.space, size)


def _random_span(span: Interval, prompt: Prompt, rng: random.Random) -> Interval:
    most = 1.0 if span.unit == "norm" else float(prompt.columns.get("duration", span.end))
    start = rng.uniform(0.0, 0.9 * most)
    return replace(span, start=start, end=rng.uniform(start + 0.01 * most, most))


def _noise(size: tuple[int, int], rng: np.random.Generator) -> Image.Image:
    return Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
