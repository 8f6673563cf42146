"""Episodes that branch: which turns begin once more, against a slow walk through the group, and what shared turns count."""

import math
import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.planners.branches import BranchWhereUnsure, is_begun_again, turn_entropy
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.core.readings import LOGPROBS, OLD_ENTROPY, ROLLOUT_LOGPROBS
from mmrl.core.types import Prompt, Request, Rollouts, Sample
from tests.evidence.turn_tasks import ROOMS
from tests.support.episodes import OBSERVED, Said, episode, rollouts_of, scores_of

PLANNER = BranchWhereUnsure(weight=1.0, first_tokens=2, vocabulary=16)
SIZE = 8


def number(*words: object) -> float:
    return random.Random(repr(words)).random()


@dataclass
class Play:
    """Samples whose length and entropies are those of their number, but for the turns that they share."""

    planner: BranchWhereUnsure
    groups: int = 3
    asked: list[Request] = field(default_factory=list[Request])
    samples: dict[int, list[Sample]] = field(default_factory=dict[int, list[Sample]])
    unsure: dict[int, list[list[float]]] = field(default_factory=dict[int, list[list[float]]])

    def run(self) -> int:
        """All rounds of a step; returns how many there were."""
        prompts = [Prompt(str(i)) for i in range(self.groups)]
        self.take(self.planner.first(prompts, SIZE, 0, 5))
        for rounds in range(self.planner.max_rounds):
            found = self.rollouts()
            self.planner.inspect(found)
            totals = scores_of(found)
            revision = self.planner.revise(found.groups, totals, found.group_ids, self.groups, rounds)
            assert not revision.drop_groups and not revision.drop_samples
            if not revision.requests:
                return rounds + 1
            self.take(revision.requests)
        return self.planner.max_rounds

    def take(self, requests: Any) -> None:
        for request in requests:
            for i in range(request.count):
                self.asked.append(request)
                own = self.samples.setdefault(request.group_id, [])
                begun = () if request.given is None else request.given.turns
                kept = len(begun)
                more = turns_of(request.group_id, len(own), kept)
                said = [Said(turn.span[1] - turn.span[0], text=turn.text) for turn in begun]
                own.append(episode(*said, *(Said(3, text=f"{len(own)}/{k}/{i}") for k in range(kept, more))))
                row = self.unsure.setdefault(request.group_id, [])
                row.append([*self.shared(request, kept), *(number(request.group_id, len(own) - 1, k) for k in range(kept, more))])

    def shared(self, request: Request, kept: int) -> list[float]:
        """The entropies of the turns that a sample shares: of the one that began with the same text."""
        if not kept:
            return []
        last = request.given.turns[-1].text  # type: ignore[union-attr]
        texts = [[turn.text for turn in one.turns] for one in self.samples[request.group_id][:-1]]
        return next(row[:kept] for row, mine in zip(self.unsure[request.group_id], texts, strict=True) if last in mine[:kept])

    def rollouts(self) -> Rollouts:
        """Every first token of a turn is as unsure as its turn, every other token is sure."""
        found = rollouts_of(*self.samples.values())
        entropy = torch.zeros(found.action_mask.shape, dtype=torch.float64)
        for row, (group, sample) in enumerate(found.samples()):
            for turn, unsure in zip(sample.turns, self.unsure[group.id][int(found.sample_ids[row])], strict=True):
                entropy[row, turn.span[0]] = unsure * math.log(16)
        noted = torch.arange(found.action_mask.numel()).view(found.action_mask.shape) * -1.0
        return replace(found, recorded={OLD_ENTROPY: entropy, ROLLOUT_LOGPROBS: noted})


def turns_of(group: int, sample: int, kept: int) -> int:
    return max(kept + 1, 1 + int(number("turns", group, sample) * 5))


def slow(planner: BranchWhereUnsure, group: int, seed: int) -> list[tuple[int, int]]:
    """Source and turn of every branch of a group, in order: all samples go forward one turn at a time."""
    whole = math.ceil(planner.whole * SIZE)
    lengths = [turns_of(group, i, 0) for i in range(whole)]
    unsure = [[number(group, i, k) for k in range(length)] for i, length in enumerate(lengths)]
    found: list[tuple[int, int]] = []
    for turn in range(1, 99):
        for i in range(len(lengths)):
            for k in range(planner.each):
                if turn < lengths[i] and len(lengths) < SIZE:
                    rise = unsure[i][turn] - unsure[i][0]
                    if min(1, max(0, random.Random(f"{seed}/{i}/{turn}/{k}").random() - planner.weight * rise)) <= planner.chance:
                        lengths.append(turns_of(group, len(lengths), turn))
                        more = [number(group, len(lengths) - 1, k) for k in range(turn, lengths[-1])]
                        unsure.append([*unsure[i][:turn], *more])
                        found.append((i, turn))
    return found


