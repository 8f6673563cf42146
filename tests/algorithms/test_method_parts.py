"""Parts of single papers: what their vectors do not show, numbers by hand, and the rows that become pairs."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from mmrl.algorithms.advantages.answers import Consistency, Polychromic, answers
from mmrl.algorithms.advantages.entropy import EntropyControl
from mmrl.algorithms.advantages.group import GroupNorm, Halves, Strata, TokenAverage, VirtualBest
from mmrl.algorithms.advantages.spread import BetaNorm, WhereSpread
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.miners import BestAndWorst, Difficulty
from mmrl.algorithms.objectives.off_policy import NegativeAwareText
from mmrl.algorithms.objectives.regression import Discriminative, TrustHinge
from mmrl.algorithms.planners.extra_samples import WhereHard, WhereUncertain
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.shaping.reference import ReferenceProbability
from mmrl.algorithms.weights.aggregate import GroupSum, TokenMean
from mmrl.algorithms.weights.importance import AttentionRhythm, ConflictTokens, SmallTarget
from mmrl.answers.boxes.box import Box
from mmrl.app.plugins.resolve import load
from mmrl.core.protocols import Advantage, Term, Weight
from mmrl.core.readings import (
    ATTENTION_DISTANCE,
    ATTENTION_INFLUENCE,
    BASE_PROBABILITY,
    LOGPROBS,
    MEAN_REWARD,
    OLD_ENTROPY,
    OLD_LOGPROBS,
    REFERENCE_PROBABILITY,
    REWARD,
)
from mmrl.core.types import Group, MediaSize, Prompt, Reading, Rollouts, Sample, Turn
from tests.support.fakes import FakeTextPolicy
from tests.support.refused import refused
from tests.support.rows import counts_of, make_batch, rollouts, scores, weighed_loss, with_fields
from tests.support.trainers import make_trainer


def rows_of(texts: list[str], ids: list[int] | None = None) -> Rollouts:
    return with_fields(rollouts(torch.ones(len(texts), 2), ids), text=texts)


def of_lengths(*lengths: int) -> Rollouts:
    return rollouts(torch.arange(max(lengths)) < torch.tensor(lengths)[:, None])


def values(part: Advantage, rewards: list[float], rows: Rollouts) -> Tensor:
    return part(scores(torch.tensor(rewards, dtype=torch.float64)[:, None]), rows).values[:, 0]


def test_a_group_of_wrong_answers_teaches_and_one_of_perfect_answers_does_not():
    rows = rows_of(["a"] * 6, [0] * 3 + [1] * 3)
    found = values(VirtualBest(), [0.0, 0.0, 0.0, 1.0, 1.0, 1.0], rows)
    assert (found[:3] < -0.1).all() and (found[3:] == 0).all()
    assert not values(GroupNorm(), [0.0, 0.0, 0.0, 1.0, 1.0, 1.0], rows).any()


@pytest.mark.parametrize(("part", "said"), [(VirtualBest(), r"VirtualBest\.best"), (BetaNorm(), "weights of the rewards")])
def test_rewards_beyond_one_are_refused(part: Advantage, said: str):
    refused(said, values, part, [0.0, 2.0], rows_of(["a", "b"]))


def test_halves_by_entropy_read_what_was_recorded_on_any_number_of_ranks():
    part = Halves(by="entropy")
    assert Algorithm(advantage=part).frozen_reads == (*Algorithm().frozen_reads, OLD_ENTROPY)
    trainer = make_trainer(Algorithm(advantage=part), policy=FakeTextPolicy())
    assert math.isfinite(trainer.step()["loss"])


def test_a_lone_sample_of_a_stratum_is_compared_with_the_group_alone():
    rows = rows_of(["<tool_call>", "", ""])
    found = values(Strata(inside=0.8), [1.0, 0.0, 0.0], rows)
    assert found[0] == pytest.approx(0.2 * (1 - 1 / 3) / math.sqrt(1 / 3))


def test_calls_count_in_all_turns_of_an_episode():
    rows = rows_of(["so 1", "so 2", "so 3", "so 4"])
    turns = [["<tool_call>"], ["<tool_call>", "<tool_call>"], ["<tool_call>"], ["<tool_call>", "<tool_call>"]]
    said = [[Turn(text, (0, 1)) for text in (*own, f"so {i}")] for i, own in enumerate(turns, 1)]
    found = values(Strata(inside=1.0), [1.0, 0.0, 0.0, 1.0], with_fields(rows, turns=list(map(tuple, said))))
    assert found.tolist() == pytest.approx([0.5**0.5, -(0.5**0.5), -(0.5**0.5), 0.5**0.5])


def test_answers_are_compared_without_case_and_spaces():
    texts = ["so <answer> Two  cats</answer>", "<answer>two cats</answer>", "two cats", "<answer>3</answer>"]
    assert answers(rows_of(texts), r"<answer>(.*?)</answer>").tolist() == [0, 0, 0, 1]


def test_where_all_agree_prompts_are_compared_with_prompts():
    rows = rows_of(["<answer>1</answer>"] * 4 + ["<answer>2</answer>"] * 4, [0] * 4 + [1] * 4)
    found = values(Consistency(), [1.0] * 4 + [0.0] * 4, rows)
    assert (found[:4] > 0.5).all() and (found[4:] < -0.5).all()
    assert not values(GroupNorm(), [1.0] * 4 + [0.0] * 4, rows).any()


def test_a_rare_wrong_answer_beats_a_common_wrong_one():
    rows = rows_of([f"<answer>{x}</answer>" for x in ("a", "a", "b", "b", "b", "c")])
    found = values(Polychromic(n=3), [1.0, 1.0, 0.0, 0.0, 0.0, 0.0], rows)
    assert found[5] > found[2] and found.sum().abs() < 1e-12
    assert not values(Polychromic(n=3), [0.0] * 6, rows).any()


def test_of_many_sets_a_seeded_draw_is_looked_at():
    part = Polychromic(n=8)
    assert len(part.sets(24, 3)) == 1000 and part.sets(24, 3) == part.sets(24, 3) != part.sets(24, 4)


def loss(
    term: Term, aggregation: Weight, live: Tensor, old: Tensor, advantages: Tensor, ids: list[int] | None = None
) -> tuple[Tensor, Tensor]:
    """Of a term alone, and its gradient."""
    batch = make_batch(torch.ones(live.shape), advantages, {OLD_LOGPROBS: old}, ids)
    return weighed_loss(Algorithm(objective=((1.0, term),), aggregation=aggregation), batch, {LOGPROBS: live})


def test_the_hinge_pulls_only_beyond_its_bound():
    near, far = (
        loss(TrustHinge(beta=10.0, delta=0.1), TokenMean(), torch.full((2, 3), x), torch.zeros(2, 3), torch.zeros(2))[0]
        for x in (0.1, 1.0)
    )
    kl = math.e - 2
    assert near == 0 and far == pytest.approx(10 * (kl - 0.1) * kl)


def test_the_hinge_is_the_same_under_every_aggregation():
    term, old = TrustHinge(beta=10.0, delta=0.01), torch.zeros(4, 3)
    live, advantages = torch.tensor([[0.5], [0.1], [-0.3], [0.9]]).expand(4, 3), torch.zeros(4)
    first, second = (loss(term, aggregation, live, old, advantages, [0, 0, 1, 1])[0] for aggregation in (TokenMean(), GroupSum()))
    torch.testing.assert_close(first, second)


def test_short_needs_a_length():
    term, live = Discriminative(short=0.1), torch.zeros(2, 1)
    refused("length is not set", loss, term, GroupSum(), live, live, torch.tensor([1.0, -1.0]))
    assert Algorithm(objective=((1.0, term),)).with_length(4).objective[0][1] == Discriminative(short=0.1, length=4)


def test_at_its_first_update_nft_is_grpo():
    right, rate = torch.tensor([1.0, 0.0, 0.0, 1.0]), 0.5
    advantages = right - rate
    same = torch.full((4, 2), -1.0)
    _, pull = loss(NegativeAwareText(), TokenMean(), same, same, advantages)
    z_scores = advantages / math.sqrt(rate * (1 - rate))
    torch.testing.assert_close(pull, -z_scores[:, None].expand(4, 2) / 8)


def test_more_samples_are_drawn_until_a_group_is_mixed():
    trainer = make_trainer(PRESETS["reinforce_ada"], function=lambda group: [float(i > 8) for i in range(len(group.samples))])
    collected = trainer.collect()
    assert collected.rounds == 2
    sizes = [len(group.samples) for group in collected.rollouts.groups]
    assert sizes == [16] * len(sizes)
    texts = [sample.text for sample in collected.rollouts.groups[0].samples]
    assert texts[:8] != texts[8:], "the second round has random numbers of its own"
    credit = trainer.credit(collected.scores, collected.rollouts, {})
    assert credit.keep.sum() == 4 * len(sizes)


def test_later_rounds_show_pictures_and_remember_their_own_step_only():
    planner, picture = WhereHard(), object()
    prompts = [Prompt(name, media=(picture,)) for name in "ab"]
    planner.first(prompts[:1], 2, first_id=0, seed=0)
    planner.first(prompts[1:], 2, first_id=1, seed=0)
    light = [Group(i, Prompt(name), (Sample(), Sample())) for i, name in enumerate("ab")]
    told = scores(torch.tensor([[0.0], [0.0], [1.0], [1.0]])), torch.tensor([0, 0, 1, 1])
    (again,) = planner.revise(light, *told, wanted=2, round_index=0).requests
    assert again.prompt is prompts[0], "groups come to a planner without pictures"
    planner.first(prompts, 2, first_id=2, seed=0)
    planner.revise([replace(group, id=group.id + 2) for group in light], told[0], told[1] + 2, wanted=2, round_index=0)
    assert planner.requests.keys() == {2, 3}


def test_hard_prompts_get_more_samples():
    hard = {"0", "2"}
    trainer = make_trainer(
        PRESETS["dars"], function=lambda group: [float(group.prompt.id not in hard or i == 0) for i in range(len(group.samples))]
    )
    sizes = {group.prompt.id: len(group.samples) for group in trainer.collect().rollouts.groups}
    assert all((size > 8) == (name in hard) for name, size in sizes.items())


def test_uncertain_prompts_get_more_samples():
    part = WhereUncertain(prompts_per_round=1, bonus=0.0)
    assert part.extra({0: [1.0, 1.0, 1.0], 1: [1.0, 0.0, 1.0]}, 0) == {1: 4}
    assert part.extra({0: [1.0, 0.0]}, 2) == {}


def test_entropy_removes_and_lowers():
    rows = rollouts(torch.ones(4, 2))
    entropy = torch.tensor([[0.1], [0.1], [2.0], [0.5]]).expand(4, 2)
    assert float(entropy.mean()) < 0.7
    rows = replace(rows, recorded={OLD_ENTROPY: entropy})
    found = values(EntropyControl(GroupNorm(scale="none")), [1.0, 0.0, 1.0, 0.0], rows)
    torch.testing.assert_close(found, torch.tensor([0.5 - 0.01, -0.5 - 0.01, 0.0, -0.5 - 0.05], dtype=torch.float64))


def graded(rewards: list[float], t: int) -> dict[Reading, Tensor]:
    """What the trainer makes of the scores of one group, for t actions."""
    values = torch.tensor(rewards)
    return {REWARD: values[:, None].expand(-1, t), MEAN_REWARD: values.mean().expand(len(rewards), t)}


def test_few_actions_against_many_are_compared_by_rows_and_their_unbiased_deviation():
    rows, rewards = of_lengths(1, 40, 40, 40, 40), [1.0, 0.0, 0.0, 0.0, 0.0]
    # over actions 12.6; over rows a mean of .2 and a deviation of sqrt(.8 / 4)
    assert float(values(TokenAverage(), rewards, rows)[0]) == pytest.approx(0.8 / math.sqrt(0.2), rel=1e-5)  # 1.789
    even = values(TokenAverage(), rewards, rows_of(["a"] * 5))
    assert float(even[0]) == pytest.approx(0.8 / 0.4, rel=1e-5), "actions: the biased one"


@pytest.mark.parametrize("name", ["disco", "drpo", "nft_text"])
def test_totals_between_wrong_and_right_are_one_of_both(name: str):
    part, rows = PRESETS[name].advantage, rows_of(["a"] * 4)
    expected = torch.tensor([0.75, -0.25, -0.25, -0.25], dtype=torch.float64)
    for rewards in ([1.0, 0.0, 0.0, 0.0], [1.2, 0.2, 0.1, 0.0], [1.0, -1.0, -1.0, -1.0]):
        torch.testing.assert_close(values(part, rewards, rows), expected)


def test_groups_whose_spans_scatter_count_less():
    reward, clip = load("pseudo_span", "rewards"), Prompt("clip", columns={"duration": 10.0})
    near, far = ("2 to 6", "3 to 7", "3 to 6"), ("0 to 5", "3 to 9", "1 to 9")
    answered = [one for spans in (near, far) for one in reward()(Group(0, clip, tuple(map(Sample, spans))))]
    rows = rows_of(["a"] * 6, [0] * 3 + [1] * 3)
    found = values(PRESETS["urpa"].advantage, [answer.value for answer in answered], rows)
    alike = values(GroupNorm(scale="none"), [answer.parts["agreement"] for answer in answered], rows)
    first, second = (float(found[i] / alike[i]) for i in (0, 3))
    trust = [answer.parts["trust"] for answer in answered]
    assert second / first == pytest.approx(trust[3] / trust[0]) and trust[3] < 0.9 * trust[0]
    off = Group(0, clip, tuple(map(Sample, ("<answer>2 to 6</answer>", "<answer>2 to 6</answer>", "0 to 9"))))
    assert [one.value for one in reward(template="direct")(off)] == [1, 1, 0], "a text off its template has no vote"


def test_pictures_have_no_tokens_to_compare():
    batch = make_batch(torch.ones(2, 2), torch.tensor([1.0, -1.0]), graded([1.0, 0.0], 2))
    refused("it is for text", ConflictTokens(), batch, counts_of(batch))


def test_a_thought_earns_what_it_adds_to_the_probability_of_the_truth():
    mask = torch.ones(4, 3, dtype=torch.bool)
    frozen = {
        REFERENCE_PROBABILITY: torch.tensor([0.7, 0.2, 0.5, -1.0])[:, None].expand(4, 3),
        BASE_PROBABILITY: torch.tensor([0.3, 0.4, -1.0, -1.0])[:, None].expand(4, 3),
    }
    before = scores(torch.tensor([[1.0], [1.0], [0.0], [0.0]]))
    found = ReferenceProbability()(before, rollouts(mask), frozen)
    assert found.names[-1] == "reference_probability"
    # max(p - b, 0): a thought that makes the truth less likely earns nothing; without tags nothing; b without tags is 0
    torch.testing.assert_close(found.values[:, -1], torch.tensor([0.4, 0.0, 0.5, 0.0]))
    assert float(found.weights[-1]) == pytest.approx(0.9)
    plain = ReferenceProbability(debias=False)
    assert plain.reads == (REFERENCE_PROBABILITY,)
    torch.testing.assert_close(plain(before, rollouts(mask), frozen).values[:, -1], torch.tensor([0.7, 0.2, 0.5, 0.0]))
    refused("a reward is named 'reference_probability' already", plain, found, rollouts(mask), frozen)


def test_only_credit_is_amplified_and_only_where_tokens_are():
    mask = torch.tensor([[1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]], dtype=torch.bool)
    distance = torch.tensor([[0.0, 1.0, 5.0, 5.0, 4.0, 9.0]]).expand(3, 6)
    influence = torch.tensor([[0.1, 0.9, 0.8, 0.2, 0.0, 9.0]]).expand(3, 6)
    advantages = torch.tensor([1.0, -1.0, 1.0])
    batch = make_batch(mask, advantages, {ATTENTION_DISTANCE: distance, ATTENTION_INFLUENCE: influence})
    local = AttentionRhythm("local")(batch, counts_of(batch))
    # steps of the first five: 1 4 0 1 0, and 40 % of five tokens are two: the jump of 4 and the first of 1
    assert local.tolist() == [[1.5, 1.5, 1.0, 1.0, 1.0, 1.0], [1.0] * 6, [1.0] * 6]
    wide = AttentionRhythm("global", amplify=2.0)(batch, counts_of(batch))
    assert wide[0].tolist() == [1.0, 2.0, 2.0, 1.0, 1.0, 1.0]
    assert AttentionRhythm()(batch, counts_of(batch)).min() == 1.0


@pytest.mark.parametrize(("share", "kappa"), [(0.01, 1.0), (0.0025, 2.0), (0.0001, 2.0), (0.02, 2**-0.5), (0.5, 0.5)])
def test_a_small_target_weighs_more(share: float, kappa: float):
    rows, side = with_fields(rollouts(torch.ones(2, 2)), media_sizes=[(MediaSize(200, 100, 56, 28),)] * 2), 100 * share**0.5
    prompt = Prompt("p", answer=(Box(10, 10, 10 + 2 * side, 10 + side, "pixel"),))
    batch = make_batch(replace(rows, groups=(replace(rows.groups[0], prompt=prompt),)), torch.ones(2), {})
    torch.testing.assert_close(SmallTarget()(batch, counts_of(batch)), torch.full((2, 2), kappa))


def spread(part: WhereSpread, *groups: list[float]) -> list[int]:
    """The groups that stay after a step with these rewards."""
    ids = [i for i, rewards in enumerate(groups) for _ in rewards]
    table = scores(torch.tensor([reward for rewards in groups for reward in rewards])[:, None])
    credit = part(table, rollouts(torch.ones(len(ids), 2), ids))
    plain = part.inner(table, rollouts(torch.ones(len(ids), 2), ids))
    assert torch.equal(credit.values, plain.values)
    return sorted({i for i, stays in zip(ids, credit.keep.tolist(), strict=True) if stays})


def test_prompts_of_little_spread_leave_once_the_usual_one_is_known():
    part, wide, narrow = WhereSpread(hold=1, start=2, follow=0.5), [0.0, 1.0], [0.0, 0.1]
    assert spread(part, wide, narrow) == [0, 1] and "mean" not in part.notes
    assert spread(part, wide, narrow) == [0, 1]
    # deviations 0.707 and 0.071: the mean is 0.389 and half of it lies between
    assert part.notes["mean"] == pytest.approx(0.55 / 2**0.5)
    assert spread(part, wide, narrow, [float("nan"), 0.4]) == [0], "a single reward has no deviation"
    assert part.notes["mean"] == pytest.approx(0.55 / 2**0.5)
    assert spread(part, narrow, narrow) == [0, 1], "a step is never left empty"
    again = WhereSpread(hold=1, start=2, follow=0.5)
    again.load_state_dict(part.state_dict())
    assert spread(again, wide, narrow) == spread(part, wide, narrow) == [0]


def samples(*texts: str, cut: str = "") -> list[Sample]:
    return [Sample(text, token_ids=tuple(range(len(text))), truncated=text == cut) for text in texts]


def test_a_pair_is_the_best_and_the_worst_that_are_whole_and_scored():
    made = samples("worse", "cut", "best", "failed", "good", "worst", cut="cut")
    totals = [0.2, 9.0, 1.0, math.nan, 0.8, 0.1]
    pair = {"chosen": "best", "rejected": "worst", "margin": 0.9}
    assert BestAndWorst()(made, totals).rows == [pair]
    assert BestAndWorst(most=5)(made, totals).rows == [
        pair,
        {"chosen": "good", "rejected": "worse", "margin": pytest.approx(0.6)},
    ]
    assert BestAndWorst(most=5, gap=0.7)(made, totals).rows == [pair]
    assert BestAndWorst(success_at=2.0)(made, totals).rows == []
    assert BestAndWorst(most=2, success_at=0.15)(made, totals).rows == [pair]


@pytest.mark.parametrize("totals", [[0.5, 0.5], [1.0, math.nan], [math.nan, math.nan]])
def test_no_pair_without_a_difference(totals: list[float]):
    assert BestAndWorst()(samples("a", "b"), totals).rows == BestAndWorst()(samples("a", "a"), [1.0, 0.0]).rows == []


def test_the_longest_of_the_right_against_the_shortest_of_the_wrong():
    made, totals = samples("ok", "right", "no", "wrong"), [1.0, 1.0, 0.0, 0.0]
    assert BestAndWorst()(made, totals).rows == [{"chosen": "ok", "rejected": "wrong", "margin": 1.0}]
    assert BestAndWorst(prefer_long=True)(made, totals).rows == [{"chosen": "right", "rejected": "no", "margin": 1.0}]


def test_prompts_that_are_sometimes_right_are_kept_with_their_best_sample():
    made, totals = samples("bad", "right", "better", "cut", cut="cut"), [0.0, 0.6, 0.9, 1.0]
    assert Difficulty(high=0.8)(made, totals) == ([{}], 3, 4)
    assert Difficulty(high=0.8, column="completion")(made, totals).rows == [{"completion": "better"}]
    assert Difficulty(high=0.7)(made, totals).rows == [] and Difficulty(low=0.8, high=1.0)(made, totals).rows == []
    assert Difficulty(low=0.0, column="x")(made, [0.0] * 4).rows == [] and Difficulty(low=0.0)(made, [0.0] * 4).rows == [{}]
    assert Difficulty(low=0.0)(made, [math.nan] * 4) == ([], 0, 0)
