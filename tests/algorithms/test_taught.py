"""Rows that are taught: whose text, which thoughts, and what is refused."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.algorithms.advantages.experts import Demonstrated, Preferred
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.kinds import KINDS
from mmrl.algorithms.objectives.given import Preference
from mmrl.algorithms.planners.taught import Pairs, PartlyTaught, Taught
from mmrl.core.readings import LOGPROBS, REF_LOGPROBS
from mmrl.core.types import Prompt, Request
from tests.support.rows import make_batch, rollouts, scores, weighed_loss, with_columns

PROMPT = Prompt("p", "which?", answer="(3,4)", columns={"completion": "<think>Left.</think>(3,4)", "number": 7})


def asked(planner: Taught, *prompts: Prompt, seed: int = 0) -> list[Request]:
    return list(planner.first(prompts, 8, 0, seed))


def test_one_row_per_prompt_with_the_text_of_its_column():
    requests = asked(Taught(), PROMPT, replace(PROMPT, id="q", columns={}), replace(PROMPT, id="r", answer=12, columns={}))
    assert [request.written for request in requests] == ["<think>Left.</think>(3,4)", "(3,4)", "12"]
    assert {(request.count, request.role) for request in requests} == {(1, "injected")}


def test_thoughts_are_dropped_by_seed_and_share_and_the_answer_stays():
    prompts = [replace(PROMPT, id=str(i)) for i in range(400)]
    texts = [request.written for request in asked(Taught(thought_dropout=0.25), *prompts)]
    assert set(texts) == {"<think>Left.</think>(3,4)", "<think>\n\n</think>(3,4)"}
    assert 70 < texts.count("<think>\n\n</think>(3,4)") < 130
    assert texts == [request.written for request in asked(Taught(thought_dropout=0.25), *prompts)]
    assert texts != [request.written for request in asked(Taught(thought_dropout=0.25), *prompts, seed=1)]
    assert {request.written for request in asked(Taught(thought_dropout=1.0), *prompts)} == {"<think>\n\n</think>(3,4)"}


def test_a_share_of_prompts_is_taught_and_the_others_are_sampled():
    prompts = [replace(PROMPT, id=str(i)) for i in range(200)]
    requests = PartlyTaught(share=0.25).first(prompts, 4, 0, 7)
    taught = [request for request in requests if request.role == "injected"]
    assert 30 < len(taught) < 70 and {(one.count, one.written is None) for one in taught} == {(1, False)}
    assert {(one.count, one.written) for one in requests if one.role == "policy"} == {(4, None)}
    assert requests == PartlyTaught(share=0.25).first(prompts, 4, 0, 7) != PartlyTaught(share=0.25).first(prompts, 4, 0, 8)


@pytest.mark.parametrize(
    ("planner", "prompt", "message"),
    [
        (Taught("trace"), PROMPT, r"prompt 'p' has nothing in the column 'trace', where .* \(its columns: completion, number\)"),
        (Taught("number"), PROMPT, "prompt 'p' has '7' in the column 'number'"),
        (Taught(), replace(PROMPT, answer=None, columns={}), r"has nothing in the column 'completion', .* \(its columns: none\)"),
        (Taught(), replace(PROMPT, answer=object(), columns={}), "has '<object .* in the column 'completion'"),
        (Taught(thought_dropout=0.5), replace(PROMPT, columns={}), "none of the 1 completions that were looked at has a thought"),
    ],
)
def test_refused(planner: Taught, prompt: Prompt, message: str):
    with pytest.raises(ValueError, match=message):
        planner.check_prompts([prompt])
    Taught().check_prompts([PROMPT])


def test_rows_without_a_reward_are_kept():
    rows = rollouts(torch.tensor([[1, 1, 1], [1, 1, 0]]), [0, 1])
    credit = Demonstrated()(scores(torch.tensor([[float("nan")], [1.0]])), rows)
    assert bool(credit.keep.all()) and torch.equal(credit.values, torch.ones(2, 3))
    assert KINDS["sft"].unscored


PAIR = Prompt("p", "which?", columns={"chosen": "left", "rejected": [{"role": "assistant", "content": [{"text": "right"}]}]})


def test_a_pair_is_two_rows_of_one_group_the_preferred_one_first():
    requests = list(Pairs().first([PAIR, replace(PAIR, id="q")], 8, 4, 0))
    assert [(one.group_id, one.written) for one in requests] == [(4, "left"), (4, "right"), (5, "left"), (5, "right")]
    credit = Preferred()(scores(torch.zeros(3, 0)), rollouts(torch.ones(3, 2), [0, 0, 1]))
    assert credit.values[:, 0].tolist()[:2] == [1, -1] and credit.keep.tolist() == [True, True, False]


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"chosen": "a"}, r"prompt 'p' has nothing in the column 'rejected', where .* \(its columns: chosen\)"),
        (
            {"chosen": "a", "rejected": "a"},
            "the same text in the columns 'chosen' and 'rejected', and such a pair teaches nothing",
        ),
        ({"chosen": [], "rejected": "a"}, r"has '\[\]' in the column 'chosen'"),
    ],
)
def test_pairs_that_teach_nothing_are_refused(columns: dict[str, object], message: str):
    with pytest.raises(ValueError, match=message):
        Pairs().check_prompts([replace(PAIR, columns=columns)])


def test_pairs_that_contradict_each_other_are_refused():
    turned = replace(PAIR, id="q", columns={"chosen": "right", "rejected": "left"})
    with pytest.raises(ValueError, match="prompts 'p' and 'q' are the same, and each prefers the completion that the other one"):
        Pairs().check_prompts([PAIR, turned])
    Pairs().check_prompts([PAIR, replace(PAIR, id="q"), replace(turned, text="which?!"), replace(turned, media=("a.png",))])


def loss_of(term: Preference, live: torch.Tensor, margin: float = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """Of one pair of two tokens and one, whose prompt has the column `margin`."""
    algorithm = Algorithm(((1.0, term),), aggregation=KINDS["dpo"].aggregation)
    rows, ref = with_columns(rollouts(torch.tensor([[1, 1], [1, 0]])), margin=[margin]), torch.tensor([[-0.5, -1.0], [-2.0, 9.0]])
    return weighed_loss(algorithm, make_batch(rows, torch.tensor([1.0, -1.0]), {REF_LOGPROBS: ref}), {LOGPROBS: live})


def test_smoothing_is_the_mixture_of_a_pair_and_itself_turned_over():
    live = torch.tensor([[-0.2, -0.9], [-2.5, 3.0]])
    margin = (-1.1 + 1.5) - (-2.5 + 2.0)
    (plain, of_plain), (mixed, of_mixed) = loss_of(Preference(0.5), live), loss_of(Preference(0.5, smoothing=0.1), live)
    assert plain.item() == pytest.approx(-torch.tensor(0.5 * margin).sigmoid().log().item())
    turned = -torch.tensor(-0.5 * margin).sigmoid().log().item()
    assert mixed.item() == pytest.approx(0.9 * plain.item() + 0.1 * turned)
    assert of_plain[0, 0] < of_mixed[0, 0] < 0 < of_mixed[1, 0] < of_plain[1, 0] and of_mixed[1, 1] == 0
    assert loss_of(Preference(0.5, smoothing=0.5), torch.tensor([[-0.5, -1.0], [-2.0, 9.0]]))[1].abs().max() == 0
    with pytest.raises(ValueError, match="loss is 'ipo'"):
        Preference(loss="ipo", smoothing=0.1)


def test_the_likelihood_of_the_chosen_is_its_mean_over_tokens():
    live = torch.tensor([[-0.2, -0.9], [-2.5, 3.0]])
    assert (loss_of(Preference(sft=0.4), live)[0] - loss_of(Preference(), live)[0]).item() == pytest.approx(0.4 * 0.55)


@pytest.mark.parametrize("live", [[[-0.2, -0.9], [-2.5, 3.0]], [[-0.9, -1.9], [-0.5, 3.0]]])
def test_a_robust_loss_is_right_on_average_over_turned_pairs(live: list[list[float]]):
    values, chance = torch.tensor(live), 0.3
    turned = torch.tensor([[-1.0, -2.0], [-4.0, 9.0]]) - values  # as far from the reference, the other way
    straight, other = (loss_of(Preference(0.5, "robust", smoothing=chance), x)[0] for x in (values, turned))
    expected = loss_of(Preference(0.5), values)[0]
    assert ((1 - chance) * straight + chance * other).item() == pytest.approx(expected.item(), rel=1e-5)
    assert loss_of(Preference(0.5, "robust"), values)[0].item() == pytest.approx(expected.item())


def test_clear_pairs_have_a_larger_beta():
    live = torch.tensor([[-0.2, -0.9], [-2.5, 3.0]])
    term = Preference(0.5, margin="margin", dynamic=0.8, rate=0.25)
    for margin in (0.0, 2.0, 1e6):
        beta = 0.5 * (1 + 0.8 * (1 - math.exp(-0.25 * margin)))
        assert loss_of(term, live, margin)[0].item() == pytest.approx(loss_of(Preference(beta), live)[0].item(), rel=1e-5)
    with pytest.raises(ValueError, match=r"has -1 in the column 'margin', as if the rejected one were better"):
        term.check_prompts([replace(PAIR, columns={"margin": -1.0})])
    with pytest.raises(ValueError, match="has nothing in the column 'margin', where a finite number is needed"):
        replace(KINDS["dpo"], objective=((1.0, term),)).check_prompts([PAIR])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "hinge", "smoothing": 0.1}, "loss is 'hinge'"),
        ({"loss": "robust", "smoothing": 0.5}, r"smoothing is 0\.5, and robust divides"),
        ({"loss": "ipo", "beyond": 0.5}, "beyond weighs sums of tokens, and loss is 'ipo'"),
    ],
)
def test_settings_of_pairs_that_do_not_go_together(settings: dict[str, Any], message: str):
    with pytest.raises(ValueError, match=message):
        Preference(**settings)
