"""The boxes of one completion beside the true ones, in one space; box rewards start here."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from mmrl.answers.block import InTemplate, completion_text, items_of
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
    """Different boxes, as written; none if one of them lies outside its space."""
    points: tuple[tuple[float, float], ...] = ()
    """The points of a text that names no box; likewise none if one lies outside."""
    extent: tuple[float, float] | None = None
    """Width and height of the picture in the space of these boxes; None if unknown."""
    outside: bool = False
    """True if the text names a box or point beyond its space."""
    says_nothing: bool = False
    """True if the text states that there is no object."""

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
        """Parts for the log: shares of texts with nothing readable, with a box outside its space."""
        return {"unparsed": float(not self.predicted and not self.says_nothing), "outside": float(self.outside)}


@dataclass(frozen=True)
class OfBoxes(InTemplate, ABC):
    """The common base of rewards that compare boxes; a prompt without an answer gets None."""

    space: AnySpace = field(default="auto", kw_only=True)
    """Space in which the model writes; auto = the one of the policy's family."""

    def __call__(self, group: Group) -> list[float | Scored | None]:
        if group.prompt.answer is None:
            return [None] * len(group.samples)
        return self.score_each(group, lambda sample: self.score(read_boxes(group.prompt, sample, self.space)))

    @abstractmethod
    def score(self, attempt: Attempt) -> Scored:
        """The score of one completion."""


def read_boxes(prompt: Prompt, sample: Sample, space: AnySpace) -> Attempt:
    """One completion as boxes of the prompt's first picture, read in `space`.

    Raises ValueError if the space is still "auto", the answer is not made of boxes or lies outside its picture, the sample has no
    text, or its media size is needed and missing.
    """
    space, truth, text = named_space(space), true_boxes(prompt), completion_text(prompt, sample)
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
    boxes = tuple(dict.fromkeys(parse_boxes(text, space)))
    points = () if boxes else tuple(parse_points(text, space))
    if known and not (all(is_inside(box, size) for box in boxes) and all(_fits(point, space, size) for point in points)):
        return replace(attempt, outside=True)
    predicted = tuple(box.to(common, size) for box in boxes)
    clicks = tuple(convert_point(point, space, common, size) for point in points)
    return replace(attempt, predicted=predicted, points=clicks, says_nothing=says_nothing(text))


def named_space(space: AnySpace) -> Space:
    """The same space; ValueError for "auto", which a build replaces."""
    if space == "auto":
        raise ValueError('space is still "auto": name the one the model answers in, for example space = "norm1000"')
    return space


def true_boxes(prompt: Prompt) -> tuple[Box, ...]:
    """The prompt's answer as boxes; ValueError naming the prompt if it is something else."""
    found = items_of(prompt.answer)
    boxes = tuple(box for box in found if isinstance(box, Box))
    if len(boxes) < len(found):
        raise ValueError(f"the answer of prompt {prompt.id!r} is {prompt.answer!r}: box rewards need a Box or a tuple of Boxes")
    return boxes


def _fits(point: tuple[float, float], space: Space, size: MediaSize | None) -> bool:
    return all(0 <= x <= most for x, most in zip(point, extent(space, size), strict=True))
