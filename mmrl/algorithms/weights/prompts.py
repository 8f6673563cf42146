"""Weights that a prompt gives its rollouts."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from mmrl.core.types import Batch, Counts, Prompt, Reading, Scope


@dataclass(frozen=True)
class Difficulty:
    """The number in a column of the prompt, for every action of its rollouts (GUI-G1, arXiv:2505.15810).

    There it grows as the target box shrinks against the picture. The column is used as it is, without normalizing.
    """

    column: str = "difficulty"
    """The column of the prompts that holds the weight, a number."""

    @property
    def reads(self) -> tuple[Reading, ...]:
        return ()

    @property
    def scope(self) -> Scope:
        return "rollout"

    def __call__(self, batch: Batch, counts: Counts) -> Float[Tensor, "n t"]:
        """Raises ValueError when a prompt has no number in that column."""
        values = torch.tensor([self._of(group.prompt) for group, _ in batch.rollouts.samples()])
        return values.to(batch.advantages)[:, None].expand_as(batch.advantages)

    def _of(self, prompt: Prompt) -> float:
        value = prompt.columns.get(self.column)
        if not isinstance(value, int | float):
            raise ValueError(
                f"prompt {prompt.id!r} has {value!r} in column {self.column!r}, which Difficulty weighs rollouts by: "
                "give every row of the data set a number there, or name another column"
            )
        return float(value)
