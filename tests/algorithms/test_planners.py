"""Planners: informative groups, branches, wordings, temperatures, against slow walks and by hand, and what is refused."""

import math
import random
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.planners.base import DynamicSampling, Once
from mmrl.algorithms.planners.begun import Wordings
from mmrl.algorithms.planners.extra_samples import Heat
from mmrl.algorithms.planners.segments import BranchWhereUnsure
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.algorithms.shaping.reference import Agreement, agreement
from mmrl.core.readings import LOGPROBS, OLD_ENTROPY, ROLLOUT_LOGPROBS
from mmrl.core.types import Group, Prompt, Request, Revision, Rollouts, Sample, Scores
from tests.evidence.turn_tasks import ROOMS
from tests.support import fakes
from tests.support.episodes import OBSERVED, Said, episode, rollouts_of, scores_of
from tests.support.refused import refused
from tests.support.rows import rollouts, scores
from tests.support.trainers import make_trainer

PROMPTS = [Prompt(name) for name in "abcd"]


def groups_of(
    rewards: dict[int, list[float]], roles: dict[int, list[str]] | None = None
) -> tuple[list[Group], Scores, torch.Tensor]:
    """Groups by id with the total of every sample; rows are in an order that mixes the groups."""
    groups = [
        Group(i, Prompt(str(i)), tuple(Sample(role=role) for role in (roles or {}).get(i, ["policy"] * len(values))))  # type: ignore[arg-type]
        for i, values in rewards.items()
    ]
    rows = [(i, k) for k in range(max(map(len, rewards.values()))) for i in reversed(rewards) if k < len(rewards[i])]
    values = torch.tensor([[float(rewards[i][k])] for i, k in rows])
    return groups, scores(values), torch.tensor([i for i, _ in rows])


def revise(planner: DynamicSampling, rewards: dict[int, list[float]], wanted: int, round_index: int = 0, **options) -> Revision:
    return planner.revise(*groups_of(rewards, **options), wanted=wanted, round_index=round_index)


@pytest.mark.parametrize("planner", [Once(), DynamicSampling()])
def test_first_asks_for_one_group_per_prompt(planner):
    requests = planner.first(PROMPTS, group_size=3, first_id=5, seed=11)
    assert [(r.prompt.id, r.count, r.group_id) for r in requests] == [("a", 3, 5), ("b", 3, 6), ("c", 3, 7), ("d", 3, 8)]
    assert [r.seed for r in planner.first(PROMPTS[2:], group_size=8, first_id=7, seed=11)] == [r.seed for r in requests[2:]]
    seeds = {r.seed for seed in (11, 12) for first in (0, 4) for r in planner.first(PROMPTS, 3, first, seed)}
    assert len(seeds) == 16
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_once_is_content():
    assert Once().revise(*groups_of({0: [1, 1]}), wanted=4, round_index=0) == Revision()
    assert Once().max_rounds == 1


def test_dead_groups_are_dropped_and_replaced():
    revision = revise(DynamicSampling(), {0: [1, 0], 1: [1, 1], 2: [0, 0], 3: [0, 1]}, wanted=4)
    assert revision == Revision(fresh_prompts=2, drop_groups=frozenset({1, 2}))
    assert revise(DynamicSampling(oversample=1.6), {0: [1, 0], 1: [1, 1]}, wanted=3).fresh_prompts == 4


def test_enough_is_enough_and_surplus_goes():
    revision = revise(DynamicSampling(), {0: [1, 0], 1: [1, 1], 4: [0, 1], 6: [0.5, 0]}, wanted=2, round_index=1)
    assert revision == Revision(drop_groups=frozenset({1, 6}))


def test_at_the_cap_some_will_do():
    assert revise(DynamicSampling(max_rounds=3), {0: [1, 0], 1: [1, 1]}, 2, round_index=1).fresh_prompts == 1
    assert revise(DynamicSampling(max_rounds=3), {0: [1, 0], 1: [1, 1]}, 2, round_index=2) == Revision(drop_groups=frozenset({1}))


def test_at_the_cap_none_is_an_error():
    with pytest.raises(ValueError, match=r"after 3 rounds .* no group is informative: in each of the 2 groups.*mmrl reward test"):
        revise(DynamicSampling(max_rounds=3), {0: [0, 0], 1: [1, 1]}, wanted=2, round_index=2)


def test_failed_rows_and_samples_from_elsewhere_inform_nobody():
    nan = torch.nan
    revision = revise(
        DynamicSampling(),
        {0: [1, nan], 1: [nan, nan], 2: [1, 0.0, nan], 3: [1, 1, 0]},
        wanted=4,
        roles={3: ["policy", "policy", "injected"]},
    )
    assert revision.drop_groups == {0, 1, 3}


