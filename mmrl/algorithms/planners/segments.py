"""Planners that go on from the beginnings of answers or episodes: to value these, or to train on the tree."""

import math
import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import isnan

from mmrl.algorithms.planners.base import Remembering, Twice
from mmrl.algorithms.turns import SURE, cutpoints, probabilities_of
from mmrl.core.readings import OLD_ENTROPY, ROLLOUT_LOGPROBS
from mmrl.core.types import Branch, Group, Prefix, Prompt, Request, Revision, Rollouts
from mmrl.runtime.ranges import Count, Large, NonNegative, Share

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


def is_begun_again(draw: float, first_entropy: float, entropy: float, weight: float = 0.2, chance: float = 0.5) -> bool:
    """clamp(draw - weight (entropy - first_entropy), 0, 1) <= chance: does another episode begin at a turn (ARPO)?

    arXiv:2507.19849. `draw` is uniform in [0, 1); entropies are those of `turn_entropy`, of the first turn and of this one.
    """
    return min(1.0, max(0.0, draw - weight * (entropy - first_entropy))) <= chance


def turn_entropy(entropies: Sequence[float], vocabulary: int) -> float:
    """Sum of the entropies of a turn's first tokens, in nats, divided by ln(vocabulary): a sum, not a mean (ARPO's code)."""
    return sum(entropies) / math.log(vocabulary)


@dataclass
class Growth:
    """The episodes of a step so far; names are those of group and sample."""

    size: int = 0
    """Samples that a group is to have."""
    turn: int = 1
    """The next one at which episodes may branch."""
    worlds: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict[tuple[int, int], tuple[int, int]])
    """Of samples that branched: as `Branch.world`."""
    entropies: dict[tuple[int, int], list[float]] = field(default_factory=dict[tuple[int, int], list[float]])
    """Of each turn."""
    logprobs: dict[tuple[int, int], tuple[float, ...]] = field(default_factory=dict[tuple[int, int], tuple[float, ...]])


@dataclass(frozen=True)
class BranchWhereUnsure(Remembering):
    """Part of a group are whole episodes; others begin at turns of these at which the policy is unsure (ARPO).

    arXiv:2507.19849. A turn k > 0 is begun once more where u - weight (H_k - H_0) <= chance, for u uniform in [0, 1): turn by
    turn, in the order of samples, until the group is full; what then is missing are whole episodes again. Earlier turns are
    shared, and train in every episode that has them. Entropies are of the whole distribution; its code takes the ten likeliest
    tokens, and compares the turn in front of the world's answer.
    """

    branches = True
    inspects = (OLD_ENTROPY,)
    max_rounds: Count = 8
    """Most rounds of sampling in one step; a turn at which episodes branch takes one."""
    whole: Share = 0.5
    """The share of a group's samples that are drawn before any branch."""
    each: Count = 1
    """Most branches of an episode at one turn."""
    weight: NonNegative = 0.2
    """How much a rise of the entropy counts."""
    chance: Share = 0.5
    """How likely a turn is to branch whose entropy is the first one's."""
    first_tokens: Count = 20
    """Tokens of a turn whose entropies count."""
    vocabulary: Large = 151_665
    """Tokens of the model, by whose logarithm entropies are divided; those of Qwen2.5."""
    growth: Growth = field(default_factory=Growth, init=False, compare=False, repr=False)
    """Of this step."""

    def first(self, prompts: Sequence[Prompt], group_size: int, first_id: int, seed: int) -> Sequence[Request]:
        vars(self.growth).update(vars(Growth(group_size)))
        return super().first(prompts, max(1, math.ceil(self.whole * group_size)), first_id, seed)

    def inspect(self, rollouts: Rollouts) -> None:
        """Note what was sampled, and how unsure the policy was in the first tokens of every turn."""
        noted, unsure = rollouts.recorded[ROLLOUT_LOGPROBS], rollouts.recorded[OLD_ENTROPY]
        for row, (group, sample) in enumerate(rollouts.samples()):
            name, starts = (group.id, int(rollouts.sample_ids[row])), [turn.span for turn in sample.turns]
            spans = [(start, min(stop, start + self.first_tokens)) for start, stop in starts]
            self.growth.entropies[name] = [turn_entropy(list(map(float, unsure[row, a:b])), self.vocabulary) for a, b in spans]
            self.growth.logprobs[name] = tuple(map(float, noted[row]))

    def look(self, groups: Sequence[Group], rewards: dict[int, list[float]], round_index: int) -> Revision:
        """Branch at the next turn where any episode does; where none does any more, or in the last round, fill the groups."""
        most, found = max((len(one.turns) for group in groups for one in group.samples), default=0), list[Request]()
        while not found and self.growth.turn < most:
            found = [request for group in groups for request in self.branches_at(group, self.growth.turn)]
            self.growth.turn += 1
        if not found or round_index + 2 >= self.max_rounds:
            begun = Counter(request.group_id for request in found)
            drawn = {group.id: len(group.samples) + begun[group.id] for group in groups}
            found += [self.again(i, self.growth.size - n, n) for i, n in drawn.items() if n < self.growth.size]
        return Revision(found)

    def branches_at(self, group: Group, turn: int) -> list[Request]:
        """Requests for what branches at this turn of a group's episodes, as far as there is room."""
        found, seed = list[Request](), self.requests[group.id].seed
        for i, sample in enumerate(group.samples):
            if len(sample.turns) <= turn or sample.ended == "error":
                continue
            entropies = self.growth.entropies[group.id, i]
            for k in range(self.each):
                number, draw = len(group.samples) + len(found), random.Random(f"{seed}/{i}/{turn}/{k}").random()
                if number < self.growth.size and is_begun_again(draw, entropies[0], entropies[turn], self.weight, self.chance):
                    found.append(self.branch(group, i, turn, number))
        return found

    def branch(self, group: Group, i: int, turn: int, number: int) -> Request:
        """The request for sample `number`, which begins where sample i began the turn."""
        sample, name = group.samples[i], (group.id, i)
        start = sample.turns[turn].span[0]
        world = self.growth.worlds.get(name, (self.requests[group.id].seed, i))
        self.growth.worlds[group.id, number] = world
        begun = Branch(sample.turns[:turn], (sample.token_ids or ())[:start], self.growth.logprobs[name][:start], world)
        return self.again(group.id, 1, number, written=begun)
