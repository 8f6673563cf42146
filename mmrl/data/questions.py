"""Prompts from rows with a question and its answer: a choice, a number, a mathematical expression or a text."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Literal, cast

from mmrl.answers.choices import LETTERS, parse_choices
from mmrl.answers.questions import problem_type
from mmrl.answers.spans.sounds import check_sound, sound_part
from mmrl.core.samples import IMAGE, KINDS, VIDEO, Audio, MediaKind, is_named
from mmrl.core.types import Prompt, Video
from mmrl.data.files.paths import cell_below, path_below
from mmrl.data.files.pictures import open_picture, picture_size
from mmrl.data.files.videos import WISHES, check_video, probe_video, video_of
from mmrl.data.layouts.base import BOX, SPANS, answers_in, one_of
from mmrl.data.layouts.load import Measured
from mmrl.data.readers import Cell, Row, as_list
from mmrl.data.validate import FILE_ROW, check_answer, check_markers, check_shape, check_tokens, strip_markers
from mmrl.data.video_rows import WHEN, inside_clip, spans_of

Kind = Literal["auto", "choice", "number", "math", "text"]
"""The kind of an answer, by which the reward `by_type` compares; auto: guessed row by row."""
Numbering = Literal["letters", "zero", "one"]
"""How answers name options: by letters or wordings, or by numbers that count from zero or from one."""
LETTER = "{question}\nAnswer with the letter of the right option."
LETTERS_WANTED = "{question}\nAnswer with the letters of all right options."
OPTIONS = ("options", "choices")
ANSWER_KINDS = ("kind", "problem_type")
INTERLEAVED = "use_audio_in_video"
"""A column of Qwen's rows."""
PARTS = tuple(name for name in WISHES if name != "fps")
"""Columns that show a part of the row's clip, as Qwen calls them; fps may as well be what a file has."""
USED = ("question", *PARTS, "system", "id", "split", *SPANS, *OPTIONS, *ANSWER_KINDS)
_NUMBER = re.compile(r"[-+\u2212]?\s?[$\u20ac\u00a3]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][-+]?\d+)?\s?%?")
_FRACTION = re.compile(r"[-+]?\d+\s?/\s?\d+")
_MATH = re.compile(r"[\\^=]|\$[^$]+\$|\bsqrt\b|\bpi\b|\d\s?[-+*/]\s?\d|\b\d+[a-z]\b\s?[-+*/]")
_LISTED = re.compile(r"^\s*\(?A[).:]\s.*^\s*\(?B[).:]\s", re.MULTILINE | re.DOTALL)
_LETTER = re.compile(r"\(?[A-Z][).]?")
_LONE = "text (guessed), single letters without options"
_LABELLED = re.compile(r"\(?([A-Z])[).:]\s*")


