"""Samples that begin alike or share actions: what a beginning is worth, and a tree's nodes beside others of their depth."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from mmrl.algorithms.statistics import Compared, EpsMode, is_rounding, moments, standardize, totals_and_keep
from mmrl.algorithms.turns import states
from mmrl.core.hooks import PartHooks
from mmrl.core.readings import ORIGIN, ROLLOUT_LOGPROBS
from mmrl.core.types import Credit, Reading, Rollouts, Sample, Scores
from mmrl.runtime.ranges import NonNegative, Positive, PositiveShare, Range, With
from mmrl.runtime.tensors import within


@dataclass(frozen=True)
class TreeNorm(PartHooks):
    """A = (node - mean of the depth) / deviation, a node being worth the mean of its leaves (BranchGRPO, arXiv:2509.06040).

    Nodes of one depth are compared within their group, and only those reached by an action that trains: with TempFlow's branches
    (arXiv:2508.04324) these are the branches of one step, and without shared actions it is GroupNorm. The row that owns a
    shared action must not be dropped: a leaf whose reward failed takes the edges it owns with it.
    """

    compared: Literal["depth", "siblings"] = "depth"
    """depth: with all nodes of the same depth in the group, across trees or trunks. siblings: with the children of the same node,
    so that a step gets no credit for a better start (TempFlow's seed group)."""
    ddof: Annotated[int, Range(0, 1)] = 1
    eps: NonNegative = 1e-8
    eps_mode: EpsMode = "add"
    zero_below: NonNegative = 1e-6
    """A depth whose deviation is smaller, in units of its largest worth where that is above 1, gets 0; 0: never."""
    clip: Positive | None = 5.0
    fusion: Literal["mean", "path"] = "mean"
    """path: a node is worth its children weighted by the softmax of their log-probabilities, layer by layer; these are
    means over dimensions, so the weights are all but equal."""
    kept_chains: PositiveShare | None = None
    """After the last split only this share of the leaves trains, chosen by `pruning`; None: all of them."""
    pruning: Annotated[Literal["extremes", "best_per_branch"], With("kept_chains")] = "extremes"
    """extremes: the best and the worst leaves of every group, half of each, an odd one from the worst, and at least two.
    best_per_branch: the best leaves of every branch after the last split, at least one. The code's transitions may be parts of
    chains, ours are whole ones; its first mode keeps the first steps of every chain (Tree.first_half_only)."""
    min_group_size: Annotated[int, Range(2, 2**20)] = 2
    """Fewest samples of a group: a smaller algorithm.group_size is refused."""

    @property
    def reads(self) -> tuple[Reading, ...]:
        """Found among what `rollouts` recorded."""
        return (ORIGIN,) if self.compared == "siblings" else ()

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        """Raises ValueError when `fusion` = path and the sampler's log-probabilities are not at hand."""
        totals, keep = totals_and_keep(scores)
        nodes = node_columns(rollouts)
        worth = self._worth(totals, nodes, keep, rollouts)
        values = torch.zeros_like(worth[:, 1:])
        for t in range(values.shape[1]):
            at = nodes[:, t + 1]
            acting = keep & (sums_by_node((rollouts.action_mask[:, t] & keep).to(totals), at) > 0)
            weights = 1 / sums_by_node(acting.to(totals), at).clamp(min=1)
            rows = torch.stack([worth[:, t + 1], weights], 1)[acting]
            values[acting, t] = within(self._families(rollouts, t)[acting], rows, self._standardize)[:, 0]
        if self.clip is not None:
            values = values.clamp(-self.clip, self.clip)
        values = values.to(scores.values.dtype)
        if self.kept_chains is None:
            return Credit(values, keep)
        actions = self._trainable(totals, keep, nodes)
        return Credit(torch.where(actions, values, 0.0), keep, actions)

    def _families(self, rollouts: Rollouts, t: int) -> Int[Tensor, " n"]:
        """Equal for rows that are compared with each other after their action t."""
        if self.compared == "depth":
            return rollouts.group_ids
        return first_of(torch.stack([rollouts.group_ids, rollouts.recorded[ORIGIN][:, t].long()], dim=1))

    def _worth(self, totals: Tensor, nodes: Tensor, keep: Tensor, rollouts: Rollouts) -> Float[Tensor, "n t1"]:
        if self.fusion == "mean":
            return mean_of_leaves(totals, nodes, keep)
        if ROLLOUT_LOGPROBS not in rollouts.recorded:
            raise ValueError(
                "TreeNorm.fusion is 'path', which weighs children by the sampler's log-probabilities, but none were recorded: "
                "set advantage.fusion = 'mean'"
            )
        return path_weighted(totals, nodes, keep, rollouts.recorded[ROLLOUT_LOGPROBS])

    def _standardize(self, rows: Float[Tensor, "m 2"]) -> Float[Tensor, "m 2"]:
        """Standard scores of rows (worth, 1 / rows of the node), every node counting once."""
        worth, weights = rows.unbind(1)
        small = is_rounding(worth, moments(worth, self.ddof, weights)[1], self.zero_below)
        values = torch.zeros_like(worth) if small else standardize(worth, self.ddof, self.eps, self.eps_mode, weights)
        return torch.stack([values, weights], 1)

    def _trainable(self, totals: Tensor, keep: Tensor, nodes: Tensor) -> Bool[Tensor, "n t"]:
        """False at the actions after the last split of the leaves that pruning leaves out."""
        actions = torch.ones_like(nodes[:, 1:], dtype=torch.bool)
        sizes = torch.stack([sums_by_node(keep.to(totals), nodes[:, column]) for column in range(nodes.shape[1])], 1)
        for first in (nodes[:, 0] == torch.arange(len(nodes))).nonzero()[:, 0]:
            rows = ((nodes[:, 0] == first) & keep).nonzero()[:, 0]
            after = int((sizes[rows].amax(0) > 1).sum()) if len(rows) else 0
            branches = nodes[rows, max(0, after - 1)] if self.pruning == "best_per_branch" else torch.zeros_like(rows)
            for branch in set(map(int, branches)):
                actions[self._pruned(rows[branches == branch], totals), after:] = False
        return actions

    def _pruned(self, rows: Int[Tensor, " m"], totals: Tensor) -> Int[Tensor, " k"]:
        """The leaves among `rows` that do not train; of equal ones the first counts as the better."""
        order = rows[totals[rows].argsort(descending=True, stable=True)]
        kept = int(len(rows) * (self.kept_chains or 0.0))
        if self.pruning == "best_per_branch":
            return order[max(1, kept) :]
        kept = min(len(rows), max(2, kept))
        best = kept // 2
        return order[best : len(rows) - (kept - best)]


def node_columns(rollouts: Rollouts) -> Int[Tensor, "n t1"]:
    """The node each row is at before its first action and after each one, named by the first row at that node."""
    columns = [first_of(rollouts.group_ids[:, None])]
    for t in range(rollouts.action_mask.shape[1]):
        if rollouts.node_ids is None:
            columns.append(torch.arange(len(rollouts)))
        else:
            columns.append(first_of(torch.stack([rollouts.group_ids, rollouts.node_ids[:, t]], dim=1)))
    return torch.stack(columns, dim=1)


def first_of(names: Int[Tensor, "n k"]) -> Int[Tensor, " n"]:
    """For every row, the first row with the same name."""
    found, place = cast(tuple[Tensor, Tensor], cast(Any, names).unique(dim=0, return_inverse=True))
    rows = torch.arange(len(names))
    return rows.new_zeros(len(found)).scatter_reduce(0, place, rows, "amin", include_self=False)[place]


def mean_of_leaves(totals: Float[Tensor, " n"], nodes: Int[Tensor, "n t1"], keep: Bool[Tensor, " n"]) -> Float[Tensor, "n t1"]:
    """The mean total of the kept rows through each node."""
    columns = [mean_by_node(totals, keep.to(totals), nodes[:, column]) for column in range(nodes.shape[1])]
    return torch.stack(columns, dim=1)


def path_weighted(
    totals: Float[Tensor, " n"], nodes: Int[Tensor, "n t1"], keep: Bool[Tensor, " n"], logprobs: Float[Tensor, "n t"]
) -> Float[Tensor, "n t1"]:
    """A node's worth is its children's, weighted by the softmax of the log-probabilities of the edges to them."""
    last = nodes.shape[1] - 1
    worth = mean_by_node(totals, keep.to(totals), nodes[:, last])
    columns = [worth]
    for column in range(last - 1, -1, -1):
        below = nodes[:, column + 1]
        leaves = sums_by_node(keep.to(totals), below).clamp(min=1)
        edges = logprobs[:, column].to(totals)
        weights = (edges - edges.max()).exp() * keep / leaves
        worth = mean_by_node(worth, weights, nodes[:, column])
        columns.append(worth)
    return torch.stack(columns[::-1], dim=1)


def mean_by_node(x: Float[Tensor, " n"], weights: Float[Tensor, " n"], nodes: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The weighted mean of x over the rows of each node, at every row of it; 0 where all weights are 0."""
    total = sums_by_node(weights, nodes)
    summed = sums_by_node(torch.where(weights > 0, x * weights, 0.0), nodes)
    return torch.where(total > 0, summed / total.clamp(min=torch.finfo(x.dtype).tiny), 0.0)


def sums_by_node(x: Float[Tensor, " n"], nodes: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The sum of x over the rows of each node, at every row of it."""
    return x.new_zeros(len(x)).index_add(0, nodes, x)[nodes]


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
class ByPrefix(Compared, ABC):
    """The base of advantages that look at shared beginnings, of plain samples and of episodes that branch."""

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
