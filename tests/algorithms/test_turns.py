"""Credit by turn: against slow loops, and against the advantage of GRPO where samples have one turn."""

import random
from statistics import mean, stdev
from typing import Any

import pytest
import torch

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.advantages.segments import HGPO, GiGPO, TurnReturns
from mmrl.algorithms.shaping.thinking import SeldomTools, WhereToolsHelp
from mmrl.algorithms.turns import turn_numbers
from mmrl.algorithms.weights.aggregate import SequenceMean, TurnMean
from mmrl.core.types import Batch, Rollouts, Sample, Scores
from tests.support.episodes import Said, episode, per_turn, rollouts_of, scores_of
from tests.support.rows import counts_of, make_batch, rollouts, scores

PER_TURN = GiGPO(deviation=True, over="turns")
UI_S1 = GiGPO(gamma=0.5, over="turns", alike="number", cut="wrong")
PARTS = [TurnReturns(gamma=0.5), GiGPO(), GiGPO(deviation=True, weight=0.3), UI_S1, HGPO(), HGPO(history=1, base=True)]


def drawn(seed: int = 0, groups: int = 3, most: int = 4) -> Rollouts:
    """Episodes of up to `most` turns through three states, most of which give something."""
    draw = random.Random(seed)

    def one() -> Sample:
        rewards = [None, 0.0, 0.5, 1.0]
        turns = [
            Said(draw.randint(1, 3), draw.choice(rewards), draw.choice("xyz"), wrong=draw.random() < 0.2) for _ in range(most)
        ]
        return episode(*turns[: draw.randint(1, most)])

    return rollouts_of(*([one() for _ in range(5)] for _ in range(groups)))


def totals_of(found: Rollouts) -> list[float]:
    return [round(random.Random(i).random(), 3) for i in range(len(found))]


def slow_rewards(sample: Sample, total: float) -> list[float]:
    """What the world said of each turn; what else the sample has comes at its end."""
    rewards = [(turn.observation.reward or 0.0) if turn.observation else 0.0 for turn in sample.turns]
    rewards[-1] += total - sum(rewards)
    return rewards


def slow_returns(rewards: list[float], gamma: float) -> list[float]:
    return [sum(gamma ** (k - t) * r for k, r in enumerate(rewards) if k >= t) for t in range(len(rewards))]


def cut_returns(sample: Sample, rewards: list[float], gamma: float, fact: str) -> list[float]:
    """Each adds up what comes up to the first wrong turn, which counts for itself alone."""
    wrong = [bool(turn.observation and turn.observation.facts.get(fact)) for turn in sample.turns]
    ends = [next((k for k in range(t + 1, len(rewards)) if wrong[k]), len(rewards)) for t in range(len(rewards))]
    ends = [t + 1 if wrong[t] else end for t, end in enumerate(ends)]
    return [sum(gamma ** (k - t) * rewards[k] for k in range(t, end)) for t, end in enumerate(ends)]


def slow_states(sample: Sample) -> list[str]:
    return ["prompt", *(turn.observation.key for turn in sample.turns[:-1] if turn.observation)]


def slow_turn_returns(part: TurnReturns, samples: list[Sample], totals: list[float]) -> list[list[float]]:
    returns = [slow_returns(slow_rewards(*pair), part.gamma) for pair in zip(samples, totals, strict=True)]
    out: list[list[float]] = []
    for mine in returns:
        out.append([])
        for t, value in enumerate(mine):
            alike = [other[t] for other in returns if len(other) > t]
            out[-1].append((value - mean(alike)) / (stdev(alike) + part.eps) if len(alike) > 1 and len(set(alike)) > 1 else 0.0)
    return out


def slow_gigpo(part: GiGPO, samples: list[Sample], totals: list[float]) -> list[list[float]]:
    pairs = list(zip(samples, totals, strict=True))
    returns = [cut_returns(pair[0], slow_rewards(*pair), part.gamma, part.cut) for pair in pairs]
    states = [slow_states(one) if part.alike == "state" else list(map(str, range(len(one.turns)))) for one in samples]

    def compared(value: float, alike: list[float]) -> float:
        return (value - mean(alike)) / (stdev(alike) + part.eps if part.deviation else 1.0) if len(alike) > 1 else 0.0

    def step(i: int, t: int) -> float:
        return compared(
            returns[i][t],
            [r for row, seen in zip(returns, states, strict=True) for r, s in zip(row, seen, strict=True) if s == states[i][t]],
        )

    every = totals if part.over == "samples" else [x for x, row in zip(totals, returns, strict=True) for _ in row]
    return [[compared(totals[i], every) + part.weight * step(i, t) for t in range(len(row))] for i, row in enumerate(returns)]


def by_rows(found: Rollouts, f: Any, totals: list[float]) -> list[list[float]]:
    """f of each group's samples and totals, in the order of rows."""
    out: list[list[float]] = []
    for group in found.groups:
        rows = (found.group_ids == group.id).nonzero()[:, 0].tolist()
        out += f(list(group.samples), [totals[i] for i in rows])
    return out


