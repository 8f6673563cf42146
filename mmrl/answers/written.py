"""True answers as models write them, so that the rewards read them back as the truth: one writer for every kind of answer."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import cast

from mmrl.answers.block import Template, items_of
from mmrl.answers.boxes.box import Box, Space, as_written, extent
from mmrl.answers.boxes.parsing import DIGITS, format_box, kept_apart
from mmrl.answers.spans.interval import Interval, Unit
from mmrl.answers.spans.parsing import format_interval
from mmrl.core.types import MediaSize, Prompt

THINKS, THOUGHT = "<think>", "\n\n"
"""What begins a thought, and one that says nothing."""


@dataclass(frozen=True)
class Way:
    """How answers are to be written: `Way("norm1000", "think")`."""

    space: Space | None = None
    """How boxes are written; None: the model is not known to write any."""
    template: Template | None = None
    """The tags around an answer; think: a thought before it."""
    unit: Unit = "seconds"
    """What the reward takes numbers without a unit for, in spans of time."""
    lists: bool = False
    """A box is a plain list of numbers, and no object with a label."""
    points: bool = False
    """In place of a box its middle is asked for."""
    opened: str = ""
    """The tag that the chat template writes before every completion: `<think>`, or none."""

    def of(self, prompt: Prompt, size: MediaSize | None, thought: str = THOUGHT) -> str:
        """The completion that gives a prompt's true answer; `size` is that of the picture of its boxes.

        Raises ValueError, naming the prompt, for an answer that cannot be written.
        """
        try:
            return self._behind_opened(in_template(self.answer(prompt, size), self.template, thought))
        except ValueError as error:
            raise ValueError(f"prompt {prompt.id!r}: {error}") from None

    def answer(self, prompt: Prompt, size: MediaSize | None) -> str:
        """The answer alone; errors as in `of`, without the prompt's name."""
        truth: object = prompt.answer
        if boxes := boxes_of(truth):
            if self.space is None:
                raise ValueError(
                    "the answer is made of boxes, and how this model writes them is unknown: set policy.box_space to pixel, "
                    "resized, norm1000, norm1 or norm1000_yx"
                )
            moved = [box.to(self.space, size) for box in boxes]
            return ", ".join(map(format_middle, moved)) if self.points else format_boxes(moved, size, lists=self.lists)
        listed = items_of(truth)
        if listed and all(isinstance(one, Interval) for one in listed):
            return ", ".join(self.span(cast(Interval, span), prompt) for span in listed)
        return format_answer(truth)

    def span(self, span: Interval, prompt: Prompt) -> str:
        """In seconds where the clip's length or rate allows it, with the unit where the reward would take another one."""
        try:
            found = span.to("seconds", prompt.columns.get("duration"), prompt.columns.get("fps"))
        except ValueError:
            found = span
        if found.unit == "norm":
            return f"{100 * found.start:.2f}% to {100 * found.end:.2f}%"
        text = format_interval(found, digits=2)
        return text if found.unit == "frames" or self.unit == "seconds" else f"{text.replace(' to ', 's to ')}s"

    def _behind_opened(self, text: str) -> str:
        """A completion as it follows the tag that its template opened: a thought goes on there, and an empty one ends first."""
        if not self.opened:
            return text
        return text.removeprefix(self.opened) if text.startswith(self.opened) else f"{THOUGHT}</think>{THOUGHT}{text}"


def format_answer(answer: object) -> str:
    """A text, a number, or a list of these, as itself; ValueError for anything else."""
    if isinstance(answer, list | tuple):
        return ", ".join(map(format_answer, items_of(cast(object, answer)))) or "[]"
    if isinstance(answer, float):
        return f"{answer:.12g}"
    if isinstance(answer, str | int) and str(answer).strip():
        return str(answer).strip()
    raise ValueError(f"the answer {str(answer)[:80]!r} cannot be written: it is no text, number, box, span or list of these")


def format_boxes(boxes: Sequence[Box], size: MediaSize | None, decimals: int = 0, lists: bool = False) -> str:
    """Boxes as one JSON list of objects, or as plain lists of numbers, with the decimals usual in their space or more."""
    digits = [max(DIGITS[box.space], decimals) for box in boxes]
    kept = [_inside(box, size, digit) for box, digit in zip(boxes, digits, strict=True)]
    texts = [format_box(box, "list" if lists else "json", digit) for box, digit in zip(kept, digits, strict=True)]
    return ", ".join(texts) if lists else f"[{', '.join(texts)}]"


def format_middle(box: Box) -> str:
    """The middle of a box as a point."""
    (x, y), digits = box.center, DIGITS[box.space]
    x, y, *_ = as_written((x, y, x, y), box.space)
    return json.dumps([round(side, digits) if digits else round(side) for side in (x, y)])


def boxes_of(answer: object) -> tuple[Box, ...]:
    """The boxes of an answer; () where it is made of anything else."""
    items = items_of(answer)
    return cast(tuple[Box, ...], items) if items and all(isinstance(item, Box) for item in items) else ()


def in_template(text: str, template: Template | None, thought: str = "This is clear.") -> str:
    """The answer as the template wants it."""
    if template is None or template == "json":
        return text
    return f"{THINKS}{thought}</think><answer>{text}</answer>" if template == "think" else f"<answer>{text}</answer>"


def _inside(box: Box, size: MediaSize | None, digits: int) -> Box:
    """The box rounded, within its picture where its size is known."""
    right, bottom = (inf, inf) if size is None and box.space in ("pixel", "resized") else extent(box.space, size)
    x1, y1, x2, y2 = (round(x, digits) for x in box.corners)
    (x1, x2), (y1, y2) = kept_apart(x1, x2, right, digits), kept_apart(y1, y2, bottom, digits)
    return replace(box, x1=x1, y1=y1, x2=x2, y2=y2)
