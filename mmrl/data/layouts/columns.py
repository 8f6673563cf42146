"""Rows of one question whose columns have other names than ours."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from mmrl.core.samples import AUDIO, VIDEO
from mmrl.data.layouts.annotations.coco import QUESTION, rows_by_label
from mmrl.data.layouts.answers import corners_of, four_numbers, say_answer
from mmrl.data.layouts.base import ANSWERS, MEDIA, PICTURES, one_of, row_like
from mmrl.data.readers import Cell, Row

_TASK = re.compile(r"(?:<(?:image|[A-Z_]+|loc_\d+)>\s*+)++")


@dataclass(frozen=True)
class Columns:
    """The columns that hold question and answer: `Columns("problem")` reads {"problem": "1 + 1?", "solution": 2}."""

    question: str
    answers: tuple[str, ...] = ANSWERS
    """The columns of which one holds the answer; what looks like boxes is said as boxes."""
    prefers: str | None = None
    """The one of them that is read where several are filled; without it such a row is refused."""
    xywh: str | None = None
    """In place of an answer, the column of a box: a corner, width and height in pixels."""
    asks_each: bool = False
    """The question's column is a list of texts, and each is a question."""
    id: str = "id"
    drops: tuple[str, ...] = ()
    """Columns that say nothing to rewards."""

    def __call__(self, row: Row) -> Iterator[Row]:
        question = self._question(row.values.get(self.question))
        pictures, others = one_of(row, *PICTURES), {kind.name: one_of(row, *kind.columns) or None for kind in (VIDEO, AUDIO)}
        said = {} if self.id == "id" else {"id": row.values.get(self.id) or None}
        said |= {"question": question, "image": pictures or None, **others}
        if self.xywh is not None:
            said["box"] = corners_of(four_numbers(row.values.get(self.xywh), self.xywh))
        else:
            first = row.values.get(self.prefers or "")
            said |= say_answer(one_of(row, *self.answers) if first is None else first, bool(pictures))
        used = (self.question, *self.answers, self.xywh or "", *MEDIA, *self.drops)
        yield row_like(row, used if self.id == "id" else (*used, self.id), said)

    def _question(self, found: Cell) -> Cell:
        if self.asks_each:
            if not isinstance(found, list) or not all(isinstance(sentence, str) for sentence in found):
                raise ValueError(f"column {self.question} must be a list of sentences, not {str(found)[:80]}")
            return found[0] if len(found) == 1 else found
        if not isinstance(found, str) or not found.strip():
            raise ValueError(f"column {self.question} must be a text that is not empty, not {str(found)[:80]!r}")
        return found.strip()


def prefix_row(row: Row, question: str = QUESTION) -> Iterator[Row]:
    """A row of `prefix` and `suffix`. A task of Florence-2 is no question: what follows it is, or each label of its boxes."""
    for said in Columns("prefix", ("suffix",))(row):
        asked = str(said.values["question"])
        task = _TASK.match(asked)
        text = asked[task.end() :].strip() if task else asked
        found = said.values.get("box", ())
        boxes = [(one["label"], one["bbox"]) for one in (found if isinstance(found, list) else [found]) if isinstance(one, dict)]
        if text:
            yield row_like(said, (), {"question": text})
        elif not boxes:
            raise ValueError(f"prefix {asked} is a task of Florence-2 and no question: write a question there")
        else:
            name = said.values.get("id", f"{row.source}-{row.number}")
            yield from (row_like(said, ("box",), one) for one in rows_by_label({"id": name}, boxes, question))
