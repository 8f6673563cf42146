"""Samples of a prompt that begin alike: what a shared beginning is worth, and what each token or piece adds to it."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mmrl.algorithms.statistics import is_rounding, moments, totals_and_keep
from mmrl.algorithms.turns import states
from mmrl.core.hooks import AdvantageHooks
from mmrl.core.types import Credit, Rollouts, Sample, Scores
from mmrl.runtime.ranges import NonNegative


def names_of(sample: Sample, row: int) -> list[Hashable]:
    """Its tokens, the first behind a world's answer with the state that it begins from: the tokens of two pictures are alike."""
    if sample.token_ids is None:
        raise ValueError(
            "beginnings that samples share are told by their tokens, and this policy's samples have none: take a text policy"
        )
    begun = states(sample, row, len(sample.turns))[1:] if sample.turns else []
    heard = {turn.span[1]: state for turn, state in zip(sample.turns, begun, strict=False)}
    return [(token, heard[place]) if place in heard else token for place, token in enumerate(sample.token_ids)]


def prefixes(rows: Sequence[Sequence[Hashable]]) -> list[list[int]]:
    """A number for every prefix of every row, the same where rows begin alike: `[[5, 6], [5, 7]]` gives `[[0, 1], [0, 2]]`."""
    known: dict[tuple[int, Hashable], int] = {}
    paths: list[list[int]] = []
    for row in rows:
        node, path = -1, list[int]()
        for name in row:
            node = known.setdefault((node, name), len(known))
            path.append(node)
        paths.append(path)
    return paths


def worths(paths: Sequence[Sequence[int]], values: Sequence[float]) -> tuple[dict[int, float], dict[int, int]]:
    """Prefix -> the mean value of the rows that begin so, and how many these are."""
    sums, counts = dict[int, float](), dict[int, int]()
    for path, value in zip(paths, values, strict=True):
        for node in path:
            sums[node], counts[node] = sums.get(node, 0.0) + value, counts.get(node, 0) + 1
    return {node: total / counts[node] for node, total in sums.items()}, counts


@dataclass(frozen=True)
class ByPrefix(AdvantageHooks, ABC):
    """The base of advantages that look at shared beginnings, of plain samples and of episodes that branch."""

    min_group_size = 2

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        """Raises ValueError for samples without tokens."""
        totals, keep = totals_and_keep(scores)
        values = torch.zeros(rollouts.action_mask.shape, dtype=torch.float64)
        rows = [names_of(sample, i) for i, (_, sample) in enumerate(rollouts.samples())]
        for group in set(map(int, rollouts.group_ids)):
            own = list(map(int, ((rollouts.group_ids == group) & keep).nonzero()[:, 0]))
            for i, found in zip(own, self.of_group(prefixes([rows[i] for i in own]), totals[own]), strict=True):
                values[i, : len(found)] = torch.tensor(found[: values.shape[1]], dtype=torch.float64)
        return Credit(torch.where(rollouts.action_mask, values, 0.0).to(scores.values.dtype), keep)

    @abstractmethod
    def of_group(self, paths: Sequence[Sequence[int]], rewards: Tensor) -> list[list[float]]:
        """A value per token of each of a group's rows, from their `prefixes` and rewards."""


@dataclass(frozen=True)
class PrefixValues(ByPrefix):
    """A_t = ((r - mean) + V(up to and with t) - V(before t)) / (std + eps), V the mean reward of rows that begin so (TEMPO).

    arXiv:2509.18314, from its abstract and reviews; ddof 1 and eps are ours. Behind its parting a row gets what GRPO gives, and
    rows with equal tokens end at their mean.
    """

    eps: NonNegative = 1e-6
    zero_below: NonNegative = 1e-6
    """A group of rewards that differ only by rounding gets 0."""

    def of_group(self, paths: Sequence[Sequence[int]], rewards: Tensor) -> list[list[float]]:
        mean, deviation = moments(rewards, ddof=1)
        if not len(rewards) or is_rounding(rewards, deviation, self.zero_below):
            return [[0.0] * len(path) for path in paths]
        totals = list(map(float, rewards))
        worth, _ = worths(paths, totals)
        start, scale = float(mean), float(deviation) + self.eps
        befores = ([start, *(worth[node] for node in path[:-1])] for path in paths)
        return [
            [(reward - start + worth[node] - before) / scale for node, before in zip(path, own, strict=True)]
            for path, own, reward in zip(paths, befores, totals, strict=True)
        ]


@dataclass(frozen=True)
class TreeValues(ByPrefix):
    """A(s) = (2 V(s) - V(parent)) / sqrt(rows below s), V(s) the mean of r - mean of the other rows below s (TreeRL).

    arXiv:2506.11902; a piece s ends where fewer rows go on alike, and V(prompt) = 0. Its code divides V(parent) by the parent's
    root, and puts the piece before in place of a zero difference: not copied.
    """

    def of_group(self, paths: Sequence[Sequence[int]], rewards: Tensor) -> list[list[float]]:
        others = (rewards.sum() - rewards) / max(len(rewards) - 1, 1)
        above = list(map(float, rewards - others if len(rewards) > 1 else rewards * 0))
        worth, counts = worths(paths, above)
        return [self.of_path(path, worth, counts) for path in paths]

    def of_path(self, path: Sequence[int], worth: dict[int, float], counts: dict[int, int]) -> list[float]:
        """The advantages of one row's tokens."""
        found, parent, last = list[float](), 0.0, -1
        for node in path:
            if last >= 0 and counts[node] != counts[last]:
                parent = worth[last]
            found.append((2 * worth[node] - parent) / counts[node] ** 0.5)
            last = node
        return found
