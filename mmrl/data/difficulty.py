"""Selects the prompts that a policy can learn from: those it gets right sometimes, but not always."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isnan

from mmrl.core.types import Prompt


@dataclass(frozen=True)
class Kept:
    """The prompts that are kept, in their order, and how many were dropped."""

    prompts: tuple[Prompt, ...]
    num_too_easy: int
    num_too_hard: int

    def __str__(self) -> str:
        total = len(self.prompts) + self.num_too_easy + self.num_too_hard
        return f"{len(self.prompts)} of {total} prompts kept, {self.num_too_easy} too easy, {self.num_too_hard} too hard"


def success_share(scores: Sequence[float], success_at: float = 0.5) -> float:
    """Share of a prompt's samples that score at least `success_at`; ValueError for no scores or NaN."""
    if not scores or any(isnan(score) for score in scores):
        raise ValueError(f"scores {list(scores)} must be numbers, at least one")
    return sum(score >= success_at for score in scores) / len(scores)


def keep_learnable(
    prompts: Iterable[Prompt],
    scores: Mapping[str, Sequence[float]],
    low: float = 0.1,
    high: float = 0.9,
    success_at: float = 0.5,
) -> Kept:
    """Keep prompts whose success share lies in [low, high]; `scores` maps a prompt's id to the scores of its k samples.

    Raises ValueError for an empty interval, or a prompt without scores.
    """
    if not 0 <= low <= high <= 1:
        raise ValueError(f"the interval [{low}, {high}] of success shares must lie in [0, 1]")
    kept, num_too_easy, num_too_hard = list[Prompt](), 0, 0
    for prompt in prompts:
        if prompt.id not in scores:
            raise ValueError(f"prompt {prompt.id!r} has no scores: sample it before filtering")
        share = success_share(scores[prompt.id], success_at)
        num_too_easy += share > high
        num_too_hard += share < low
        if low <= share <= high:
            kept.append(prompt)
    return Kept(tuple(kept), num_too_easy, num_too_hard)