GIGPOS = (GiGPO(), GiGPO(deviation=True, weight=0.3), GiGPO(gamma=0.0), PER_TURN, UI_S1)


def with_totals(found: Rollouts) -> tuple[Scores, list[float]]:
    """What the world said, and an answer's reward beside it."""
    made = scores_of(found, answer=totals_of(found))
    return made, made.total().tolist()


@pytest.mark.parametrize("part", [TurnReturns(), TurnReturns(gamma=0.5), *GIGPOS], ids=str)
def test_turns_are_compared_as_in_a_slow_loop(part: TurnReturns | GiGPO):
    """Returns with those of the same turn; GiGPO's with those of turns that began from the same state."""
    found = drawn(1)
    made, totals = with_totals(found)
    slow: Any = slow_gigpo if isinstance(part, GiGPO) else slow_turn_returns
    expected = by_rows(found, lambda *group: slow(part, *group), totals)
    for mine, row in zip(per_turn(part(made, found).values, found), expected, strict=True):
        assert mine == pytest.approx(row)


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_a_better_turn_has_the_larger_advantage(part: Any):
    """Both begin from the same state with the same past; one earns more."""
    good = episode(Said(1, 0.0, "x"), Said(2, 1.0, "x"))
    bad = episode(Said(1, 0.0, "x"), Said(1, 0.0, "x"))
    found = rollouts_of([good, bad, bad])
    values = per_turn(part(scores_of(found), found).values, found)
    assert values[0][1] > 0 > values[1][1] and values[1] == values[2]


def test_hgpo_looks_at_what_came_before():
    """The same state behind another one, where every return is larger: GiGPO takes the path for the turn's merit."""

    def path(first: str, reward: float) -> Sample:
        return episode(Said(1, 0.0, first), Said(1, 0.0, "z"), Said(1, reward, "end"))

    found = rollouts_of([path("x", 5.0), path("x", 4.0), path("y", 1.0), path("y", 0.0)])
    made = scores_of(found)
    steps = HGPO(deviation=False, power=20.0)(made, found)
    last = [row[-1] for row in per_turn(steps.values, found)]
    assert last == pytest.approx([0.5, -0.5, 0.5, -0.5], abs=1e-2), "among those that came the same way"
    merit = [row[-1] for row in per_turn(GiGPO(weight=1.0)(made, found).values, found)]
    assert merit[1] > 0 > merit[2]


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_every_action_has_its_turns_credit_and_nothing_else_has_any(part: Any):
    found = drawn(2)
    credit = part(with_totals(found)[0], found)
    assert not credit.values[~found.action_mask].any()
    per_turn(credit.values, found)
    assert credit.keep.all() and credit.values.any()


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_rows_without_a_total_take_part_in_nothing(part: Any):
    found = drawn(3, groups=1)
    answers = totals_of(found)
    whole = part(
        scores_of(rollouts_of(found.groups[0].samples[1:]), answer=answers[1:]), rollouts_of(found.groups[0].samples[1:])
    )
    credit = part(scores_of(found, answer=[float("nan"), *answers[1:]]), found)
    assert credit.keep.tolist() == [False, True, True, True, True] and not credit.values[0].any()
    width = whole.values.shape[1]
    torch.testing.assert_close(credit.values[1:, :width], whole.values)


@pytest.mark.parametrize("part", PARTS, ids=str)
def test_groups_do_not_mix(part: Any):
    found = drawn(4, groups=2)
    made, _ = with_totals(found)
    both = part(made, found).values
    second = found.group_ids == 1
    alone = part(made.take(second.nonzero()[:, 0]), found.take(second.nonzero()[:, 0]))
    torch.testing.assert_close(both[second], alone.values)


