"""Weights that a prompt gives its rollouts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.algorithms.weights.aggregate import PlainWeight
from mmrl.core.types import Batch, Counts, Group, MediaSize, Prompt, Sample
from mmrl.runtime.ranges import Positive, PositiveShare


@dataclass(frozen=True)
class Difficulty(PlainWeight):
    """The number in a column of the prompt, for every action of its rollouts (GUI-G1, arXiv:2505.15810).

    There it grows as the target box shrinks against the picture. The column is used as it is, without normalizing.
    """

    column: str = "difficulty"
    """The column of the prompts that holds the weight, a number."""

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        """Raises ValueError when a prompt has no number in that column."""
        values = torch.tensor([self._of(group.prompt) for group, _ in batch.rollouts.samples()])
        return values.to(batch.advantages)[:, None].expand_as(batch.advantages)

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError for a prompt without a number in that column."""
        for prompt in prompts:
            self._of(prompt)

    def _of(self, prompt: Prompt) -> float:
        value = prompt.columns.get(self.column)
        if not isinstance(value, int | float):
            raise ValueError(
                f"prompt {prompt.id!r} has {value!r} in column {self.column!r}, which Difficulty weighs rollouts by: "
                "give every row of the data set a number there, or name another column"
            )
        return float(value)


@runtime_checkable
class Rectangle(Protocol):
    """The part of a true box that is used here."""

    @property
    def area(self) -> float: ...

    def to(self, space: Literal["norm1"], size: MediaSize | None) -> "Rectangle":
        """The same in shares of the picture's sides."""
        ...


@dataclass(frozen=True)
class SmallTarget(PlainWeight):
    """kappa = clamp((reference / s)^power, least, most), s the share of the picture that the true box covers (GUI-G1).

    arXiv:2505.15810, whose data hold such a number for every prompt (Difficulty reads it); how it was made of the box's relative
    size was not found, so this form and its numbers are ours. Of several boxes the mean size counts.
    """

    reference: PositiveShare = 0.01
    """Share of the picture at which kappa is 1."""
    power: Positive = 0.5
    """How fast kappa grows as a box shrinks."""
    least: Positive = 0.5
    """kappa of large boxes."""
    most: Positive = 2.0
    """kappa of tiny ones."""

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        """Raises ValueError when a prompt's answer is no box."""
        values = torch.tensor([self.factor(self._share(*pair)) for pair in batch.rollouts.samples()])
        return values.to(batch.advantages)[:, None].expand_as(batch.advantages)

    def factor(self, share: float) -> float:
        """kappa of a box that covers this share of its picture."""
        return min(max((self.reference / share) ** self.power, self.least), self.most)

    def _share(self, group: Group, sample: Sample) -> float:
        size = sample.media_sizes[0] if sample.media_sizes else None
        boxes = self._boxes(group.prompt)
        return sum(box.to("norm1", size).area for box in boxes) / len(boxes)

    def check_prompts(self, prompts: Sequence[Prompt]) -> None:
        """Raises ValueError for a prompt whose answer is no box."""
        for prompt in prompts:
            self._boxes(prompt)

    def _boxes(self, prompt: Prompt) -> Sequence[Rectangle]:
        answer = prompt.answer
        given = cast(Sequence[object], answer if isinstance(answer, tuple | list) else (answer,))
        boxes = [box for box in given if isinstance(box, Rectangle)]
        if len(boxes) < len(given) or not boxes:
            raise ValueError(
                f"prompt {prompt.id!r} has the answer {answer!r}, and SmallTarget weighs rollouts by the size of true "
                "boxes: take a data set whose answers are boxes, or remove it from algorithm.importance"
            )
        return boxes
