"""Learning from what is given: rows that are taught, pairs, ratings and value heads, by formulas, and what is refused."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from mmrl.algorithms.advantages.experts import Demonstrated, Preferred
from mmrl.algorithms.advantages.segments import ValueGae
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.kinds import KINDS
from mmrl.algorithms.objectives.given import PairScores, Preference, Ratings
from mmrl.algorithms.objectives.regression import ValueFit
from mmrl.algorithms.planners.taught import Pairs, PartlyTaught, PicturePairs, Taught
from mmrl.algorithms.samplers.learned import NearestValue, nearest
from mmrl.algorithms.weights.aggregate import TokenMean
from mmrl.app.config import run as configs
from mmrl.app.run.beforehand import check_axes
from mmrl.app.run.build import build
from mmrl.core.readings import LOGPROBS, OLD_VALUE, REF_LOGPROBS, REWARD, VALUE
from mmrl.core.types import Batch, Prompt, Reading, Request, Rollouts
from mmrl.training.trainer import Trainer
from tests.support.refused import refused
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
    refused(message, planner.check_prompts, [prompt])
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
    refused(message, Pairs().check_prompts, [replace(PAIR, columns=columns)])


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
    refused("loss is 'ipo'", Preference, loss="ipo", smoothing=0.1)


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
        ({"loss": "ipo", "beyond": 0.5}, "beyond is 0.5: it counts with loss = .*, and loss is 'ipo'"),
    ],
)
def test_settings_of_pairs_that_do_not_go_together(settings: dict[str, Any], message: str):
    refused(message, Preference, **settings)


LOOKS, TEXT = Reading("score/looks"), Reading("score/text")
AXES = ("looks", "text")
LIVE = {
    LOOKS: torch.tensor([[0.5, 0.5], [-0.25, 0.0], [1.0, 1.0], [2.0, 2.0]]),
    TEXT: torch.tensor([[3.0, 3.0], [1.0, 0.0], [0.5, 0.5], [0.2, 0.2]]),
}


def pairs(*columns: dict[str, object]) -> Batch:
    """Two pairs, of which the second speaks of another axis and has a margin, unless `columns` say otherwise."""
    rows = rollouts(torch.tensor([[1, 1], [1, 0], [1, 1], [1, 1]]), [4, 4, 7, 7])
    said = columns or ({}, {"axis": "text", "margin": 0.4})
    groups = [replace(group, prompt=Prompt("p", columns=own)) for group, own in zip(rows.groups, said, strict=True)]
    return make_batch(replace(rows, groups=tuple(groups)), torch.tensor([1.0, -1.0, 1.0, -1.0]), {})


def scored_loss(term: PairScores | Ratings, batch: Batch, of: Reading = LOOKS) -> tuple[float, torch.Tensor]:
    algorithm = Algorithm(((1.0, term),), aggregation=KINDS["scores"].aggregation)
    loss, gradient = weighed_loss(algorithm, batch, LIVE, of)
    return loss.item(), gradient.sum(1)


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


def test_pairs_are_bradley_and_terrys_on_the_axis_of_their_prompt():
    first, second = softplus(-0.75), softplus(0.4 - 0.3)
    loss, of_looks = scored_loss(PairScores(AXES), pairs())
    assert loss == pytest.approx((first + second) / 2)
    pull = 1 / (1 + math.exp(0.75)) / 2
    assert of_looks.tolist() == pytest.approx([-pull, pull, 0, 0])
    _, of_text = scored_loss(PairScores(AXES), pairs(), TEXT)
    pull = 1 / (1 + math.exp(0.3 - 0.4)) / 2
    assert of_text.tolist() == pytest.approx([0, 0, -pull, pull])


def test_scores_are_kept_around_zero_by_the_square_of_a_pairs_sum():
    loss, gradient = scored_loss(PairScores(AXES, center=0.1), pairs())
    plain, before = scored_loss(PairScores(AXES), pairs())
    assert loss - plain == pytest.approx(0.1 * (0.25**2 + 0.7**2) / 2)
    assert (gradient - before).tolist() == pytest.approx([0.1 * 0.25, 0.1 * 0.25, 0, 0])


def test_ratings_are_squares():
    loss, gradient = scored_loss(Ratings(AXES), pairs({"rating": 1}, {"rating": 0.5, "axis": "text"}))
    assert loss == pytest.approx((0.5**2 + 1.25**2 + 0 + 0.3**2) / 4)
    assert gradient.tolist() == pytest.approx([2 * -0.5 / 4, 2 * -1.25 / 4, 0, 0])


@pytest.mark.parametrize(
    ("term", "columns", "message"),
    [
        (PairScores(AXES), {"axis": "sound"}, "prompt 'p' is about the axis 'sound', and trained are looks, text: name it"),
        (PairScores(), {"margin": "much"}, "prompt 'p' has 'much' in the column 'margin', where a finite number is needed"),
        (PairScores(), {"margin": math.inf}, "has inf in the column 'margin'"),
        (Ratings(), {}, "prompt 'p' has nothing in the column 'rating'"),
        (Ratings(), {"rating": True}, "has True in the column 'rating'"),
    ],
)
def test_columns_that_say_nothing_are_refused(term: PairScores | Ratings, columns: dict[str, object], message: str):
    refused(message, term.check_prompts, [Prompt("p", "", columns=columns)])
    with pytest.raises(ValueError, match="all 2 ratings that were looked at are 3, so"):
        Ratings().check_prompts([Prompt(name, "", columns={"rating": 3}) for name in "pq"])
    PairScores(AXES).check_prompts([Prompt("p", "", columns={"axis": "text", "margin": 2})])


RED, BLUE = (Image.new("RGB", (8, 8), color) for color in ("red", "blue"))


def test_the_preferred_picture_is_shown_first_and_nothing_is_written_of_either():
    prompts = [Prompt("p", "a red square", (BLUE, RED), columns={"preferred": 1}), Prompt("q", "", (BLUE, RED))]
    requests = list(PicturePairs().first(prompts, 8, 3, 0))
    assert [one.shown_prompt.media for one in requests] == [(RED,), (BLUE,), (BLUE,), (RED,)]
    assert [(one.group_id, one.written, one.role) for one in requests] == [(i, "", "injected") for i in (3, 3, 4, 4)]
    assert all(one.shown.trained for one in requests)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (Prompt("p", "", (RED,)), "prompt 'p' shows 1, where two pictures are compared: give two"),
        (
            Prompt("p", "", (RED, BLUE), columns={"preferred": 0.5}),
            "has 0.5 in the column 'preferred', .* leave undecided pairs out",
        ),
    ],
)
def test_pairs_of_pictures_that_decide_nothing_are_refused(prompt: Prompt, message: str):
    refused(message, PicturePairs().check_prompts, [prompt])


MASK = torch.tensor([[1, 1, 0, 1, 1], [1, 1, 1, 0, 0], [0, 1, 1, 1, 1], [1, 0, 0, 0, 0]])
TOTALS = torch.tensor([1.0, 0.25, 0.5, float("nan")], dtype=torch.float64)
CUT = [False, True, False, True]


def rows_of(values: Tensor) -> Rollouts:
    """Rows with holes, some of them cut, one without a reward."""
    return replace(rollouts(MASK, truncated=CUT), recorded={OLD_VALUE: values})


def by_hand(part: ValueGae, reward: float, values: list[float], is_cut: bool) -> list[float]:
    """Every action's sum, written out."""
    ends = values[-1] if is_cut else 0.0
    ahead = [*values[1:], ends]
    gains = [part.gamma * later - here for here, later in zip(values, ahead, strict=True)]
    gains[-1] += 0.0 if is_cut else reward
    falls = part.gamma * part.decay
    return [sum(falls**k * gain for k, gain in enumerate(gains[t:])) for t in range(len(gains))]