def test_with_one_turn_it_is_grpo():
    values = torch.rand(8, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows, made = rollouts(torch.ones(8, 3), [0] * 4 + [1] * 4), scores(values)
    plain = GroupNorm()(made, rows).values
    torch.testing.assert_close(TurnReturns()(made, rows).values, plain)
    centred = GroupNorm(scale="none")(made, rows).values
    torch.testing.assert_close(GiGPO()(made, rows).values, 2 * centred)
    torch.testing.assert_close(HGPO(deviation=False)(made, rows).values, centred)


def test_what_observations_state_counts_with_the_weight_of_its_reward():
    """Another total, or another name, leaves all of it to the last turn."""
    found = rollouts_of([episode(Said(1, 1.0, "x"), Said(1, 0.0)), episode(Said(1, 0.0, "x"), Said(1, 1.0))])
    now = TurnReturns(gamma=0.0)
    first = [row[0] for row in per_turn(now(scores_of(found), found).values, found)]
    assert first[0] > 0 > first[1]
    for part, weight in ((now, 0.0), (TurnReturns(gamma=0.0, reward="mine"), 1.0)):
        values = per_turn(part(scores_of(found, weight, answer=[0.0, 1.0]), found).values, found)
        assert [row[0] for row in values] == [0.0, 0.0] and values[1][1] > 0 > values[0][1]


def test_a_state_that_is_not_known_is_like_nothing_else():
    """An episode of an earlier step has its tokens, and no longer what the world said."""
    whole = episode(Said(1, 0.0, "x"), Said(1, 1.0))
    stored = Sample(text="a", token_ids=whole.token_ids, segments=whole.segments)
    found = rollouts_of([whole, stored, whole])
    values = GiGPO(weight=1.0, gamma=1.0)(scores_of(found, answer=[0.0, 3.0, 0.0]), found).values
    last = values[:, -1]
    assert float(last[1]) == pytest.approx(3.0 - 5 / 3), "its own total alone"
    assert turn_numbers(found)[1].tolist() == [0, -1, -1, 1]


def batch_of(found: Rollouts) -> Batch:
    return make_batch(found, torch.zeros(found.action_mask.shape, dtype=torch.float64), {})


def test_turn_mean_gives_every_turn_the_same():
    found = drawn(5)
    batch = batch_of(found)
    share = TurnMean()(batch, counts_of(batch))
    assert float(share.sum()) == pytest.approx(1.0) and not share[~found.action_mask].any()
    for row, (_, sample) in zip(share, found.samples(), strict=True):
        for turn in sample.turns:
            assert float(row[slice(*turn.span)].sum()) == pytest.approx(1 / len(found) / len(sample.turns))
            assert len(set(row[slice(*turn.span)].tolist())) == 1


def test_turn_mean_leaves_out_turns_that_do_not_train():
    found = rollouts_of([episode(Said(2), Said(3), Said(1))])
    found.action_mask[0, :2] = False
    found.action_mask[0, 4] = False
    batch = batch_of(found)
    share = TurnMean()(batch, counts_of(batch))
    assert share[0].tolist() == [0, 0, 0, 0, 0, 0.25, 0.25, 0, 0, 0.5]


def test_turn_mean_of_one_turn_is_the_sequence_mean():
    found = rollouts(torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]]))
    batch = batch_of(found)
    torch.testing.assert_close(TurnMean()(batch, counts_of(batch)), SequenceMean()(batch, counts_of(batch)))


def used_by(*used: bool, rewards: list[float]) -> tuple[Scores, Rollouts]:
    """One group, whose answers earned these, and of which some used a tool."""
    found = rollouts_of([episode(Said(1, key="x", used=one), Said(1), answered=False) for one in used])
    return scores_of(found, 0.0, answer=rewards), found


@pytest.mark.parametrize(
    ("used", "rewards", "bonus"),
    [
        ((True, True, False, False), [1.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0]),
        ((True, True, False, False), [0.0, 1.0, 1.0, 1.0], [-1.0, -1.0, 0.0, 0.0]),
        ((True, True, False, False), [0.5, 0.6, 0.5, 0.5], [0.0] * 4),
        ((True, True, True, True), [0.0, 1.0, 0.0, 1.0], [0.0] * 4),
        ((False, False, False, False), [0.0, 1.0, 0.0, 1.0], [0.0] * 4),
        ((True, True, False, False), [float("nan"), 1.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]),
    ],
)
def test_tools_are_rewarded_where_they_help(used: tuple[bool, ...], rewards: list[float], bonus: list[float]):
    made, found = used_by(*used, rewards=rewards)
    shaped = WhereToolsHelp(weight=0.3)(made, found, {})
    assert shaped.names[-1] == "tools_help" and shaped.values[:, -1].tolist() == bonus
    expected = made.total() + 0.3 * torch.tensor(bonus, dtype=torch.float64)
    torch.testing.assert_close(shaped.total(), expected, equal_nan=True)


def test_halves_that_were_asked_are_compared_and_those_that_used_the_tool_are_paid():
    """The first half was asked, and one of it did not; the first of the other half did."""
    made, found = used_by(True, False, True, False, False, rewards=[1.0, 1.0, 0.0, 0.0, 0.0])
    assert WhereToolsHelp(asked=True)(made, found, {}).values[:, -1].tolist() == [1.0, 0.0, 1.0, 0.0, 0.0]
    made, found = used_by(True, False, True, False, rewards=[0.0, 0.0, 1.0, float("nan")])
    assert WhereToolsHelp(asked=True)(made, found, {}).values[:, -1].tolist() == [-1.0, 0.0, -1.0, 0.0]
    rows = torch.tensor([0, 2, 3])
    few = WhereToolsHelp(asked=True)(made.take(rows), found.take(rows), {})
    assert few.values[:, -1].tolist() == [-1.0, -1.0, 0.0], "which half a sample is of stands though others are gone"


@pytest.mark.parametrize(("used", "bonus"), [((True, False, False, False), 0.5), ((True,) * 4, 0.0), ((False,) * 4, 0.0)])
def test_tools_are_rewarded_while_they_are_seldom(used: tuple[bool, ...], bonus: float):
    made, found = used_by(*used, rewards=[0.0] * 4)
    shaped = SeldomTools(wanted=0.75)(made, found, {})
    assert shaped.values[:, -1].tolist() == [bonus if one else 0.0 for one in used]
    with pytest.raises(ValueError, match="a reward is named 'seldom_tools' already"):
        SeldomTools()(shaped, found, {})
