"""UniGenBench: ten dimensions of what a prompt asks of a picture, the short English prompts.

The judge is asked once per picture, in the words of its own code, which are read from the file that holds them and not run
(UniGenBench 49d0bce, eval/src/eval_common.py). It gives each of the prompt's points a 0 or 1. A dimension's number is the share
of right points over all pictures; the overall number, which that code leaves out, is the mean of ten dimensions, as in its
tables (FLUX.1-dev: 60.97). A picture whose answer cannot be read has no score, here and there.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mmrl.core.samples import Prompt, Scored
from mmrl.data.readers import Row, read_rows, read_text
from mmrl.data.suites.suite import NO_VERDICT, Judge, Suite, SuiteFile, shares
from mmrl.data.validate import Report
from mmrl.data.video_rows import VideoFolder, text_of

FILE, WORDS = "data/test_prompts_en.csv", "eval/src/eval_common.py"
SOURCE, LICENCE = "https://github.com/CodeGoat24/UniGenBench", "CC BY 4.0"
JUDGES = "https://huggingface.co/CodeGoat24/UniGenBench-EvalModel-qwen3vl-32b-v1"
TEMPLATE, MEANINGS = "SYSTEM_PROMPT_EN_TEMPLATE", "EXPLANATION_DICT_EN"
THEMES = {"Art": 157, "Film & Story": 150, "Illustration": 113, "Design": 110, "Creative Divergence": 70}
"""Counted in the published file, whose README says 600."""
DIMENSIONS = {
    "Style": (),
    "World Knowledge": (),
    "Attribute": ("Color", "Expression", "Material", "Quantity", "Shape", "Size"),
    "Action": (
        *("Animal", "Contact Interaction", "Full-body (Character/Anthropomorphic)"),
        *("Hand (Character/Anthropomorphic)", "Non-contact Interaction", "State"),
    ),
    "Relationship": ("Comparison", "Composition", "Inclusion", "Similarity"),
    "Logical Reasoning": (),
    "Grammar": ("Consistency", "Negation", "Pronoun Reference"),
    "Compound": ("Feature Matching", "Imagination"),
    "Entity Layout": ("Three-Dimensional Space", "Two-Dimensional Space"),
    "Text Generation": (),
}
_INSIDE = [re.compile(rf"<{name}>(.*?)</{name}>", re.DOTALL) for name in ("analysis", "score")]


def rows(suite: Suite, folder: Path, report: Report) -> Iterator[Row]:
    """The rows of the file, with the judge's words."""
    words = words_of(folder / WORDS)
    return (replace(row, values={**row.values, "words": words}) for row in read_rows(folder / FILE, report))


def words_of(file: Path) -> tuple[str, Mapping[str, str]]:
    """The judge's prompt with its four places, and what each point means; ValueError where the file does not set them so."""
    found: dict[str, object] = {}
    try:
        for node in ast.parse(read_text(file)).body:
            if isinstance(node, ast.Assign) and isinstance(name := node.targets[0], ast.Name) and name.id in (TEMPLATE, MEANINGS):
                found[name.id] = ast.literal_eval(node.value)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{file} cannot be read as the published file: {error}") from None
    template, meanings = found.get(TEMPLATE), found.get(MEANINGS)
    if not isinstance(template, str) or "{testpoint}" not in template or not isinstance(meanings, dict):
        raise ValueError(f"{file} does not set {TEMPLATE} and {MEANINGS}: get the published file")
    return template, meanings


def prompt_of(row: Row, media: VideoFolder) -> Prompt:
    template, meanings = row.values["words"]
    prompt, facts = text_of(row, "prompt_en"), row.values.get("sub_dims_en")
    if not isinstance(facts, dict):
        raise ValueError("column sub_dims_en holds no JSON object")
    points, clues = facts.get("Testpoints"), facts.get("Testpoint Description")
    if not isinstance(points, list) or not isinstance(clues, list) or not points or len(points) != len(clues):
        raise ValueError("column sub_dims_en lists no Testpoints, or not a Testpoint Description for each")
    if unknown := [point for point in points if point not in meanings]:
        raise ValueError(f"column sub_dims_en names the point {unknown[0]!r}, which {WORDS} does not explain")
    places = {
        "prompt": prompt,
        "testpoint": str(points),
        # the header's spelling is the published one
        "explanation": lines_of("Checkpoints Defination", points, [meanings[point] for point in points]),
        "test_explanation": lines_of("Checkpoints Description", points, clues),
    }
    question = re.sub(r"\{(\w+)\}", lambda found: places.get(found[1], found[0]), template)
    columns = {"theme": facts.get("Primary Categories"), "questions": [question], "points": points}
    return Prompt(text_of(row, "index"), prompt, columns=columns)


def lines_of(header: str, points: Sequence[str], texts: Sequence[object]) -> str:
    lines = "".join(f"\n{point}: {text}" for point, text in zip(points, texts, strict=True))
    return f"{header}:\u300c{lines}\n\u300d"


def verdict(prompt: Prompt, answers: Sequence[str]) -> Scored:
    """The share of the prompt's points that the judge gives a 1."""
    points: Sequence[str] = prompt.columns["points"]
    analysis, marks = (_list_in(pattern.search(answers[0])) for pattern in _INSIDE)
    if len(points) != len(analysis) or len(points) != len(marks):
        return NO_VERDICT
    right = [float(mark == 1) for mark in marks]
    return Scored(sum(right) / len(right), {**shares(points, right), "unparsed": 0.0})


def _list_in(found: re.Match[str] | None) -> Sequence[object]:
    """A list that is written as Python; empty for anything else."""
    try:
        value = ast.literal_eval(found[1].strip()) if found else ()
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return ()
    return value if isinstance(value, list | tuple | str) else ()


SUITE = Suite(
    name="unigenbench",
    measures="ten dimensions of what a short English prompt asks of a picture",
    paper="2508.20751",
    files=(SuiteFile(FILE, SOURCE, LICENCE), SuiteFile(WORDS, SOURCE, LICENCE)),
    rows=rows,
    prompt=prompt_of,
    sizes=THEMES,
    figures={
        "Overall": tuple(DIMENSIONS),
        **{name: (name,) for name in DIMENSIONS},
        **{f"{name} - {part}": (f"{name} - {part}",) for name, parts in DIMENSIONS.items() for part in parts},
    },
    by=("theme",),
    exact="reading and shares of points equal its own code's; overall is the mean of the ten, as in its tables",
    judge=Judge("UniGenBench-EvalModel-qwen3vl-32b-v1 or Gemini 2.5 Pro", JUDGES, verdict),
    reward={"use": "suite_judge", "server": {"max_side": 0, "picture_format": "jpeg"}},
    kind="flow",
    num_samples=4,
)