@dataclass(frozen=True)
class Questions:
    """The layout of rows with questions: `Questions(Path("photos"), kind="number")`."""

    image_root: Path = Path()
    kind: Kind = "auto"
    """The kind of all answers; auto: the row's own column `kind`, else guessed from its answer."""
    template: str | None = None
    """The prompt's text, with {question} in it; None: the question, its options, and which letters to answer with."""
    numbering: Numbering = "letters"
    anywhere: bool = True
    """True lets rows name any file by its absolute path; relative paths never leave image_root."""
    decode: bool = False
    """True: decode every picture when checking it, not only suspicious ones."""
    seen: Counter[str] = field(default_factory=Counter[str], compare=False)
    """How many answers were taken for each kind: {"choice (guessed)": 3}."""
    notes: Counter[str] = field(default_factory=Counter[str], compare=False)

    def __post_init__(self) -> None:
        if self.template is not None and "{question}" not in self.template:
            raise ValueError(f"template {self.template!r} must contain {{question}}")

    def measure(self, row: Row) -> Measured:
        """A row's pictures or clips, and the sizes of pictures; threads may ask together. Errors as in `prompts`."""
        cells = {kind: found for kind in KINDS.values() if (found := as_list(one_of(row, *kind.columns)))}
        part = {name: row.values[name] for name in PARTS if row.values.get(name) is not None}
        if part and (len(cells.get(VIDEO, [])) != 1 or isinstance(cells[VIDEO][0], dict)):
            raise ValueError(f"columns {', '.join(part)} show a part of one clip: give the row one, as a path in column video")
        if part:
            cells[VIDEO] = [{VIDEO.name: cells[VIDEO][0], **part}]
        if len(cells) > 1:
            both = " and ".join(kind.nouns for kind in cells)
            raise ValueError(f"the row has both {both}, whose order a prompt would not know: keep one kind")
        if row.values.get(INTERLEAVED):
            raise ValueError(
                f"column {INTERLEAVED} asks for a clip with its sound between its frames, which no model is shown here: leave it "
                "out to show the frames alone, or name the file in column audio to let its sound be heard"
            )
        media = [(kind, self._media(kind, cell)) for kind, found in cells.items() for cell in found]
        for _, one in media:
            if isinstance(one, Video):
                check_video(one, min_frames=1, decode=self.decode)
            elif isinstance(one, Audio):
                check_sound(one, self.decode)
        return [one for _, one in media], [picture_size(one, self.decode) for kind, one in media if kind is IMAGE]

    def prompts(self, row: Row, measured: Callable[[], Measured] | None = None) -> list[Prompt]:
        """One prompt; `measured` gives what `measure(row)` gave before.

        Raises ValueError or FileNotFoundError, without the row's place, for anything wrong with the row.
        """
        question = row.values.get("question")
        if not isinstance(question, str) or not question.strip():
            there = ", ".join(map(str, row.values)) or "no columns"
            raise ValueError(f"column question is {str(question)[:80]!r} (the row has {there}): map it with columns.question")
        media, sizes = self.measure(row) if measured is None else measured()
        for size in sizes:
            check_shape(size)
        question, options = strip_markers(question, media), _options(row)
        span = one_of(row, *SPANS)
        clock, answer = ({}, _answer(row)) if span is None else _span(spans_of(span), media)
        if answer is None and any(row.values.get(name) is not None for name in BOX):
            raise ValueError("the row's answer is boxes: take the data set grounding_jsonl, or write an answer beside them")
        kind, said = self._kind(row, question, answer, options) if span is None else ("span", "span")
        if kind == "choice" and answer is not None:
            answer = self._letters(answer, options)
        used = {*USED, *(answers_in(row) if span is None else ()), *(name for kind in KINDS.values() for name in kind.columns)}
        used |= set(LETTERS) if options and one_of(row, *OPTIONS) is None else set()
        columns = {name: value for name, value in row.values.items() if name not in used}
        columns |= {"question": question, "problem_type": kind, **clock, FILE_ROW: row.place}
        columns |= {"options": options} if options else {}
        columns |= {} if row.values.get("split") is None else {"split": str(row.values["split"])}
        columns |= {"system": row.values["system"]} if row.values.get("system") is not None else {}
        given = row.values.get("id")
        name = f"{Path(row.source).stem}-{row.number}" if given is None else str(given)
        text = self._text(question, kind, options, answer)
        check_markers(text, media)
        check_tokens(text)
        shown = tuple(item if is_named(item) else open_picture(item) for item in media)
        prompt = Prompt(name, text, shown, answer, columns)
        check_answer(prompt, problem_type(prompt))
        self.seen[said] += 1
        return [prompt]

    @property
    def suspicion(self) -> str | None:
        """A sentence for answers that look like letters of options that their rows do not list, with the remedy; else None."""
        if not self.seen[_LONE]:
            return None
        return (
            f"{self.seen[_LONE]} answers are single letters, and their rows list no options to choose from, so they are compared "
            "as texts: name the column of the options with columns.options=NAME, or say kind=text or kind=choice"
        )

    def split_of(self, row: Row) -> str:
        """The split a row belongs to."""
        return row.split

    def _kind(self, row: Row, question: str, answer: Cell, options: tuple[str, ...]) -> tuple[str, str]:
        """The kind of the answer, and how it is counted."""
        if self.kind != "auto":
            return self.kind, self.kind
        own = one_of(row, *ANSWER_KINDS)
        if own is not None:
            return problem_type(Prompt("", columns={"problem_type": own, FILE_ROW: row.place})), "as rows say"
        kind = guess_kind(question, answer, options)
        is_lone = kind == "text" and _LETTER.fullmatch(str(answer)) is not None
        return kind, _LONE if is_lone else f"{kind} (guessed)"

    def _letters(self, answer: Cell, options: tuple[str, ...]) -> str:
        """The right letters: "A,C". ValueError for an answer that names no option, two different ones, or one of two alike."""
        listed = cast(Sequence[Cell], answer) if isinstance(answer, list | tuple) else [answer]
        right = [letter for item in listed for letter in self._letters_of(item, options)]
        wordings = [options[LETTERS.index(letter)] for letter in right if options]
        if twice := next((text for text in wordings if options.count(text) > wordings.count(text)), None):
            same = " and ".join(letter for letter, text in zip(LETTERS, options, strict=False) if text == twice)
            raise ValueError(
                f"options {same} are alike ({twice[:80]!r}), so that a right answer counts as wrong: write other wordings"
            )
        return ",".join(right)

    def _letters_of(self, answer: Cell, options: tuple[str, ...]) -> list[str]:
        text = str(answer).strip()
        worded = [letter for letter, option in zip(LETTERS, options, strict=False) if option.strip().lower() == text.lower()]
        if self.numbering != "letters" and text.isdecimal():
            place = int(text) - (self.numbering == "one")
            if not 0 <= place < len(options):
                raise ValueError(
                    f"the answer {text} is no option's number: there are {len(options)}, counted from {self.numbering}"
                )
            return [LETTERS[place]]
        if len(worded) > 1:
            raise ValueError(f"the answer {text!r} is the wording of options {' and '.join(worded)}: write its letter")
        named = sorted(parse_choices(text, options))
        if worded and _LETTER.fullmatch(text) and named and named != worded:
            raise ValueError(f"the answer {text!r} is both a letter and the wording of option {worded[0]}: write another wording")
        if not worded and text.isdecimal() and options:
            raise ValueError(f"the answer {text} may count options from zero or from one: set numbering = zero or one")
        if not worded and not named:
            there = ", ".join(f"{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False)) or "none listed"
            raise ValueError(f"the answer {text[:80]!r} is none of the options ({there[:200]})")
        return worded or named

    def _text(self, question: str, kind: str, options: tuple[str, ...], answer: Cell) -> str:
        lines = "".join(f"\n{letter}. {option}" for letter, option in zip(LETTERS, options, strict=False))
        asked = question.strip() + ("" if _LISTED.search(question) else lines)
        several = isinstance(answer, str) and "," in answer
        form = {"choice": LETTERS_WANTED if several else LETTER, "span": WHEN}.get(kind, "{question}")
        form = form if self.template is None else self.template
        return form.replace("{question}", asked)

    def _media(self, kind: MediaKind, cell: Cell) -> object:
        """A cell of one kind: a file below image_root; of pictures, one that holds bytes as it is."""
        if kind.source is None:
            return cell_below(self.image_root, cell, self.anywhere)
        if kind is VIDEO:
            return video_of(self.image_root, cell, self.anywhere)
        if not isinstance(cell, str) or not cell:
            raise ValueError(f"a {kind.noun} must be a path, not {str(cell)[:80]!r}")
        return kind.source(path_below(self.image_root, cell, "image_root", self.anywhere))


def guess_kind(question: str, answer: Cell, options: Sequence[str] = ()) -> str:
    """The kind of an answer by its looks: `("How many?", "12", ()) -> "number"`.

    Options or letters where the question lists some: choice. One plain number, perhaps with a percent sign or currency, or a
    fraction: number. LaTeX, powers, equations, sums: math. Everything else, and no answer: text.
    """
    if options:
        return "choice"
    if isinstance(answer, list | tuple):
        answer = ",".join(map(str, cast(Sequence[Cell], answer)))
    if answer is None or isinstance(answer, bool):
        return "text"
    if isinstance(answer, int | float):
        return "number"
    text = str(answer).strip()
    if _LISTED.search(question) and (_LETTER.fullmatch(text) or re.fullmatch(r"[A-Z](?:\s*,\s*[A-Z])+", text)):
        return "choice"
    if _FRACTION.fullmatch(text) or (any(letter.isdigit() for letter in text) and _NUMBER.fullmatch(text)):
        return "number"
    return "math" if _MATH.search(text) else "text"


def _answer(row: Row) -> Cell:
    """The row's answer; a list of one is unpacked. None: data without labels."""
    answer = one_of(row, *answers_in(row))
    if isinstance(answer, list) and len(answer) == 1:
        answer = answer[0]
    if isinstance(answer, bool):
        raise ValueError(f"the answer is {answer}: write it as the text that a model is to write, such as 'yes'")
    if isinstance(answer, dict) or (isinstance(answer, str) and not answer.strip()):
        raise ValueError(f"the answer is {str(answer)[:80]!r}: it must be a text or a number")
    return answer.strip() if isinstance(answer, str) else answer


def _span(answer: object, media: Sequence[object]) -> tuple[dict[str, float], object]:
    """Length (and frame rate) of the row's one clip or sound, and the true spans within it; ValueError for others."""
    if len(media) == 1 and isinstance(media[0], Audio):
        _, seconds = sound_part(media[0])
        return {"duration": seconds}, inside_clip(answer, seconds)
    if len(media) != 1 or not isinstance(media[0], Video):
        raise ValueError(
            f"the row has a span and {len(media)} pictures or clips: a span is of one clip, column video, or sound, column audio"
        )
    if (media[0].start, media[0].end) != (None, None):
        raise ValueError(
            "the row has a span and shows a part of its clip, from whose beginning or the file's it may count: cut the part into "
            "a file of its own, and count from there"
        )
    facts = probe_video(media[0])
    return {"duration": facts.seconds, "fps": facts.fps}, inside_clip(answer, facts.seconds)


def _options(row: Row) -> tuple[str, ...]:
    """The wordings of A, B, ..: of a list, of an object by letters, of one with text and label, or of columns A, B, .."""
    found: Cell = one_of(row, *OPTIONS)
    lettered = [row.values[letter] for letter in takewhile(lambda letter: row.values.get(letter) is not None, LETTERS)]
    found = lettered if found is None and len(lettered) > 1 else found
    if isinstance(found, dict) and isinstance(found.get("text"), list):
        labels = [str(label) for label in found["label"]] if isinstance(found.get("label"), list) else []
        if labels != sorted(labels, key=lambda label: (len(label), label)):
            raise ValueError(
                f"the labels of options are {', '.join(labels)[:80]}: write the options in the order of their labels"
            )
        found = found["text"]
    elif isinstance(found, dict):
        keys = sorted(found)
        if keys != list(LETTERS[: len(keys)]):
            raise ValueError(
                f"options are called {', '.join(map(str, keys))[:80]}: call them A, B, .. without a gap, or write a list"
            )
        found = [found[key] for key in keys]
    if found is None:
        return ()
    if not (isinstance(found, list) and 2 <= len(found) <= len(LETTERS) and all(isinstance(x, str | int | float) for x in found)):
        raise ValueError(f"options must be a list of 2 to {len(LETTERS)} texts, not {str(found)[:80]}")
    texts = [str(option).strip() for option in found]
    labels = [_LABELLED.match(text) for text in texts]
    if all(label is not None and label[1] == letter for label, letter in zip(labels, LETTERS, strict=False)):
        texts = [_LABELLED.sub("", text, count=1) for text in texts]
    return tuple(texts)
