"""The true answer of a row, by the type of its question; rewards on questions start here."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Generic, TypeVar, cast

from mmrl.answers.block import InTemplate, answer_block, completion_text
from mmrl.answers.choices import parse_choices
from mmrl.answers.needs import Need
from mmrl.answers.numbers import Number, parse_number
from mmrl.core.types import Group, Prompt, Scored

T = TypeVar("T")

PROBLEM_TYPES = {
    "multiple choice": "choice",
    "choice": "choice",
    "numerical": "number",
    "number": "number",
    "count": "number",
    "math": "math",
    "regression": "regression",
    "ocr": "ocr",
    "free-form": "text",
    "free form": "text",
    "text": "text",
    "temporal grounding": "span",
    "temporal": "span",
    "span": "span",
}
"""How data sets call the types of questions, in small letters, and which reward each gets. The first names are Video-R1's."""


def problem_type(prompt: Prompt, column: str = "problem_type") -> str:
    """The kind of reward that this row's own type asks for: choice, number, math, regression, ocr, text or span.

    Raises ValueError naming the row for a type that is missing or unknown.
    """
    written = prompt.columns.get(column)
    kind = PROBLEM_TYPES.get(written.strip().lower().replace("_", " ")) if isinstance(written, str) else None
    if kind is None:
        row = prompt.columns.get("file_row")
        place = f"prompt {prompt.id!r}" + (f" ({row})" if row else "")
        raise ValueError(f"{place}: column {column} is {written!r}, which no reward is for: use {', '.join(PROBLEM_TYPES)}")
    return kind


@dataclass(frozen=True)
class OfAnswers(InTemplate, ABC, Generic[T]):
    """The common base of rewards that compare texts with what `needs` reads of a prompt; where that is None, so are scores."""

    pointwise = True
    needs: ClassVar[Need]

    def __call__(self, group: Group) -> list[float | Scored | None]:
        prompt = group.prompt
        truth = cast(T | None, self.needs.reads(prompt, self, "text"))
        if truth is None:
            return [None] * len(group.samples)
        return self.score_each(group, lambda sample: self._scored(completion_text(prompt, sample), truth, prompt))

    def _scored(self, text: str, truth: T, prompt: Prompt) -> Scored:
        scored = self.score(text, truth, prompt)
        return replace(scored, parts={"unparsed": float(not answer_block(text)), **scored.parts})

    @abstractmethod
    def score(self, text: str, truth: T, prompt: Prompt) -> Scored:
        """The score of one text; unless it has a part `unparsed`, this is 1 for texts without an answer."""


def read_letters(prompt: Prompt, text: str) -> frozenset[str]:
    """The letters that a text names."""
    return parse_choices(text, _options(prompt))


def true_letters(prompt: Prompt) -> frozenset[str]:
    """The prompt's answer as letters; ValueError naming the prompt if it is something else."""
    answer: object = prompt.answer
    text = ",".join(map(str, cast(Sequence[object], answer))) if isinstance(answer, list | tuple) else answer
    letters = parse_choices(text, _options(prompt)) if isinstance(text, str) else frozenset[str]()
    if not letters:
        raise ValueError(
            f"the answer of prompt {prompt.id!r} is {answer!r}: this reward needs letters of its options, as in 'A,C'"
        )
    return letters


def true_number(prompt: Prompt) -> Number:
    """The prompt's answer as a number; ValueError naming the prompt if it is something else."""
    answer: object = prompt.answer
    number = Number(float(answer)) if isinstance(answer, int | float) and not isinstance(answer, bool) else None
    if isinstance(answer, str):
        number = parse_number(answer)
    if number is None or number.value != number.value:
        raise ValueError(f"the answer of prompt {prompt.id!r} is {answer!r}: this reward needs one number")
    return number


def true_text(prompt: Prompt) -> str:
    """The prompt's answer as text; ValueError naming the prompt if it is something else, or empty."""
    answer: object = prompt.answer
    text = answer_block(answer) if isinstance(answer, str) else str(answer) if isinstance(answer, int | float) else ""
    if not text:
        raise ValueError(f"the answer of prompt {prompt.id!r} is {answer!r}: this reward needs a text")
    return text


def _options(prompt: Prompt) -> tuple[str, ...]:
    options: object = prompt.columns.get("options")
    return tuple(map(str, cast(Sequence[object], options))) if isinstance(options, list | tuple) else ()
