"""MathVista: mathematics in pictures, the part testmini.

Prompts are those of its query.json (no caption, no text read from the picture). Comparing an extracted answer with the truth,
the nearest option by edit distance included, equals its own code. That code lets GPT-4 extract the answer from longer responses:
here rules do, a letter or a number as mmrl's rewards read them, so single responses may come out differently. Short answers and
`The answer is "..".` need neither.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from mmrl.answers.boxes.box import Space
from mmrl.answers.choices import parse_choices
from mmrl.answers.numbers import parse_number
from mmrl.core.samples import Prompt, Sample, Scored
from mmrl.data.readers import Row, read_json
from mmrl.data.suites.suite import Suite, SuiteFile, answer_text
from mmrl.data.validate import Report
from mmrl.data.video_rows import VideoFolder, text_of

FILE, QUERIES, SOURCE = "testmini.json", "query.json", "https://github.com/lupantech/MathVista/tree/main/data"
TASKS = {
    "figure question answering": 269,
    "geometry problem solving": 208,
    "math word problem": 186,
    "textbook question answering": 158,
    "visual question answering": 179,
}
_QUOTED = re.compile(r'The answer is "(.*)"\.')
_LETTER, _LIST = re.compile(r"\(([a-zA-Z])\)"), re.compile(r"\[[^\[\]]*\]")


def rows(suite: Suite, folder: Path, report: Report) -> Iterator[Row]:
    """The problems with their queries."""
    problems, queries = read_json(folder / FILE), read_json(folder / QUERIES)
    if not isinstance(problems, dict) or not isinstance(queries, dict):
        raise ValueError(f"{folder / FILE} and {QUERIES} must hold an object with an entry per problem")
    return (Row(values | {"query": queries.get(key)}, FILE, i) for i, (key, values) in enumerate(problems.items(), start=1))


def prompt_of(row: Row, media: VideoFolder) -> Prompt:
    facts = row.values.get("metadata")
    if not isinstance(facts, dict) or not {"task", "context"} <= set(facts):
        raise ValueError("column metadata has no task or context")
    names = ("choices", "question_type", "answer_type", "precision")
    columns = {"task": facts["task"], "context": facts["context"], **{name: row.values.get(name) for name in names}}
    # pictures are named images/1.jpg, and may lie in a folder of their own
    picture = str(media.root / Path(text_of(row, "image")).name)
    return Prompt(text_of(row, "pid"), text_of(row, "query"), (picture,), text_of(row, "answer"), columns)


def score(prompt: Prompt, sample: Sample, space: Space) -> Scored:
    """1 if the extracted answer is the true one."""
    found = extract(answer_text(sample), prompt)
    return Scored(float(normalize(found, prompt) == prompt.answer), {"unparsed": float(not found)})


def extract(text: str, prompt: Prompt) -> str:
    """The short answer in a response; empty where there is none."""
    kind, choices = prompt.columns["answer_type"], prompt.columns["choices"] or ()
    if text in choices or _is_number(text, kind):
        return text
    if quoted := _QUOTED.search(text):
        return quoted[1]
    if prompt.columns["question_type"] == "multi_choice":
        letters = parse_choices(text, choices)
        return f"({min(letters)})" if len(letters) == 1 else text
    if kind == "list":
        return (_LIST.findall(text) or [""])[-1]
    number = parse_number(text)
    return "" if number is None else str(number.value)


def _is_number(text: str, kind: str) -> bool:
    try:
        return kind in ("integer", "float") and float(text) == float(text)
    except ValueError:
        return False


def normalize(found: str, prompt: Prompt) -> str | None:
    """An extracted answer as the truth is written: an option, a whole number, or rounded to its decimals."""
    columns, found = prompt.columns, found.strip()
    if columns["question_type"] == "multi_choice":
        choices: Sequence[str] = columns["choices"]
        letter = _LETTER.search(found)
        place = ord(letter[1].upper() if letter else found) - ord("A") if letter or len(found) == 1 else -1
        found = letter[1].upper() if letter else found
        return choices[place] if 0 <= place < len(choices) else min(choices, key=lambda choice: edit_distance(found, choice))
    try:
        if columns["answer_type"] == "integer":
            return str(int(float(found)))
        return str(round(float(found), int(columns["precision"]))) if columns["answer_type"] == "float" else found
    except (ValueError, OverflowError, TypeError):
        return None


def edit_distance(a: str, b: str) -> int:
    """Insertions, deletions and replacements of letters that make one text the other."""
    row = list(range(len(b) + 1))
    for i, left in enumerate(a, start=1):
        corner, row[0] = row[0], i
        for j, right in enumerate(b, start=1):
            corner, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, corner + (left != right))
    return row[-1]


SUITE = Suite(
    name="mathvista",
    measures="mathematics in pictures (testmini)",
    paper="2310.02255",
    files=(
        *(SuiteFile(name, SOURCE, "CC BY-SA 4.0") for name in (FILE, QUERIES)),
        SuiteFile("images/", "https://huggingface.co/datasets/AI4Math/MathVista", "those of its sources"),
    ),
    rows=rows,
    prompt=prompt_of,
    sizes=TASKS,
    figures={"Accuracy": "suite"},
    by=("task", "context"),
    exact="comparison equals its own code's; short answers are extracted by rules in place of GPT-4",
    score=score,
    max_new_tokens=1024,
)