@pytest.mark.parametrize("changes", [{}, {"each": 3}, {"whole": 0.25, "weight": 0.0}, {"chance": 0.1, "weight": 4.0}])
def test_episodes_branch_as_in_a_slow_walk(changes: dict[str, Any]):
    planner = replace(PLANNER, max_rounds=99, **changes)
    play = Play(planner)
    play.run()
    made = 0
    for group, samples in play.samples.items():
        first = next(one for one in play.asked if one.group_id == group)
        own = [one for one in play.asked if one.group_id == group and one.given is not None]
        expected = slow(planner, group, first.seed)
        assert len(samples) == SIZE and len(own) == len(expected)
        made += len(own)
        for request, (source, turn) in zip(own, expected, strict=True):
            begun = request.given
            assert begun is not None and [piece.who for piece in begun.pieces[:2]] == ["policy", "environment"]
            assert begun.turns == samples[source].turns[:turn]
            start = samples[source].turns[turn].span[0]
            assert start == begun.turns[-1].span[1] + OBSERVED == len(begun.tokens) == len(begun.logprobs)
        assert len({(one.seed, i) for one in play.asked if one.group_id == group for i in range(one.count)}) == SIZE
    assert made > 3


def test_a_branch_of_a_branch_has_the_first_ones_world():
    play = Play(replace(PLANNER, chance=1.0, whole=0.1, max_rounds=99), groups=6)
    play.run()
    firsts = {one.group_id: one.seed for one in reversed(play.asked)}
    branches = [one.given for one in play.asked if one.given is not None]
    assert {one.world for one in branches} <= {(seed, 0) for seed in firsts.values()}
    assert max(len(one.turns) for one in branches) > 1


def test_the_last_round_fills_the_groups():
    few = Play(replace(PLANNER, max_rounds=2, chance=0.3))
    assert few.run() == 2 and {len(samples) for samples in few.samples.values()} == {SIZE}
    later = [one.given is not None for one in few.asked[3 * SIZE // 2 :]]
    assert any(later) and not all(later)
    none = Play(replace(PLANNER, chance=0.0, weight=0.0))
    assert none.run() == 2 and not any(one.given is not None for one in none.asked)


def test_a_broken_episode_does_not_branch():
    play = Play(replace(PLANNER, chance=1.0))
    play.take(play.planner.first([Prompt("0")], SIZE, 0, 5))
    play.samples[0] = [replace(one, ended="error") for one in play.samples[0]]
    found = play.rollouts()
    play.planner.inspect(found)
    [request] = play.planner.revise(found.groups, scores_of(found), found.group_ids, 1, 0).requests
    assert request.written is None and request.count == SIZE // 2


def test_the_rule_of_the_paper():
    assert turn_entropy([1.0, 2.0], 1000) == pytest.approx(3 / math.log(1000))
    assert is_begun_again(0.5, 0.0, 0.0) and not is_begun_again(0.51, 0.0, 0.0)
    assert is_begun_again(0.51, 0.0, 0.1) and not is_begun_again(0.5, 0.1, 0.0)


def test_shared_turns_train_on_the_advantages_of_all_that_share_them():
    """The soft attribution: what a token weighs in the loss is the sum of the advantages of the episodes that have it."""
    algorithm = replace(PRESETS["arpo"], planner=replace(PLANNER, chance=1.0), group_size=SIZE)
    policy = ROOMS.policy(algorithm, 0)
    collected = ROOMS.trainer(algorithm, policy, Shuffled(ROOMS.prompts(0), 0), 0).collect()
    rows = collected.rollouts
    credit, kept = GroupNorm()(collected.scores, rows).values, rows.action_mask
    logprobs = policy.read(rows.trace, [LOGPROBS], kept)[LOGPROBS]
    torch.testing.assert_close(logprobs.detach()[kept], rows.recorded[ROLLOUT_LOGPROBS][kept])
    weight, place = dict[Any, float](), dict[Any, tuple[int, int]]()
    for i, (group, sample) in enumerate(rows.samples()):
        for t in kept[i].nonzero()[:, 0].tolist():
            path = (group.id, (sample.token_ids or ())[: t + 1])
            weight[path] = weight.get(path, 0.0) + float(credit[i, t])
            place[path] = (i, t)
    assert len(weight) < 0.8 * int(kept.sum()), "turns are shared"
    by_rows = torch.autograd.grad((credit * logprobs)[kept].sum(), list(policy.parameters()), retain_graph=True)
    once = sum(weight[path] * logprobs[place[path]] for path in weight)
    assert isinstance(once, torch.Tensor)
    for one, other in zip(by_rows, torch.autograd.grad(once, list(policy.parameters())), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)
