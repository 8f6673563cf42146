"""One line of a samples file, and what can be read from it: boxes, spans, their overlap with the truth."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from mmrl.answers.block import answer_block, opened_text
from mmrl.answers.boxes.box import SPACES, Box, iou_matrix, is_inside
from mmrl.answers.boxes.detection import point_in_box
from mmrl.answers.boxes.parsing import parse_boxes
from mmrl.answers.spans.interval import Interval, union_iou
from mmrl.app.run.folder import Line
from mmrl.app.run.sample_files import first_size
from mmrl.core.types import MediaSize, Sample
from mmrl.training.measure import mean

SMALL, LARGE = 32.0**2, 96.0**2
"""Square pixels of the file below which a box is small, and from which on it is large, as in COCO's evaluation."""
Task = tuple[str, str]
"""Id and text of a prompt: equal ids of different data sets are different tasks."""


@dataclass(frozen=True)
class SampleLine:
    """One line of a samples file."""

    line: Line
    space: str | None
    """How its completion writes boxes; None: it has none."""

    @property
    def prompt(self) -> str:
        return str(self.line["prompt"])

    @property
    def text(self) -> str:
        """The last turn of the completion, where its answer is looked for."""
        return self.line["completion"] or ""

    @property
    def transcript(self) -> str:
        """All turns and what the environment answered; what the model wrote where no environment did."""
        return self.line.get("earlier", "") + self.text

    @property
    def _opened(self) -> str:
        return opened_text(Sample(self.text, opened=self.line.get("opened", "")))

    @property
    def total(self) -> float:
        return number_of(self.line["total"])

    @property
    def size(self) -> MediaSize | None:
        return first_size(self.line["media_sizes"], self.line["media"])

    @cached_property
    def truth(self) -> list[Box]:
        """In pixels of the file."""
        return [Box(*corners) if label is None else Box(*corners, label=label) for *corners, label in self.line["answer_boxes"]]

    @cached_property
    def predicted(self) -> list[Box]:
        """Read from the completion, in pixels of the file."""
        return self._boxes([self._opened]) if self.truth else []

    @cached_property
    def looked(self) -> list[Box]:
        """The boxes that earlier turns of an episode write, in pixels of the file."""
        return self._boxes([turn["text"] for turn in self.line.get("turns", ())][:-1])

    def _boxes(self, texts: Sequence[str]) -> list[Box]:
        size = self.size
        if size is None or self.space not in SPACES:
            return []
        return [box.to("pixel", size) for text in texts for box in dict.fromkeys(parse_boxes(text, self.space))]

    @property
    def spans(self) -> "Spans | None":
        """The true spans and those of the completion; None where the answer is no span."""
        found = self.line.get("spans")
        if found is None:
            return None
        truth, predicted = ([Interval(start, end) for start, end in found[name]] for name in ("truth", "predicted"))
        return Spans(found["seconds"], truth, predicted)

    @property
    def outside(self) -> bool:
        """True if a predicted box lies beyond the picture."""
        return self.size is not None and not all(is_inside(box, self.size) for box in self.predicted)

    @cached_property
    def iou(self) -> float:
        """Best matching of predicted and true boxes, divided by the larger number: missing and surplus boxes count 0.

        All of it is 0 when a predicted box lies beyond the picture.

        For spans of time, of the times that all of them cover. NaN when the prompt has neither true box nor span, or the size of
        its picture or the space of its boxes is unknown.
        """
        if self.spans is not None:
            return union_iou(self.spans.predicted, self.spans.truth)
        if not self.truth or self.size is None or self.space not in SPACES:
            return math.nan
        if not self.predicted or self.outside:
            return 0.0
        from scipy.optimize import linear_sum_assignment

        overlaps = iou_matrix(self.predicted, self.truth)
        rows, columns = linear_sum_assignment(overlaps, maximize=True)
        return float(overlaps[rows, columns].sum()) / max(len(self.predicted), len(self.truth))

    @property
    def hits(self) -> float:
        """Share of the true boxes that hold the centre of a predicted one; 0 and NaN as for iou, NaN for spans."""
        if self.spans is not None:
            return math.nan
        if math.isnan(self.iou) or not self.predicted or self.outside:
            return self.iou
        return mean(float(any(point_in_box(box.center, true) for box in self.predicted)) for true in self.truth)

    @property
    def parts(self) -> Mapping[str, float]:
        """The parts of its rewards by "<reward>/<part>"; none in runs of earlier versions."""
        return {name: float(value) for name, value in (self.line.get("parts") or {}).items()}

    @property
    def unread(self) -> float:
        """1 where what is looked for in the completion, or what a reward looked for, was not found; NaN where unknown."""
        unread_marks = [value for name, value in self.parts.items() if name.endswith("/unparsed")]
        if self.spans is not None:
            unread_marks.append(float(not self.spans.predicted))
        elif self.truth and math.isfinite(self.iou):
            unread_marks.append(float(not self.predicted))
        return max(unread_marks) if unread_marks else math.nan

    @property
    def box_size(self) -> str:
        """small, medium or large, where the truth is one box; else empty."""
        if len(self.truth) != 1 or self.truth[0].space != "pixel":
            return ""
        area = self.truth[0].area
        return "small" if area < SMALL else "medium" if area < LARGE else "large"

    @property
    def value(self) -> object:
        """The answer as it was read: boxes in pixels of the file, spans in seconds, or the words of the answer."""
        if self.line["completion"] is None:
            return None
        if self.spans is not None:
            return [[span.start, span.end] for span in self.spans.predicted]
        if self.truth and self.size is not None and self.space in SPACES:
            return [[*box.corners, box.label] for box in self.predicted]
        return answer_block(self._opened)


class Spans(NamedTuple):
    """In seconds of a clip that lasts `seconds`."""

    seconds: float
    truth: list[Interval]
    predicted: list[Interval]


def by_task(rows: Iterable[SampleLine]) -> dict[Task, list[SampleLine]]:
    """Samples by prompt."""
    found: dict[Task, list[SampleLine]] = {}
    for row in rows:
        found.setdefault((row.prompt, row.line["text"]), []).append(row)
    return found


def number_of(value: object) -> float:
    """A value of a run's files; NaN for what is no number."""
    try:
        return float(value) if isinstance(value, int | float | str) else math.nan
    except (ValueError, OverflowError):
        return math.nan
