"""Segments and beginnings of answers: where they are cut, what they are worth, what trains of them; and prompts' histories."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.advantages.remembered import PromptHistory
from mmrl.algorithms.advantages.segments import SegmentGains
from mmrl.algorithms.advantages.tree import PrefixValues, TreeValues, names_of, prefixes
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.planners.base import Once
from mmrl.algorithms.planners.segments import SegmentValues, TreeBranches
from mmrl.algorithms.presets import PRESETS
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.samples import Observation, Segment, Turn, segments_of
from mmrl.core.types import Credit, Group, Prompt, Rollouts, Sample
from mmrl.training.trainer import Trainer
from tests.algorithms.test_replay import goes_on_exactly
from tests.flow.test_learning import small
from tests.support.rows import FEW, Nothing, of_samples, rollouts, scores, with_fields
from tests.support.trainers import make_trainer

PLANNER = SegmentValues(interval=2, continuations=3)


def collected(function: Any = None, planner: SegmentValues = PLANNER) -> Any:
    return make_trainer(replace(PRESETS["spo_segment"], planner=planner), function).collect()


def begun_at(kept: int, length: int) -> tuple[Segment, ...]:
    """Of a row of `length` letters that goes on behind `kept` forced ones."""
    return segments_of([("forced", kept), ("policy", length - kept)])


def worth(group: Group) -> list[float]:
    """A number of its own for every text."""
    return [sum(ord(letter) * 7**i for i, letter in enumerate(sample.text or "")) % 13 / 13 for sample in group.samples]


def test_values_are_means_over_what_goes_on_from_each_cut():
    found = collected(worth)
    num_cuts = 0
    for group in found.rollouts.groups:
        own, behind = group.samples[:8], group.samples[8:]
        rewards = worth(group)[8:]
        for sample in own:
            for kept, value in sample.values:
                mine = behind[:3]
                assert {(one.token_ids or ())[:kept] for one in mine} == {(sample.token_ids or ())[:kept]}
                assert {tuple(one.segments) for one in mine} <= {begun_at(kept, length) for length in range(kept, 20)}
                assert value == pytest.approx(sum(rewards[:3]) / 3)
                behind, rewards, num_cuts = behind[3:], rewards[3:], num_cuts + 1
        assert not behind and not any(one.values for one in group.samples[8:])
    assert found.rounds == 2 and found.num_discarded == 3 * num_cuts > 0


def test_cuts_lie_before_unlikely_letters():
    found = collected()
    noted, names = found.rollouts.recorded[ROLLOUT_LOGPROBS], found.rollouts.sample_ids.tolist()
    assert len(names) == 8 * len(found.rollouts.groups) and max(names) == 7, "what went on is dropped"
    for (_, sample), row in zip(found.rollouts.samples(), noted, strict=True):
        unsure = [i for i in range(len(sample.token_ids or ())) if math.exp(float(row[i])) < 0.9]
        assert [kept for kept, _ in sample.values] == unsure[::2]


def test_what_went_on_is_not_what_a_group_was_like():
    """Only continuations of nothing are samples of the prompt."""
    for group in collected().rollouts.groups:
        from_nothing = [one for one in group.samples[8:] if all(part.who == "policy" for part in one.segments)]
        assert group.seen is not None and group.seen.size == 8 + len(from_nothing)


def test_a_failed_reward_leaves_its_continuation_out():
    planner = replace(PLANNER, continuations=2)

    def patchy(group: Group) -> list[float]:
        return [math.nan if i >= 8 and i % 2 else float(i) for i in range(len(group.samples))]

    for group in collected(patchy, planner).rollouts.groups:
        found = [value for sample in group.samples for _, value in sample.values]
        assert found == [float(i) for i in range(8, len(group.samples), 2)]
    planner.first([Prompt("p")], 1, 0, 0)
    planner.cuts[0, 0] = [0, 1]
    group = Group(0, Prompt("p"), tuple(Sample(token_ids=(0, 1)) for _ in range(5)))
    assert planner.values_of(group, [1.0, math.nan, math.nan, 0.5, math.nan]) == {(0, 0): ((1, 0.5),)}


def with_values(rows: Rollouts, probabilities: list[list[float]], values: tuple[tuple[int, float], ...]) -> Rollouts:
    rows = with_fields(rows, token_ids=[(1,) * len(row) for row in probabilities], values=[values] * len(probabilities))
    return replace(rows, recorded={ROLLOUT_LOGPROBS: torch.tensor(probabilities).log()})


def test_each_segment_has_its_own_advantage_and_sure_tokens_leave():
    chances = [[0.99, 0.5, 0.95, 0.8, 0.3], [0.99, 0.5, 0.95, 0.8, 0.3]]
    rows = with_values(rollouts(torch.ones(2, 5)), chances, ((1, 0.25), (3, 0.75)))
    credit = SegmentGains()(scores(torch.tensor([[1.0], [torch.nan]])), rows)
    # from 0.25 behind the first token to 0.75 behind the third, then to the reward of 1
    torch.testing.assert_close(credit.values[0], torch.tensor([0.0, 0.5, 0.0, 0.25, 0.25]))
    assert credit.actions is not None and credit.actions[0].tolist() == [False, True, False, True, True]
    assert credit.keep.tolist() == [True, False] and not credit.values[1].any()
    every = SegmentGains(mask=False)(scores(torch.tensor([[1.0], [1.0]])), rows)
    torch.testing.assert_close(every.values[0], torch.tensor([0.0, 0.5, 0.5, 0.25, 0.25]))
    assert every.actions is not None and bool(every.actions.all())


def test_sure_tokens_leave_the_count():
    trainer = make_trainer(
        replace(PRESETS["spo_segment"], planner=replace(PLANNER, sure=0.21), advantage=SegmentGains(sure=0.21))
    )
    rows, table = (found := trainer.collect()).rollouts, found.scores
    credit = trainer.credit(table, rows, {})
    unsure = rows.recorded[ROLLOUT_LOGPROBS].double().exp() < 0.21
    assert torch.equal(credit.mask & rows.action_mask, unsure & rows.action_mask) and bool((~unsure & rows.action_mask).any())


@pytest.mark.parametrize(
    ("algorithm", "told"),
    [
        (replace(PRESETS["spo_segment"], planner=Once()), "SegmentGains is made for the planner SegmentValues"),
        (replace(PRESETS["flow_grpo"], planner=SegmentValues()), "take a text policy"),
        (replace(PRESETS["flow_grpo"], advantage=PrefixValues()), r"told by their tokens.*take a text policy"),
    ],
)
def test_without_continuations_and_without_tokens_there_is_nothing_to_credit(algorithm: Algorithm, told: str):
    with pytest.raises(ValueError, match=told):
        make_trainer(algorithm).step()


def played(key: str, *tokens: int) -> Sample:
    """Two turns of a token each, with an answer of a token in between."""
    return Sample("b", tokens, turns=(Turn("a", (0, 1), Observation("<image>", key=key)), Turn("b", (2, 3))))


def test_pictures_of_equal_tokens_part_episodes():
    """The branches of an episode share its answers; another episode with the same words and another picture does not."""
    one, branch, other, unknown = played("x", 1, 9, 2), played("x", 1, 9, 3), played("y", 1, 9, 2), played("", 1, 9, 2)
    rows = [names_of(sample, i) for i, sample in enumerate((one, branch, other, unknown, unknown))]
    paths = prefixes(rows)
    assert paths[0][:2] == paths[1][:2] and paths[0][2] != paths[1][2]
    assert len({path[1] for path in paths[1:]}) == 4 and len({path[0] for path in paths}) == 1


def test_a_branched_turn_is_compared_with_its_siblings():
    rows = of_samples(played("x", 1, 9, 2), played("x", 1, 9, 3), played("y", 1, 9, 2), width=3)
    found = PrefixValues(eps=0.0)(scores(torch.tensor([[1.0], [0.0], [0.0]])), rows).values
    # mean 1/3, deviation sqrt(1/3); V: 1/2 behind the answer x, which the first row alone lifts to 1
    assert (found * (1 / 3) ** 0.5)[0].tolist() == pytest.approx([2 / 3, 2 / 3 + 1 / 6, 2 / 3 + 1 / 2])
    found = TreeValues()(scores(torch.tensor([[1.0], [0.0], [0.0]])), rows).values
    # r less the others' mean: 1, -1/2, -1/2; V: 0 of all, 1/4 of two, then 1 of one
    assert found[0].tolist() == pytest.approx([0, 2 / 4 / 2**0.5, 2 - 1 / 4])


@pytest.mark.parametrize("part", [PrefixValues(), TreeValues()])
def test_rows_without_a_reward_and_groups_of_equal_ones_get_nothing(part: Any):
    rows = of_samples(*(played("x", 1, 9, token) for token in (2, 3, 4)), width=3)
    found = part(scores(torch.tensor([[1.0], [float("nan")], [1.0]])), rows)
    assert found.keep.tolist() == [True, False, True] and not found.values.any()


def test_the_branches_of_a_tree_go_on_from_its_least_likely_tokens_and_train_behind_them():
    planner = TreeBranches(places=2, siblings=3)
    found = make_trainer(replace(PRESETS["treerl"], planner=planner, group_size=2)).collect()
    noted, mask = found.rollouts.recorded[ROLLOUT_LOGPROBS], found.rollouts.action_mask
    row_of = {
        tuple(key): i for i, key in enumerate(torch.stack([found.rollouts.group_ids, found.rollouts.sample_ids], 1).tolist())
    }
    for group in found.rollouts.groups:
        behind = iter(range(2, len(group.samples)))
        for i in range(2):
            own, row = group.samples[i].token_ids or (), noted[row_of[group.id, i]]
            least = sorted(row[: len(own)].argsort(stable=True)[:2].tolist())
            for kept in least:
                for _ in range(3):
                    number = next(behind)
                    assert (group.samples[number].token_ids or ())[:kept] == own[:kept]
                    assert not mask[row_of[group.id, number], :kept].any(), "it trains in the row that wrote it"
        assert next(behind, None) is None
    assert found.rounds == 2


def test_where_nothing_is_shared_tempo_is_grpo():
    rows = of_samples(*(Sample("x", (token, 5, 6)) for token in (1, 2, 3)), width=3)
    rewards = scores(torch.tensor([[1.0], [0.0], [0.0]], dtype=torch.float64))
    plain, found = GroupNorm(eps=1e-6)(rewards, rows).values, PrefixValues(eps=1e-6)(rewards, rows).values
    torch.testing.assert_close(found[:, 1:], plain[:, 1:])
    assert (found[:, 0] != plain[:, 0]).all(), "the first token is where they part"


Step = Sequence[tuple[str, float]]
"""A prompt's name and a reward, for every row."""
STEPS: list[Step] = [
    [("cat", 1.0), ("dog", 5.0), ("cat", 3.0)],
    [("cat", 2.0), ("dog", 7.0), ("owl", 4.0)],
    [("cat", 8.0), ("cat", 6.0), ("dog", 7.0), ("dog", 7.5)],
]


