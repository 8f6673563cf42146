"""Attacks by questions and labels: what inversion and data without labels are asked to do."""

from functools import partial
from pathlib import Path

from mmrl.data.inversion import Inversion, negate
from mmrl.data.video_rows import VideoRow
from tests.attacks.attack import Attack, BrokenError, expect_sentence, run_mmrl

OPTIONS = ("a dog", "a cat", "a cow")
HOSTILE = (
    "",
    "what is",
    "what " * 200_000 + "is it?",
    "is " * 200_000,
    "\x1b[2J what is he\x00 holding?",
    "wh\u0430t is he holding?",
    "what is he holding? " * 50_000,
    "what\u202eis he holding?",
)


def data(table: str, words: tuple[str, ...], folder: Path) -> str:
    return expect_sentence(run_mmrl(["plan", "tiny/video", "policy.model=tiny:qwen3_vl", f"data={{{table}}}"], folder), *words)


def refusal(name: str, table: str, *words: str) -> Attack:
    return Attack("data", name, partial(data, table, words))


def negate_anything(folder: Path) -> str:
    """Whatever the question is: one auxiliary more or less, or nothing at all."""
    for question in HOSTILE:
        negated = negate(question)
        if negated is not None and len(negated.split()) != len(question.split()):
            raise BrokenError(f"{question[:40]!r} became {negated[:40]!r}")
    return "negated by one word or left alone"


def invert_odd_answers(folder: Path) -> str:
    """An answer that is no letter of the options leaves the question as it is, for the data check to name."""
    for answer in ("", "Z", "b", "A,B", "AB", ["A"], 0, None, float("nan")):
        row = VideoRow("1", "clip", "what is it?", "multiple choice", answer, OPTIONS)
        if Inversion(1.0)(row) is not row:
            raise BrokenError(f"the answer {answer!r} was inverted")
    return "left alone"


ATTACKS = [
    refusal("more than all questions inverted", 'use = "clevrer", path = "x.json", invert = 2.0', "invert is 2.0", "0 to 1"),
    refusal("less than none inverted", 'use = "next_gqa", path = "x.csv", invert = -1.0', "invert is -1.0"),
    refusal("no number of questions inverted", 'use = "clevrer", path = "x.json", invert = nan', "invert is nan"),
    refusal("inversion in words", 'use = "clevrer", path = "x.json", invert = "half"', "data.invert"),
    refusal("spans inverted", 'use = "next_gqa", path = "x.csv", spans = "s.json", ask = "when", invert = 0.5', "s.json"),
    refusal("inversion of what has no options", 'use = "charades_sta", path = "x.txt", invert = 0.5', "data.invert", "unknown"),
    refusal("labels neither there nor not", 'use = "charades_sta", path = "x.txt", labelled = "maybe"', "data.labelled"),
    Attack("data", "hostile questions to negate", negate_anything),
    Attack("data", "answers that are no letter, inverted", invert_odd_answers),
]