def test_one_reward_may_decide():
    groups, _, ids = groups_of({0: [0, 0], 1: [0, 0]})
    values = torch.tensor([[1.0, 0.1], [0.0, 0.1], [1.0, 0.2], [1.0, 0.1]])  # rows: groups 1, 0, 1, 0
    table = scores(values)
    by_format = DynamicSampling(reward="reward_1").revise(groups, table, ids, 2, 0)
    by_accuracy = DynamicSampling(reward="reward_0").revise(groups, table, ids, 2, 0)
    assert (by_format.drop_groups, by_accuracy.drop_groups) == ({0}, {1})
    with pytest.raises(ValueError, match=r"DynamicSampling.reward is 'acc'; the run has the rewards \['reward_0', 'reward_1'\]"):
        DynamicSampling(reward="acc").revise(groups, table, ids, 2, 0)


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


PROMPT = Prompt("p", "Which colour?", columns={"paraphrases": ["What hue is it?", "Name its colour."]})


def test_the_wordings_share_a_group_and_train_as_they_are_asked():
    asked = Wordings().first([PROMPT], 7, 4, 0)
    assert [one.count for one in asked] == [3, 2, 2] and {one.group_id for one in asked} == {4}
    assert [one.shown_prompt.text for one in asked] == ["Which colour?", "What hue is it?", "Name its colour."]
    assert [one.shown.trained for one in asked] == [False, True, True] and len({one.seed for one in asked}) == 3


def test_a_sample_is_compared_with_those_of_the_other_wordings_alone():
    """Three answer the first wording, two each of the others, as the planner asks; one row was dropped."""
    texts = ["a red car", "a red car", "blue", "a red bus", "blue", "blue", "a red car"]
    found = rollouts(torch.ones(7, 1))
    group = Group(0, PROMPT, tuple(Sample(text) for text in texts))
    found = replace(found, groups=(group,))
    kept = torch.tensor([0, 2, 3, 6])
    made = scores(torch.zeros(7, 1, dtype=torch.float64))
    expected = [value for row in agreement([texts[:3], texts[3:5], texts[5:]]) for value in row]
    shaped = Agreement(weight=0.5)(made.take(kept), found.take(kept), {})
    assert shaped.values[:, -1].tolist() == pytest.approx([expected[i] for i in kept.tolist()])
    assert shaped.total().tolist() == pytest.approx([0.5 * expected[i] for i in kept.tolist()])
    assert expected[2] == pytest.approx(2 / 4), "blue: one of two, and one of two"


def test_a_step_is_sampled_and_trained():
    data = [replace(one, columns={**one.columns, "paraphrases": f"{one.text} Please."}) for one in fakes.prompts()]
    algorithm = replace(PRESETS["grpo"], planner=Wordings(), shaping=(Agreement(),), group_size=4)
    trainer = make_trainer(algorithm, sampler=Shuffled(data, seed=0), prompts_per_step=4)
    metrics = trainer.step()
    assert 0 < metrics["reward/agreement"] < 1 and metrics["policy/grad_norm"] > 0


def test_sets_of_one_and_groups_that_are_too_small_are_refused():
    with pytest.raises(ValueError, match="'q' has no other wording in the column 'paraphrases', and a set of one agrees"):
        Wordings().check_prompts([PROMPT, Prompt("q", "Where?")])
    refused(r"'p' has 3 wordings, and algorithm.group_size is 2: set it to 3 or more", Wordings().first, [PROMPT], 2, 0, 0)
    refused("at least two paraphrases", Agreement().of_group, Group(0, Prompt("q"), (Sample("a"), Sample("b"))))


def test_tokens_above_the_pivot_are_drawn_hotter_and_those_below_colder():
    heat = Heat(pivot=0.0, deviation=2.0, above=1.0, below=0.5, amount=0.1)
    # log entropies 1, -1, 9 and -9: distances 0.5, -0.5, 4.5 and -4.5 deviations, u = 0.5, -0.25, 1 and -1
    entropy = torch.tensor([1.0, -1.0, 9.0, -9.0], dtype=torch.float64).exp()
    torch.testing.assert_close(heat.factor(entropy), torch.tensor([1.05, 0.975, 1.1, 0.9], dtype=torch.float64))
    assert torch.equal(Heat().factor(entropy), torch.ones(4, dtype=torch.float64)), "nothing was measured"


def test_a_distribution_is_drawn_at_its_own_temperature():
    logprobs = torch.tensor([[2.0, 0.0, -1.0], [9.0, 0.0, 0.0], [0.0, -math.inf, -math.inf]]).log_softmax(-1)
    heat = Heat(pivot=-1.0, deviation=1.0, above=10.0, below=10.0, amount=0.5)
    drawn = heat(logprobs)
    torch.testing.assert_close(drawn[0], (logprobs[0] / 1.5).log_softmax(-1))
    torch.testing.assert_close(drawn[1], (logprobs[1] / 0.5).log_softmax(-1))
    assert drawn[2].exp().tolist() == [1.0, 0.0, 0.0], "what is certain or banned stays so"