def rows(step: Step, order: Sequence[int] | None = None) -> Rollouts:
    """Every row a group of its own, in some order."""
    places = list(range(len(step)) if order is None else order)
    groups = tuple(Group(i, Prompt(name, name), (Sample(),)) for i, (name, _) in enumerate(step))
    mask = torch.ones(len(step), 2, dtype=torch.bool)
    return Rollouts(groups, torch.tensor(places), torch.zeros(len(step), dtype=torch.long), mask, Nothing())


def credit(part: PromptHistory, step: Step, order: Sequence[int] | None = None) -> Credit:
    places = list(range(len(step)) if order is None else order)
    rewards = torch.tensor([step[i][1] for i in places], dtype=torch.float64)
    return part(scores(rewards[:, None]), rows(step, order))


def slow(steps: Sequence[Step], size: int, least: int, eps: float) -> list[list[float]]:
    """The formula with a list per prompt."""
    known: dict[str, list[float]] = {}
    answers: list[list[float]] = []
    for step in steps:
        for name in dict.fromkeys(name for name, _ in step):
            known[name] = (known.get(name, []) + [reward for own, reward in step if own == name])[-size:]
        own: list[float] = []
        for name, reward in step:
            seen = known[name] if len(known[name]) >= least else [reward for _, reward in step]
            spread = statistics.pstdev(seen)
            own.append((reward - statistics.fmean(seen)) / (spread + eps) if spread > 1e-6 else 0.0)
        answers.append(own)
    return answers


