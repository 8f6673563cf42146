"""Files of finished outputs, for `mmrl reward test` and `mmrl reward score`: pictures with prompts, or completions with answers.

A folder holds pictures or clips, each with its prompt in a .txt file of that name, or a metadata.jsonl (file_name, text).
A .jsonl, .json or .parquet file holds one object per prompt: `prompt` (or question, problem, text), `answer` (or boxes, as
grounding files have them, or `spans`, pairs of seconds), `completion` or `completions`, `image` or `images`, `video` or `videos`,
and whatever columns the rewards need. Without answer and completions, images and videos are what a generator drew; otherwise the
images are what the question is about. Files in other people's layouts (messages, LLaVA, COCO, ..) are read as runs read them.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, cast

from mmrl.app.config.tasks import root_key
from mmrl.app.plugins import resolve as plugins
from mmrl.app.toml.reader import check_keys
from mmrl.app.toml.tables import COMMAND_LINE, Table
from mmrl.core.types import Prompt, Sample
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

    Paths of pictures and clips start at `image_root`; None: at the source's folder.

    Raises FileNotFoundError, or ValueError where several layouts fit, or listing the rows that cannot be read.
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
    if answer is None and not _list_of(values, "completion", "completions"):
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
    found = values.get(many, values.get(one))
    return cast(Sequence[Any], found) if isinstance(found, list) else [] if found is None else [found]


def _first(values: Mapping[str, object], names: Sequence[str]) -> object:
    return next((values[name] for name in names if values.get(name) is not None), None)