@pytest.mark.parametrize("part", [ValueGae(), ValueGae(0.9, 0.5), ValueGae(decay=1.0), ValueGae(extends=False)])
def test_every_action_is_compared_with_what_the_head_expected(part: ValueGae):
    values = torch.rand(MASK.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    credit = part(scores(TOTALS[:, None]), rows_of(values))
    assert credit.keep.tolist() == [True, True, True, False] and not credit.values[3].any()
    assert not credit.values[~MASK.bool()].any()
    for i in range(3):
        own = MASK[i].bool()
        expected = by_hand(part, float(TOTALS[i]), values[i, own].tolist(), CUT[i] and part.extends)
        torch.testing.assert_close(credit.values[i, own], torch.tensor(expected, dtype=torch.float64))


def test_the_head_learns_from_rows_that_ended():
    algorithm = Algorithm(((0.5, ValueFit(gamma=0.9)),), aggregation=TokenMean())
    mask, ones = MASK.bool(), torch.ones(MASK.shape, dtype=torch.float64)
    rows = rollouts(mask, truncated=CUT)
    batch = make_batch(rows, ones, {REWARD: TOTALS[:, None].expand(MASK.shape)})
    values = torch.rand(MASK.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    loss, gradient = weighed_loss(algorithm, batch, {VALUE: values}, VALUE)
    expected, count = 0.0, int(mask.sum())
    for i in (0, 2):
        places = mask[i].nonzero()[:, 0].tolist()
        for k, t in enumerate(reversed(places)):
            off = float(values[i, t]) - 0.9**k * float(TOTALS[i])
            expected += 0.5 * off**2 / count
            assert float(gradient[i, t]) == pytest.approx(off / count, rel=1e-5)
    assert float(loss) == pytest.approx(expected, rel=1e-5)
    assert not gradient[[1, 3]].any()


WORDS = [
    'algorithm.advantage={kind="ValueGae"}',
    'algorithm.objective=[{kind="Clip"}, {kind="ValueFit", coef=0.5}]',
    'policy.scores=["value"]',
    'algorithm.planner={kind="Taught"}',
    "algorithm.group_size=1",
    "algorithm.minibatches=2",
    "data.written=right",
]
"""Completions of the data, which end whatever the weights are."""


def weights_of(trainer: Trainer) -> dict[str, Tensor]:
    return {name: weight.detach().clone() for name, weight in trainer.policy.net.model.named_parameters()}  # type: ignore[attr-defined]


def test_the_head_trains_with_the_policy_and_goes_on_exactly():
    resolved = configs.load("tiny/image", WORDS)
    check_axes(resolved.config)
    whole = build(resolved).trainer
    metrics = whole.step()
    assert metrics["policy/value_error"] > 0
    state, at_once = copy.deepcopy(whole.state_dict()), weights_of(whole)
    assert at_once["score_head.weight"].abs().max() > 0, "it begins at 0"
    whole.step()
    resumed = build(resolved).trainer
    resumed.load_state_dict(state)
    assert all(torch.equal(weight, at_once[name]) for name, weight in weights_of(resumed).items())
    resumed.step()
    wanted = weights_of(whole)
    assert not torch.equal(wanted["score_head.weight"], at_once["score_head.weight"])
    assert all(torch.equal(weight, wanted[name]) for name, weight in weights_of(resumed).items())


JUDGED = [
    'algorithm.objective=[{kind="Clip"}, {kind="ValueFit", coef=0.5, group=true}]',
    'policy.scores=["value"]',
    "algorithm.group_size=2",
    "algorithm.minibatches=2",
    "prompts_per_step=2",
    'sampler.kind="NearestValue"',
    "sampler.pool=3",
]


def test_prompts_are_drawn_by_what_the_head_expects_and_again_after_a_pause():
    resolved = configs.load("tiny/image", JUDGED)
    whole = build(resolved).trainer
    assert whole.step()["policy/value_error"] > 0
    asked = list[tuple[list[str], list[float]]]()
    sampler: Any = whole.sampler
    judge = sampler.judge

    def noted(prompts):
        values = judge(prompts)
        asked.append(([prompt.id for prompt in prompts], values))
        return values

    sampler.ask(noted)
    state = copy.deepcopy(whole.state_dict())
    drawn = [prompt.id for prompt in whole.sampler.draw(2)]
    ((ids, values),) = asked
    assert len(ids) == 6 and len(set(values)) > 1 and drawn == [ids[i] for i in nearest(values, 0.5, 2)]
    resumed = build(resolved).trainer
    resumed.load_state_dict(state)
    assert [prompt.id for prompt in resumed.sampler.draw(2)] == drawn
    known = [*sampler.prompts[:3]]
    gone = judge([replace(known[0], media=("gone.png",)), *known[1:]])
    assert math.isnan(gone[0]) and gone[1:] == pytest.approx(judge(known)[1:], abs=1e-5)
    assert nearest([0.4, math.nan, 0.5], 0.5, 2) == [1, 2]
    assert nearest([0.5, math.nan, 0.4], 0.5, 2) == [0, 1], "what cannot be shown is drawn, and refused or skipped as ever"


def test_nobody_expects_anything_without_a_head():
    refused(r"asks a value head: set policy.scores", NearestValue([Prompt("a")]).draw, 1)
