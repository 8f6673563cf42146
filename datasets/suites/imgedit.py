"""ImgEdit-Bench: nine kinds of edits of one picture, the basic part.

The judge sees the picture before and after in the published words for that kind of edit and gives three marks from 1 to 5; their
mean, rounded to two decimals, is the score (ImgEdit 547185d, Benchmark/Basic). Kinds count equally, as in its tables; its code
rounds the mean of each kind as well. An answer without any mark has no score, here and there.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from mmrl.core.samples import Prompt, Scored
from mmrl.data.files.paths import path_below
from mmrl.data.readers import Row, read_json
from mmrl.data.suites.suite import NO_VERDICT, Judge, Suite, SuiteFile
from mmrl.data.validate import Report
from mmrl.data.video_rows import VideoFolder, text_of

FILE, WORDS = "singleturn.json", "judge_prompt.json"
SOURCE = "https://huggingface.co/datasets/sysuyy/ImgEdit/blob/main/Benchmark.tar"
"""The folder is Benchmark/singleturn in it."""
PLACE = "<edit_prompt>"
EDITS = {"add": 95, "adjust": 94, "extract": 117, "replace": 92, "remove": 86, "background": 94, "style": 100, "compose": 23}
EDITS |= {"action": 36}
"""Counted in Benchmark/Basic/basic_edit.json of that repository: 737."""
FOLDERS = ("animal", "architecture", "clothes", "compose", "daily object", "for_add", "human", "style", "transport")


def rows(suite: Suite, folder: Path, report: Report) -> Iterator[Row]:
    """The edits, with the judge's words of all kinds."""
    edits, words = read_json(folder / FILE), read_json(folder / WORDS)
    if not isinstance(edits, dict) or not all(isinstance(edit, dict) for edit in edits.values()) or not isinstance(words, dict):
        raise ValueError(f"{folder / FILE} must hold an object with an entry per edit, and {WORDS} one with a text per kind")
    return (Row(edit | {"key": key, "words": words}, FILE, i) for i, (key, edit) in enumerate(edits.items(), start=1))


def prompt_of(row: Row, media: VideoFolder) -> Prompt:
    kind, text = text_of(row, "edit_type"), text_of(row, "prompt")
    if not isinstance(asked := row.values["words"].get(kind), str) or PLACE not in asked:
        raise ValueError(f"column edit_type is {kind!r}, for which {WORDS} has no text with {PLACE}")
    columns = {"edit_type": kind, "questions": [asked.replace(PLACE, text)]}
    picture = path_below(media.root, text_of(row, "id"), "evaluation.data.media")
    return Prompt(text_of(row, "key"), text, (picture,), columns=columns)


def verdict(prompt: Prompt, answers: Sequence[str]) -> Scored:
    """The mean of the marks: lines that end in `: ` and a whole number."""
    lines = (line.strip().split(": ") for line in answers[0].splitlines())
    marks = [int(line[1]) for line in lines if len(line) == 2 and line[1].isdecimal()]
    return Scored(round(sum(marks) / len(marks), 2), {"unparsed": 0.0}) if marks else NO_VERDICT


SUITE = Suite(
    name="imgedit",
    measures="nine kinds of edits of a picture",
    paper="2505.20275",
    files=(
        *(SuiteFile(name, SOURCE, "see its card") for name in (FILE, WORDS)),
        *(SuiteFile(f"{name}/", SOURCE, "those of its sources") for name in FOLDERS),
    ),
    rows=rows,
    prompt=prompt_of,
    sizes=EDITS,
    figures={"Overall": "suite_judge"},
    by=("edit_type",),
    macro=("edit_type",),
    exact="equals its own code's, which also rounds the mean of every kind to two decimals",
    judge=Judge("GPT-4.1 (its tables) or gpt-4o (its code)", "https://platform.openai.com", verdict, text_first=True),
    reward={"use": "suite_judge", "server": {"max_side": 0}},
    kind="flow",
)
