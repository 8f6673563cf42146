"""Planners that sample continuations of the beginnings of answers: to value these, or to train on the tree."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isnan

from mmrl.algorithms.planners.base import Twice
from mmrl.algorithms.turns import SURE, cutpoints, probabilities_of
from mmrl.core.types import Group, Prefix, Prompt, Request, Revision, Rollouts
from mmrl.runtime.ranges import Count, Share

Values = dict[tuple[int, int], tuple[tuple[int, float], ...]]


@dataclass(frozen=True)
class CutAnswers(Twice, ABC):
    """The base of planners that sample once more from cuts of the first round's answers."""

    cuts: dict[tuple[int, int], list[int]] = field(
        default_factory=dict[tuple[int, int], list[int]], init=False, compare=False, repr=False
    )
    """Group and sample -> how many tokens stay in front of each cut, of this step."""

    @abstractmethod
    def cuts_of(self, row: Sequence[float]) -> list[int]:
        """How many tokens stay in front of each cut of an answer, whose tokens had these probabilities."""

    def first(self, prompts: Sequence[Prompt], group_size: int, first_id: int, seed: int) -> Sequence[Request]:
        self.cuts.clear()
        return super().first(prompts, group_size, first_id, seed)

    def inspect(self, rollouts: Rollouts) -> None:
        """Cut the answers of the first round; ValueError if its samples have no tokens."""
        if self.cuts:
            return
        names = zip(map(int, rollouts.group_ids), map(int, rollouts.sample_ids), strict=True)
        for name, row in zip(names, probabilities_of(rollouts), strict=True):
            self.cuts[name] = self.cuts_of(row)


@dataclass(frozen=True)
class SegmentValues(CutAnswers):
    """V(cut) = mean reward of `continuations` that go on from a cut; a cut precedes every `interval`-th unsure action (SPO).

    The chain form of arXiv:2505.23564. Continuations are scored, never trained, and cost `continuations` samples per cut. A cut
    is left out where none of them has a reward. Take the advantage SegmentGains with it. Not implemented: the tree form.
    """

    interval: Count = 5
    """Unsure actions from one cut to the next."""
    continuations: Count = 4
    """Samples that go on from each cut."""
    sure: Share = SURE
    """The probability from which an action no longer counts as a decision."""

    def cuts_of(self, row: Sequence[float]) -> list[int]:
        return [cut + 1 for cut in cutpoints(row, self.interval, self.sure)]

    def look(self, groups: Sequence[Group], rewards: dict[int, list[float]], round_index: int) -> Revision:
        """Sample continuations from all cuts, then turn them into values and drop them."""
        if round_index == 0:
            return Revision([request for group in groups for request in self.go_on(group)])
        values = {key: one for group in groups for key, one in self.values_of(group, rewards[group.id]).items()}
        own = {group.id: self.requests[group.id].count for group in groups}
        dropped = frozenset((group.id, i) for group in groups for i in range(own[group.id], len(group.samples)))
        return Revision(drop_samples=dropped, values=values)

    def places(self, group: Group) -> list[tuple[int, int]]:
        """Sample and number of tokens of a group's cuts, in the order in which they are asked for."""
        own = range(self.requests[group.id].count)
        return [(i, kept) for i in own for kept in self.cuts.get((group.id, i), [])]

    def go_on(self, group: Group) -> list[Request]:
        """Requests for the continuations from all cuts of a group."""
        beginnings = [(group.samples[i].token_ids or ())[:kept] for i, kept in self.places(group)]
        return [self.again(group.id, self.continuations, k, written=Prefix(tokens)) for k, tokens in enumerate(beginnings, 1)]

    def values_of(self, group: Group, rewards: Sequence[float]) -> Values:
        """The values of a group's cuts, from the rewards of its samples and of the continuations behind them."""
        found: Values = {}
        behind = iter(rewards[self.requests[group.id].count :])
        for i, kept in self.places(group):
            known = [reward for reward in islice(behind, self.continuations) if not isnan(reward)]
            if known:
                found[group.id, i] = (*found.get((group.id, i), ()), (kept, sum(known) / len(known)))
        return found


@dataclass(frozen=True)
class TreeBranches(CutAnswers):
    """`siblings` continuations begin before each of the `places` least likely tokens of every answer, and train (TreeRL).

    arXiv:2506.11902; one round of branching. A group of G prompts' answers becomes G (1 + places x siblings) samples. A shared
    beginning trains once, in the answer that it was written in. Take the advantage TreeValues with it.
    """

    places: Count = 2
    """Tokens of an answer before which others begin."""
    siblings: Count = 2
    """Samples that begin at each of them."""

    def cuts_of(self, row: Sequence[float]) -> list[int]:
        return sorted(sorted(range(len(row)), key=row.__getitem__)[: self.places])

    def look(self, groups: Sequence[Group], rewards: dict[int, list[float]], round_index: int) -> Revision:
        """Branch once, from all answers."""
        return Revision() if round_index else Revision([request for group in groups for request in self.branch(group)])

    def branch(self, group: Group) -> list[Request]:
        """Requests for the branches of a group's answers."""
        own = enumerate(group.samples)
        begun = [(one.token_ids or ())[:kept] for i, one in own for kept in self.cuts.get((group.id, i), ())]
        return [self.again(group.id, self.siblings, k, written=Prefix(tokens)) for k, tokens in enumerate(begun, 1)]
