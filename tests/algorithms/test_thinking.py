"""When and how long to think: what begins each part of a group, what trains of it, and what does not go together."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.algorithms.advantages.experts import Preferred
from mmrl.algorithms.advantages.group import BySign, GroupNorm
from mmrl.algorithms.advantages.segments import BudgetRelative, WithinBudgets
from mmrl.algorithms.beside import part_numbers, thought_of
from mmrl.algorithms.objectives.given import Preference
from mmrl.algorithms.objectives.surrogates import EvenStart
from mmrl.algorithms.planners.base import Once
from mmrl.algorithms.planners.begun import BudgetCuts, Budgets, ThinkOrNot
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.shaping.thinking import OLD_LEAD, BudgetReward, LengthBudget, ModePays, ShorterIsBetter
from mmrl.algorithms.shaping.video import InjectedScale
from mmrl.algorithms.weights.importance import Difficulty
from mmrl.core.readings import LOGPROBS, OLD_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Group, Prompt, Sample
from tests.support.flow_fakes import FakeFlowPolicy
from tests.support.refused import refused
from tests.support.rows import make_batch, of_samples, rollouts, scores, with_columns
from tests.support.trainers import make_trainer

BEGUN = ThinkOrNot("d", "ab")


def test_halves_begin_otherwise_and_their_beginnings_train():
    found = make_trainer(replace(PRESETS["adapt_think"], planner=BEGUN, group_size=4)).collect().rollouts
    for (_, sample), mask, part in zip(found.samples(), found.action_mask, part_numbers(found, 2).tolist(), strict=True):
        assert (sample.text or "").startswith(("d", "ab")[part])
        assert mask[: len(sample.token_ids or ())].all(), "all of it trains"
    assert found.recorded[ROLLOUT_LOGPROBS][:, 0].isnan().all(), "evaluated before the first update"


def test_budgets_are_shares_of_the_longest_answer_and_do_not_train():
    planner = Budgets((0.25, 1.0), text="a{budget}").with_length(40)
    assert [piece.text for piece in planner.beginnings] == ["a10", "a40"]
    algorithm = replace(PRESETS["hbpo"], planner=planner, group_size=4)
    found = make_trainer(replace(algorithm, shaping=(), advantage=PRESETS["grpo"].advantage)).collect().rollouts
    assert not found.action_mask[:, 0].any() and found.action_mask[:, 1].any()


def test_the_template_has_to_open_the_thought_that_is_ended():
    trainer = make_trainer(replace(PRESETS["adapt_think"], group_size=4))
    refused(r"planner.without is '</think>', and the chat template leaves no <think> open", trainer.step)


def other(name: str, **changes: Any) -> Any:
    return replace(PRESETS[name], **changes)


@pytest.mark.parametrize(
    ("algorithm", "told"),
    [
        (other("hbpo", group_size=6), r"Budgets begins 4 equal parts .*multiple of 4"),
        (other("adapt_think", planner=Once()), r"AboveReference is made for the planner ThinkOrNot, .* Once: .*'ThinkOrNot'"),
        (other("grpo", objective=((1.0, EvenStart()),)), "EvenStart is made for the planner ThinkOrNot"),
        (other("grpo", advantage=BudgetRelative()), "BudgetRelative is made for the planner BudgetCuts"),
        (other("grpo", advantage=Preferred()), "Preferred is made for the planner Pairs or PicturePairs or TaughtPairs"),
        (other("grpo", objective=((1.0, Preference()),)), "Preference is made for the advantage Preferred or BestAgainstWorst"),
        (other("nft_text", advantage=GroupNorm()), "NegativeAwareText is made for the advantage RightOrWrong, .* GroupNorm"),
        (other("ahpo", planner=Once()), "ExpertWhereFew is made for the planner WithExpert"),
        (other("s_grpo", planner=Once()), "ExitDecay is made for the planner SerialExits"),
        (other("t_grpo", planner=Once()), "TemporalBonus is made for the planner Probed"),
        (other("grpo", shaping=(InjectedScale(),)), "InjectedScale is made for the planner WithTruth"),
        (other("hbpo", planner=Budgets((0.5, 1.0))), r"WithinBudgets.shares is .*planner.shares is \(0.5, 1.0\): take one"),
        (other("hbpo", planner=Budgets(length=4096)), r"BudgetReward.length is None, and .*planner.length is 4096: take"),
        (other("anytime", advantage=GroupNorm()), "BudgetCuts is made for the advantage BudgetRelative, .*is GroupNorm: set"),
        (other("geometry_zero", group_size=1, advantage=BySign()), "AskedHalves compares two halves of a group: .*_size to 2"),
        (other("grpo", shaping=(BudgetReward(),)), "BudgetReward is made for the planner Budgets"),
    ],
)
def test_what_does_not_go_together_is_refused(algorithm: Any, told: str):
    refused(told, algorithm.check_step, 4)
    other("hbpo", planner=type("Own", (Once,), {})()).check_step(4)  # a user's, which may do as Budgets does


@pytest.mark.parametrize("found", [None, "0.5", True, float("nan"), 1.5])
def test_a_reference_accuracy_is_a_share_and_a_difficulty_a_number(found: Any):
    number = ("difficulty", ", where a finite number is needed.*name another column")
    asked = [(PRESETS["adapt_think"], ("reference_accuracy", ".*mmrl sample")), (PRESETS["pixelthink"], number)]
    for one, (column, words) in [*asked, (Difficulty(), number)][: 1 if found == 1.5 else 3]:
        with pytest.raises(ValueError, match=rf"prompt 'x' has .* in the column '{column}'{words}"):
            one.check_prompts([Prompt("x", columns={column: found})])


def test_thoughts_are_cut_at_budgets_and_answered():
    planner = BudgetCuts((0.25, 0.5, 0.75), answers=2, mark=".", forced="d")
    found = make_trainer(replace(PRESETS["anytime"], planner=planner, group_size=2)).collect().rollouts
    row_of = {tuple(key): i for i, key in enumerate(torch.stack([found.group_ids, found.sample_ids], 1).tolist())}
    for group in found.groups:
        numbers = iter(range(2, len(group.samples)))
        for own in group.samples[:2]:
            tokens, whole = own.token_ids or (), len((own.text or "").partition(".")[0])
            assert [kept for kept, _ in own.values] == [min(k, whole, 2) for k in (1, 2, 3)]
            asked = [k for k in (1, 2, 3) if k - 1 < len(tokens)]
            answers = [(k, group.samples[next(numbers)]) for k in asked for _ in range(2)]
            for k, sample in answers:
                kept = min(k, whole, 2)  # of four letters one is forced, and one is left to the answer
                assert thought_of(sample) == kept and (sample.token_ids or ())[:kept] == tokens[:kept]
                assert min(k, whole) > 2 or (sample.text or "")[kept] == "d"
        assert next(numbers, None) is None
    credit = BudgetRelative()(scores(torch.rand(len(found), 1)), found)
    for (group, sample), i in ((one, row_of[one[0].id, one[0].samples.index(one[1])]) for one in found.samples()):
        stop = sample.values[-1][0] if sample.values else 0
        where = credit.mask[i].nonzero()[:, 0].tolist()
        first = 0 if sample.values else thought_of(sample) + 1
        assert where == list(range(stop)) if sample.values else min(where) == first, group.id


def test_a_thought_without_an_answer_that_was_scored_trains_nothing():
    planner = BudgetCuts((0.5,), answers=2, mark=".", forced="d")

    def but_the_first(group: Any) -> list[float]:
        return [float("nan") if i in (2, 3) else 1.0 for i in range(len(group.samples))]

    found = make_trainer(replace(PRESETS["anytime"], planner=planner, group_size=2), but_the_first).collect()
    assert [bool(group.samples[i].values) for group in found.rollouts.groups for i in (0, 1)] == [False, True] * 4
    keep = BudgetRelative()(found.scores, found.rollouts).keep
    assert keep[found.rollouts.sample_ids < 2].tolist() == [False, True] * 4


def test_answers_that_end_no_thought_are_refused():
    groups = [Group(0, Prompt("0"), (Sample("a", (7,)), Sample("b", (7,))))]
    planner = BudgetCuts()
    planner.first([groups[0].prompt], 2, 0, seed=1)
    refused(r"all 2 answers ended, and none holds '</think>'.*planner.mark", planner.look, groups, {0: [0.0, 1.0]}, 0)
    cut = replace(groups[0], samples=(replace(groups[0].samples[0], truncated=True), groups[0].samples[1]))
    assert planner.look([cut], {0: [0.0, 1.0]}, 0).requests


def test_wrong_answers_gain_nothing_by_being_short_and_a_failed_reward_stays_out():
    rows = of_samples(*(Sample("", (7,) * length) for length in (2, 4, 6, 2)))
    values = scores(torch.tensor([[1.0], [1.0], [1.0], [0.0]]))
    assert ShorterIsBetter(1.0)(values, rows, {}).values[:, 1].tolist() == [0.5, 0.0, -0.5, 0.0]
    failed = scores(torch.tensor([[1.0], [float("nan")], [1.0], [0.0]]), failed=torch.tensor([[False], [True], [False], [False]]))
    longest = scores(torch.tensor([[1.0], [1.0], [float("nan")], [0.0]]), failed=torch.tensor([[0], [0], [1], [0]]) > 0)
    assert ShorterIsBetter(1.0)(longest, rows, {}).values[:, 1].tolist() == [0.5, -0.5, 0.0, 0.0], "of those with a reward"
    for part in (ShorterIsBetter(), ModePays("a", "b")):
        assert part(failed, rows, {}).total().isnan().tolist() == [False, True, False, False]


def test_budgets_pay_for_an_end_mark_and_nothing_beyond_the_longest():
    rows = of_samples(
        *(Sample(text, (7,) * length) for text, length in (("</think>", 5), ("", 5), ("</think>", 11), ("</think>", 10)))
    )
    part = BudgetReward((0.5, 1.0), length=10)
    found = part(scores(torch.ones(4, 1)), rows, {}).total().tolist()
    # 5 of a budget of 5: 4 cos(pi/4); no mark: -1; longer than the longest: 0; 10 of 10: min(0, 0)
    assert found == pytest.approx([2.8284271, -1, 0, 0], abs=1e-6)


def test_budgets_without_scored_samples_get_nothing():
    rows = of_samples(*(Sample("", (7,)) for _ in range(4)))
    values = scores(torch.tensor([[1.0], [float("nan")], [0.0], [0.0]]))
    credit = WithinBudgets((0.5, 1.0))(values, rows)
    assert credit.keep.tolist() == [True, False, True, True] and credit.values.isfinite().all() and not credit.values[1].any()


def test_a_beginning_counts_as_drawn_at_its_share():
    """As likely as its share and otherwise unmoved, the ratio is 1."""
    mask = torch.ones(2, 2) > 0
    old = torch.tensor([[-5.0, -1.0], [-6.0, -2.0]])
    live = torch.tensor([[0.25, 0.0], [0.75, 0.0]]).log().where(torch.tensor([True, False]), old)
    values, metrics = EvenStart(share=0.25)({LOGPROBS: live, OLD_LOGPROBS: old}, make_batch(mask, torch.ones(2), {}))
    torch.testing.assert_close(metrics["policy/ratio"], torch.ones(2, 2))
    torch.testing.assert_close(values, -torch.ones(2, 2))


def test_signs_leave_rows_without_a_reward_out():
    credit = BySign(1.0, 0.0)(scores(torch.tensor([[1.0], [float("nan")], [0.0]])), rollouts(torch.ones(3, 1)))
    assert credit.keep.tolist() == [True, False, False] and credit.values[:, 0].tolist() == [1, 0, 0]


def asked(difficulty: float, words: int) -> Any:
    return with_columns(of_samples(Sample("w " * words, (7,) * 3)), difficulty=[difficulty])


def test_only_what_is_beyond_a_prompts_budget_costs():
    part = LengthBudget(hard_budget=20.0, easy_budget=5.0, per_uncertainty=10.0, slope=10.0)
    lead = {OLD_LEAD: torch.full((1, 1), 0.75)}  # a budget of 20 + 2.5 words where it is hard
    for difficulty, words, left in ((1, 5, 1.0), (1, 10, 0.5), (1, 99, 0.0), (4, 99, 1.0), (5, 22, 1.0), (5, 25, 0.75)):
        total = part(scores(torch.tensor([[2.0]])), asked(difficulty, words), lead).total()
        assert float(total) == pytest.approx(2 * left), (difficulty, words)
    assert float(part(scores(torch.tensor([[-1.0]])), asked(1, 99), lead).total()) == -1, "no gain by being long"
    in_tokens = replace(part, unit="tokens", easy_budget=1.0, per_uncertainty=0.0)
    assert in_tokens.reads == () and part.reads == (OLD_LEAD,)
    assert float(in_tokens(scores(torch.tensor([[2.0]])), asked(1, 99), {}).total()) == pytest.approx(2 * 0.8)


def test_lengths_are_of_tokens():
    flow = replace(PRESETS["flow_grpo"], shaping=(ShorterIsBetter(),))
    refused(r"counted in tokens.*take a text policy", make_trainer(flow, policy=FakeFlowPolicy()).step)
