"""Attacks by questions and labels: what inversion and data without labels are asked to do."""

from pathlib import Path

from mmrl.data.inversion import Inversion, negate
from mmrl.data.video_rows import VideoRow
from tests.attacks.attack import Attack

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


def negate_anything(folder: Path) -> str:
    """Whatever the question is: one auxiliary more or less, or nothing at all."""
    for question in HOSTILE:
        negated = negate(question)
        assert negated is None or len(negated.split()) == len(question.split()), f"{question[:40]!r} became {negated[:40]!r}"
    return "negated by one word or left alone"


def invert_odd_answers(folder: Path) -> str:
    """An answer that is no letter of the options leaves the question as it is, for the data check to name."""
    for answer in ("", "Z", "b", "A,B", "AB", ["A"], 0, None, float("nan")):
        row = VideoRow("1", "clip", "what is it?", "multiple choice", answer, OPTIONS)
        assert Inversion(1.0)(row) is row, f"the answer {answer!r} was inverted"
    return "left alone"


ATTACKS = [
    Attack("data", "hostile questions to negate", negate_anything),
    Attack("data", "answers that are no letter, inverted", invert_odd_answers),
]