@pytest.mark.parametrize(("size", "least"), [(4, 2), (3, 3), (16, 16)])
def test_it_is_the_slow_formula(size: int, least: int):
    part = PromptHistory(size=size, least=least, clip=None)
    found = [credit(part, step).values[:, 0].tolist() for step in STEPS]
    assert found == [pytest.approx(own, abs=1e-12) for own in slow(STEPS, size, least, part.eps)]


def test_advantages_are_clamped_and_equal_rewards_teach_nothing():
    step = [("cat", 0.0)] * 99 + [("cat", 1.0)]
    assert float(credit(PromptHistory(size=100, least=2), step).values.max()) == 5.0
    assert not credit(PromptHistory(size=4, least=2), [("cat", 0.1), ("cat", 0.1 + 1e-9)]).values.any()


def test_rows_without_a_reward_are_not_remembered():
    part = PromptHistory(size=4, least=2, clip=None)
    found = credit(part, [("cat", 1.0), ("cat", float("nan")), ("cat", 3.0)])
    assert found.keep.tolist() == [True, False, True] and part.rewards == {"cat": [1.0, 3.0]}
    assert found.values[:, 0].tolist() == pytest.approx([-1.0, 0.0, 1.0], abs=1e-5)


@FEW
@given(st.permutations(range(4)))
def test_the_order_of_rows_is_no_matter(order: list[int]):
    """Processes hand their rows in another order; with a short memory the last ones must be the same."""
    plain, other = PromptHistory(size=1, least=1), PromptHistory(size=1, least=1)
    first, second = credit(plain, STEPS[2]), credit(other, STEPS[2], order)
    assert plain.rewards == other.rewards == {"cat": [6.0], "dog": [7.5]}
    assert torch.equal(first.values[order], second.values)


def test_resumed_is_uninterrupted(tmp_path: Path):
    def fresh() -> Trainer:
        return make_trainer(replace(small("ddpo"), advantage=PromptHistory(size=20, least=20), group_size=6), steps=4, lr=1e-2)

    def forget(state: Any) -> None:
        state["parts"]["advantage"]["rewards"] = {}

    assert goes_on_exactly(fresh, tmp_path / "one", at=2, steps=4)
    assert not goes_on_exactly(fresh, tmp_path / "other", at=2, steps=4, forget=forget), "the memory matters"


def test_a_prompt_alone_in_its_step_learns_from_earlier_ones():
    """Groups of one have no spread of their own."""
    algorithm = replace(small("ddpo"), group_size=1, minibatches=1, advantage=PromptHistory(size=6, least=3))
    trainer = make_trainer(algorithm, prompts_per_step=3, steps=4, lr=1e-2)
    spread = [trainer.step()["policy/grad_norm"] for _ in range(4)]
    assert min(spread) > 0 and PRESETS["ddpo"].group_size == 1
