"""A planner that lets episodes branch where an answer of the world made the policy unsure."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from mmrl.algorithms.planners.base import Remembering
from mmrl.core.readings import OLD_ENTROPY, ROLLOUT_LOGPROBS
from mmrl.core.types import Branch, Group, Prompt, Request, Revision, Rollouts
from mmrl.runtime.ranges import Count, Large, NonNegative, Share


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
