"""MMMU: college-level questions of thirty subjects with pictures, the validation part.

Prompt and rules are those of its own code. Where an answer to a multiple choice names no letter, that code draws one at random,
and here it is wrong. Every picture is shown at its place in the text, where that code shows the first one only.
Size: 900, as its README says, 30 of each subject.
"""

import ast
import re
from collections.abc import Sequence

from mmrl.answers.boxes.box import Space
from mmrl.answers.choices import LETTERS
from mmrl.core.samples import Prompt, Sample, Scored
from mmrl.data.files.pictures import open_picture
from mmrl.data.readers import Row
from mmrl.data.suites.suite import Suite, SuiteFile, answer_text
from mmrl.data.video_rows import VideoFolder, text_of

CHOOSE = "{}\n{}\nAnswer with the option's letter from the given choices directly."
SHORT = "{}\nAnswer the question using a single word or phrase."
_SUBJECTS = {
    "Art and Design": "Art Art_Theory Design Music",
    "Business": "Accounting Economics Finance Manage Marketing",
    "Science": "Biology Chemistry Geography Math Physics",
    "Health and Medicine": "Basic_Medical_Science Clinical_Medicine Diagnostics_and_Laboratory_Medicine Pharmacy Public_Health",
    "Humanities and Social Science": "History Literature Sociology Psychology",
    "Tech and Engineering": "Agriculture Architecture_and_Engineering Computer_Science Electronics Energy_and_Power Materials "
    "Mechanical_Engineering",
}
SUBJECTS = {discipline: subjects.split() for discipline, subjects in _SUBJECTS.items()}
SOURCE, FILE = "https://huggingface.co/datasets/MMMU/MMMU", "{}/validation-00000-of-00001.parquet"
_PICTURE = re.compile(r"<image (\d)>")
_NUMBERS = (
    r"-?\b\d{1,3}(?:,\d{3})+\b",
    r"-?\d+(?:\.\d+)?[eE][+-]?\d+",
    r"-?(?:\d+\.\d+|\.\d+|\d+\b)(?![eE][+-]?\d+)(?![,\d])",
)
_STATING = ("could be ", "so ", "is ", "thus ", "therefore ", "final ", "answer ", "result ")


def prompt_of(row: Row, media: VideoFolder) -> Prompt:
    question, kind, answer = (text_of(row, name) for name in ("question", "question_type", "answer"))
    options = [str(option) for option in _list_in(row.values.get("options")) or ()]
    listed = "".join(f"({letter}) {option}\n" for letter, option in zip(LETTERS, options, strict=False))
    text = CHOOSE.format(question, listed) if kind == "multiple-choice" else SHORT.format(question)
    cells = [row.values.get(f"image_{number}") for number in _PICTURE.findall(text) or "1"]
    if None in cells:
        raise ValueError("the text names a picture that the row does not have")
    subject = row.source.partition("/")[0]
    discipline = next(name for name, subjects in SUBJECTS.items() if subject in subjects)
    given = {"discipline": discipline, "subject": subject, "options": options, "question_type": kind}
    truth = answer if kind == "multiple-choice" else _list_in(answer) or [answer]
    return Prompt(text_of(row, "id"), _PICTURE.sub("<image>", text), tuple(map(open_picture, cells)), truth, given)


def _list_in(text: object) -> list[object] | None:
    """A list that is written as Python; None for anything else."""
    try:
        found = ast.literal_eval(str(text))
    except (ValueError, SyntaxError):
        return None
    return found if isinstance(found, list) else None


def score(prompt: Prompt, sample: Sample, space: Space) -> Scored:
    """1 for the right letter, or an open answer that holds one of the right ones."""
    text = answer_text(sample)
    if prompt.columns["question_type"] == "multiple-choice":
        letter = letter_of(text, prompt.columns["options"])
        return Scored(float(letter == prompt.answer), {"unparsed": float(letter is None)})
    truth = [one for answer in prompt.answer for one in plain(str(answer))]
    right = any(_fits(found, truth) for found in statements(text))
    return Scored(float(right), {"unparsed": float(not text)})


def letter_of(text: str, options: Sequence[str]) -> str | None:
    """The letter that an answer names last: in brackets, else between blanks, else by an option's words in longer answers."""
    for sign in ",.!?;:'":
        text = text.strip(sign)
    text, letters = f" {text} ", LETTERS[: len(options)]
    found: dict[str, int] = {}
    for form in ("({})", " {} "):
        found = found or {letter: text.rfind(form.format(letter)) for letter in letters if form.format(letter) in text}
    if not found and len(text.split()) > 5:
        words, text = dict(zip(letters, (option.lower() for option in options), strict=True)), text.lower()
        found = {letter: text.rfind(option) for letter, option in words.items() if option in text}
    return max(found, key=lambda letter: found[letter]) if found else None


def statements(text: str) -> set[str | float]:
    """Everything that an open answer may say: the shortest ends of its statements, and the numbers in them."""
    lines = re.split(r"\.\s(?=[A-Z])|\n", text.strip().strip(".").lower())
    found: list[str] = []
    for i, line in enumerate(lines):
        words = (*_STATING, "=") if i == len(lines) - 1 else _STATING
        ends = [line.split(word)[-1].strip() for word in words if word in line]
        shortest = _shortest(ends)
        found += [shortest] if shortest and shortest not in (":", ",", ".", "!", "?", ";", "'") else []
    found = found or [text.strip().strip(".").lower()]
    found += [number for one in list(found) for pattern in _NUMBERS for number in re.findall(pattern, one)]
    return {value for one in found for value in plain(one)}


def _shortest(ends: Sequence[str]) -> str:
    """The first of the shortest; one that is empty is followed by the next."""
    best = ""
    for end in ends:
        best = end if not best or len(end) < len(best) else best
    return best


def plain(text: str) -> list[str | float]:
    """A number rounded to two decimals, or the text in small letters; a single letter with a blank on either side."""
    text = text.strip()
    try:
        return [round(float(text.replace(",", "")), 2)]
    except ValueError:
        text = text.lower()
        return [f" {text}", f"{text} "] if len(text) == 1 else [text]


def _fits(found: str | float, truth: Sequence[str | float]) -> bool:
    return any(isinstance(one, str) and one in found for one in truth) if isinstance(found, str) else found in truth


SUITE = Suite(
    name="mmmu",
    measures="college-level questions with pictures (validation)",
    paper="2311.16502",
    files=tuple(SuiteFile(FILE.format(subject), SOURCE, "Apache-2.0") for subjects in SUBJECTS.values() for subject in subjects),
    prompt=prompt_of,
    sizes={discipline: 30 * len(subjects) for discipline, subjects in SUBJECTS.items()},
    figures={"Accuracy": "suite"},
    by=("discipline", "subject"),
    exact="equals its own code's, but an answer without a letter is wrong where that draws one at random",
    score=score,
    max_new_tokens=128,
    hub="MMMU/MMMU",
)
