"""The boxes of one completion beside the true ones, in one space; box rewards start here."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from mmrl.answers.block import InTemplate, Template, items_of, keeps_format, opened_text
from mmrl.answers.boxes.box import Box, Space, check_inside, convert_point, extent, is_inside
from mmrl.answers.boxes.parsing import parse_boxes, parse_points, says_nothing
from mmrl.core.types import Group, MediaSize, Prompt, Sample, Scored

AnySpace = Space | Literal["auto"]
"""auto: the space of the policy's model family; the build puts it in."""


@dataclass(frozen=True)
class Attempt:
    """A completion read as boxes, and the true ones: in pixels of the file, without media sizes in the space the model writes."""

    prompt_id: str
    truth: tuple[Box, ...]
    predicted: tuple[Box, ...] = ()
    """Different boxes, as written; none if one of them lies outside its space, or the text breaks its template."""
    points: tuple[tuple[float, float], ...] = ()
    """The points of a text that names no box; likewise none if one lies outside."""
    extent: tuple[float, float] | None = None
    """Width and height of the picture in the space of these boxes; None if unknown."""
    outside: bool = False
    """True if the text names a box or point beyond its space."""
    says_nothing: bool = False
    """True if the text states that there is no object."""
    keeps_format: bool | None = None

    @property
    def only_truth(self) -> Box:
        """The true box; ValueError unless there is exactly one."""
        if len(self.truth) != 1:
            raise ValueError(
                f"prompt {self.prompt_id!r} has {len(self.truth)} true boxes and this reward compares with one: use multi_box"
            )
        return self.truth[0]

    def best(self, score: Callable[[Box, Box], float]) -> float:
        """The score of the best predicted box, divided by the number of boxes, so that naming many does not pay; else 0."""
        truth = self.only_truth
        return max((score(box, truth) for box in self.predicted), default=0.0) / max(len(self.predicted), 1)

    def parts(self) -> dict[str, float]:
        """Parts for the log: shares of texts with nothing readable, with a box outside its space, that keep their template."""
        unparsed = not self.predicted and not self.says_nothing and self.keeps_format is not False
        kept = {} if self.keeps_format is None else {"format": float(self.keeps_format)}
        return {"unparsed": float(unparsed), "outside": float(self.outside), **kept}


@dataclass(frozen=True)
class OfBoxes(InTemplate, ABC):
    """The common base of rewards that compare boxes; a prompt without an answer gets None."""

    space: AnySpace = field(default="auto", kw_only=True)
    """Space in which the model writes; auto = the one of the policy's family."""

    def __call__(self, group: Group) -> list[float | Scored | None]:
        attempts = read_attempts(group, self.space, self.template)
        return [None] * len(group.samples) if attempts is None else [self.score(attempt) for attempt in attempts]

    @abstractmethod
    def score(self, attempt: Attempt) -> Scored:
        """The score of one completion."""


def read_attempts(group: Group, space: AnySpace, template: Template | None = None) -> list[Attempt] | None:
    """One attempt per sample, read in `space`; None if the prompt has no answer, so that the reward does not apply.

    Boxes refer to the prompt's first picture. With a template, a text that breaks it predicts nothing.
    Raises ValueError if the space is still "auto", the answer is not made of boxes or lies outside its picture, a sample has no
    text, or its media size is needed and missing.
    """
    if group.prompt.answer is None:
        return None
    if space == "auto":
        raise ValueError('space is still "auto": name the one the model answers in, for example space = "norm1000"')
    truth = true_boxes(group.prompt)
    return [_read(group.prompt, sample, truth, space, template) for sample in group.samples]


def true_boxes(prompt: Prompt) -> tuple[Box, ...]:
    """The prompt's answer as boxes; ValueError naming the prompt if it is something else."""
    found = items_of(prompt.answer)
    boxes = tuple(box for box in found if isinstance(box, Box))
    if len(boxes) < len(found):
        raise ValueError(f"the answer of prompt {prompt.id!r} is {prompt.answer!r}: box rewards need a Box or a tuple of Boxes")
    return boxes


def completion_text(prompt: Prompt, sample: Sample) -> str:
    """The sample's text, behind the tag that its template opened; ValueError naming the prompt if it has none."""
    if sample.text is None:
        raise ValueError(f"a sample of prompt {prompt.id!r} has no text: this reward is for policies that write")
    return opened_text(sample)


def _read(prompt: Prompt, sample: Sample, truth: tuple[Box, ...], space: Space, template: Template | None) -> Attempt:
    text = completion_text(prompt, sample)
    size = sample.media_sizes[0] if sample.media_sizes else None
    common: Space = space if size is None else "pixel"
    try:
        true = tuple(dict.fromkeys(box.to(common, size) for box in truth))
        if size is not None:
            for box in truth:
                check_inside(box, size)
    except ValueError as error:
        raise ValueError(f"prompt {prompt.id!r}: {error}") from None
    known = size is not None or space not in ("pixel", "resized")
    attempt = Attempt(prompt.id, true, extent=extent(common, size) if known else None)
    if (attempt := replace(attempt, keeps_format=template and keeps_format(text, template))).keeps_format is False:
        return attempt
    boxes = tuple(dict.fromkeys(parse_boxes(text, space)))
    points = () if boxes else tuple(parse_points(text, space))
    if known and not (all(is_inside(box, size) for box in boxes) and all(_fits(point, space, size) for point in points)):
        return replace(attempt, outside=True)
    predicted = tuple(box.to(common, size) for box in boxes)
    clicks = tuple(convert_point(point, space, common, size) for point in points)
    return replace(attempt, predicted=predicted, points=clicks, says_nothing=says_nothing(text))


def _fits(point: tuple[float, float], space: Space, size: MediaSize | None) -> bool:
    return all(0 <= x <= most for x, most in zip(point, extent(space, size), strict=True))
