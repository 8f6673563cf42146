"""Shapings, masks, and parts of video methods: bonuses, gates and minima by hand, signs, and what planners ask for."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.algorithms.advantages.decoupled import Decoupled
from mmrl.algorithms.advantages.experts import AnchoredNorm
from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.masks.truncated import DropTruncated
from mmrl.algorithms.objectives.penalties import Perception, Surprise
from mmrl.algorithms.objectives.regression import AdvantageRegression
from mmrl.algorithms.planners.video import DifficultyAware, Probed, WithTruth
from mmrl.algorithms.presets.video import papo, t_grpo
from mmrl.algorithms.shaping.combine import Gate, Minimum, Unlikeliness
from mmrl.algorithms.shaping.thinking import OverlongPenalty
from mmrl.algorithms.shaping.video import ConsistencyBonus, LengthBonus, SoftReward, TemporalBonus
from mmrl.algorithms.views import Degrade, MaskPatches, ShuffleFrames, column
from mmrl.algorithms.weights.importance import Difficulty, GroupDivergence
from mmrl.answers.spans.interval import Interval
from mmrl.core.readings import ANSWER_MASK, EMA_LOGPROBS, GROUP_DIVERGENCE, LOGPROBS, MASKED_LOGPROBS, OLD_LOGPROBS
from mmrl.core.types import Group, Prompt, Sample, Status, Video
from tests.support.refused import refused
from tests.support.rows import counts_of, make_batch, rollouts, scores, weighed_loss, with_columns, with_fields

CLIP = Video("a.mp4", fps=2.0)


def picture(seed: int = 0, width: int = 30, height: int = 20) -> Image.Image:
    return Image.fromarray(np.random.RandomState(seed).randint(1, 255, (height, width, 3), dtype=np.uint8))


# views


def test_shuffled_frames_are_the_same_frames_in_an_order_of_the_seed():
    prompt = Prompt("v", "when?", (CLIP, "x.png"))
    shown = ShuffleFrames()(prompt, 2**40 + 5)
    assert shown == replace(prompt, media=(replace(CLIP, shuffle=5 + 2**40 % 2**31), "x.png"))
    pictures = Prompt("p", "which?", tuple("abcdef"))
    orders = {ShuffleFrames()(pictures, seed).media for seed in range(5)}
    assert len(orders) == 5
    assert all(sorted(order) == list("abcdef") for order in orders)
    assert ShuffleFrames()(pictures, 3) == ShuffleFrames()(pictures, 3)


def test_degraded_pictures_are_noisier_and_clips_ask_for_noise():
    prompt = Prompt("p", "what?", (picture(), CLIP, Video("b.mp4", frames=8), Video("c.mp4")))
    plain = np.asarray(prompt.media[0]).astype(float)
    shown = [Degrade(strength)(prompt, 3).media for strength in (0.05, 0.25)]
    noise = [np.abs(np.asarray(media[0]) - plain).mean() for media in shown]
    assert 5 < noise[0] < noise[1] < 60
    assert list(shown[1][1:]) == [replace(one, noise=(0.25, 4 + i)) for i, one in enumerate(prompt.media[1:])]
    assert (np.asarray(Degrade(0.05)(prompt, 3).media[0]) == np.asarray(shown[0][0])).all()


def test_masked_patches_are_black_and_the_others_untouched():
    prompt = Prompt("p", "what?", (picture(width=100, height=90), picture(1)))
    plain, shown = (np.asarray(one.media[0]) for one in (prompt, MaskPatches(0.6, 10)(prompt, 4)))
    black = [(shown[y : y + 10, x : x + 10] == 0).all() for y in range(0, 90, 10) for x in range(0, 100, 10)]
    same = [
        (shown[y : y + 10, x : x + 10] == plain[y : y + 10, x : x + 10]).all()
        for y in range(0, 90, 10)
        for x in range(0, 100, 10)
    ]
    assert all(a != b for a, b in zip(black, same, strict=True))
    assert 0.4 < np.mean(black) < 0.8
    assert (np.asarray(MaskPatches(0.0)(prompt, 4).media[0]) == plain).all()
    refused(r"prompt 'v' shows a clip.*pictures only", MaskPatches(), Prompt("v", "", (CLIP,)), 0)


def test_views_are_named_by_the_parts_that_need_them():
    assert t_grpo.views == {"shuffled": ShuffleFrames()}
    assert papo.views == {"masked": MaskPatches()}
    assert Algorithm().views == {}
    objective = ((1.0, Perception()), (1.0, Perception(MaskPatches(0.1))))
    with pytest.raises(ValueError, match=r"two parts call different views 'masked'"):
        Algorithm(objective=objective).views  # noqa: B018 - the property raises


# weights and terms


def test_rows_that_differ_nowhere_weigh_all_actions_alike():
    batch = make_batch(torch.ones(1, 3), torch.zeros(1), {GROUP_DIVERGENCE: torch.zeros(1, 3)})
    assert (GroupDivergence(alpha=1.4)(batch, counts_of(batch)) == 1).all()


def regressed(live: torch.Tensor, advantages: torch.Tensor, ids: list[int], mask: torch.Tensor, **settings):
    batch = make_batch(mask, advantages, {OLD_LOGPROBS: torch.full_like(live, -1.0)}, ids)
    return weighed_loss(AdvantageRegression(**settings), batch, {LOGPROBS: live})


def test_regression_is_policy_gradient_where_a_step_starts():
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 1]])
    advantages = torch.tensor([1.0, -1.0, 0.0, 0.0], dtype=torch.float64)
    live = torch.full((4, 3), -1.0, dtype=torch.float64)
    live[2] = -3.0  # of a group without a signal
    loss, gradient = regressed(live, advantages, [0, 0, 1, 1], mask, eps=0.5)
    # -2 A / (eps rows), for every action alike; the group without a signal gives nothing
    assert gradient.tolist() == [[-1, -1, 0], [1, 1, 1], [0, 0, 0], [0, 0, 0]]
    assert float(loss) == pytest.approx(0.5)


@pytest.mark.parametrize("level", ["sum", "mean"])
def test_regression_by_a_loop(level):
    rng = torch.Generator().manual_seed(0)
    live = torch.randn(7, 4, generator=rng, dtype=torch.float64)
    mask = torch.rand(7, 4, generator=rng) < 0.7
    mask[2] = False
    ids, advantages = [0, 1, 0, 1, 0, 1, 1], torch.randn(7, generator=rng, dtype=torch.float64)
    loss, _ = regressed(live, advantages, ids, mask, level=level, eps=0.3)
    expected, rows = 0.0, [i for i in range(7) if mask[i].any()]
    rho = {i: sum(float(live[i, t]) + 1 for t in range(4) if mask[i, t]) / (1 if level == "sum" else mask[i].sum()) for i in rows}
    for i in rows:
        own = [float(rho[j]) for j in rows if ids[j] == ids[i]]
        mean = sum(own) / len(own)
        deviation = (sum((x - mean) ** 2 for x in own) / len(own)) ** 0.5
        expected += (float(advantages[i]) - (float(rho[i]) - mean) / (deviation + 0.3)) ** 2 / len(rows)
    assert float(loss) == pytest.approx(expected)


def test_perception_raises_what_pictures_make_likelier():
    live, masked = torch.tensor([[-1.0, -1.0, -1.0]]), torch.tensor([[-2.0, -0.5, torch.nan]])
    mask = torch.tensor([[True, True, False]])
    batch = make_batch(mask, torch.zeros(1), {MASKED_LOGPROBS: masked})
    _, gradient = weighed_loss(Algorithm(objective=((0.01, Perception()),)), batch, {LOGPROBS: live})
    assert gradient[0, 0] < 0 < gradient[0, 1]
    assert gradient[0, 2] == 0
    _, gradient = weighed_loss(Algorithm(objective=((0.03, Surprise()),)), batch, {LOGPROBS: live})
    torch.testing.assert_close(gradient, torch.tensor([[-0.015, -0.015, 0.0]]))


# shaping and credit


def test_bonuses_are_of_groups_and_leave_the_reward_alone():
    table = scores(torch.tensor([[1.0, 0.9], [0.5, 0.2], [0.0, 0.9], [0.2, 0.2], [1.0, torch.nan]]), [2.0, 0.0])
    table = replace(table, names=("acc", column("acc", "shuffled")))
    found = TemporalBonus()(table, rollouts(torch.ones(5, 1), [0, 1, 0, 1, 2]), {})
    # group 0: 0.5 < 0.8 * 0.9; group 1: 0.35 >= 0.8 * 0.2; group 2 was not probed
    torch.testing.assert_close(found.values[:, 2], torch.tensor([0, 0.3, 0, 0.3, torch.nan]), equal_nan=True)
    assert found.status[:, 2].tolist() == [0, 0, 0, 0, Status.NA]
    assert found.names[-1] == "temporal" and found.weights.tolist() == [2, 0, 2]
    assert torch.equal(found.values[:, :2].nan_to_num(), table.values.nan_to_num())
    torch.testing.assert_close(found.total(), torch.tensor([2, 1.6, 0, 1.0, 2]))


def test_without_probes_nothing_is_added_to_the_total():
    table = scores(torch.tensor([[1.0], [0.0]]))
    found = TemporalBonus()(table, rollouts(torch.ones(2, 1)), {})
    assert found.total().tolist() == [1, 0]
    with pytest.raises(ValueError, match=r"TemporalBonus.reward is 'acc'; the run has the rewards \['reward_0'\]"):
        TemporalBonus(reward="acc")(table, rollouts(torch.ones(2, 1)), {})


def test_length_bonus_wants_several_right_ones_of_the_right_length():
    mask = torch.arange(9) < torch.tensor([5, 3, 9, 4, 5, 5])[:, None]
    table = scores(torch.tensor([[1.0], [1], [1], [0], [1], [0]]))
    found = LengthBonus(low=4, high=8)(table, rollouts(mask, [0, 0, 0, 0, 1, 1]), {})
    torch.testing.assert_close(found.values[:, 1], torch.tensor([0.2, 0, 0, 0, 0, 0]))


def test_soft_rewards_take_the_place_of_the_reward():
    table = scores(
        torch.tensor([[1.0, 5.0], [0.0, 5.0], [torch.nan, 5.0]]), [3.0, 1.0], torch.tensor([[False, False]] * 2 + [[True, False]])
    )
    found = SoftReward()(table, rollouts(torch.ones(3, 1)), {})
    assert found.names[-1] == "reward_0_soft" and found.weights.tolist() == [0, 1, 3]
    assert found.total()[:2].tolist() == pytest.approx([5 + 3 * 0.8018232, 5 + 3 * 0.0867637])
    assert found.total()[2].isnan(), "a failed reward is not repaired"


def test_anchored_credit_does_not_lower_the_policys_own():
    rows = with_fields(rollouts(torch.ones(4, 1)), role=["policy", "policy", "policy", "injected"])
    values = AnchoredNorm(anchor=2.0)(scores(torch.tensor([[0.0], [1.0], [2.0], [50.0]])), rows).values[:, 0]
    torch.testing.assert_close(values, torch.tensor([-1.0, 0.0, 1.0, 2.0]), atol=1e-5, rtol=0)
    same = AnchoredNorm()(scores(torch.tensor([[1.0], [1.0], [1.0], [50.0]])), rows).values
    assert not same.any()


def test_consistent_answers_may_be_a_little_less_expected_than_the_mean():
    ema = torch.tensor([0.84, 0.80, 0.70, 0.99, 0.5, 0.5]).log()[:, None]
    frozen = {EMA_LOGPROBS: torch.cat([ema, ema - 9], dim=1), ANSWER_MASK: torch.tensor([[1.0, 0.0]] * 6)}
    table = scores(torch.tensor([[1.0], [1.0], [1.0], [0.0], [0.0], [0.0]]))
    rows = rollouts(torch.ones(6, 2), [0, 0, 0, 0, 1, 1])
    # mean over the right ones of group 0: 0.78; nobody is right in group 1
    for margin, expected in ((0.01, [0.5, 0.5, 0]), (0.09, [0.5, 0.5, 0.5]), (-0.03, [0.5, 0, 0])):
        bonus = ConsistencyBonus(margin=margin)(table, rows, frozen).values[:, 1]
        assert bonus.tolist() == [*expected, 0, 0, 0], margin


# planners


def test_probes_are_for_prompts_whose_order_can_be_shuffled():
    prompts = [Prompt("clip", media=(CLIP,)), Prompt("text"), Prompt("two", media=("a", "b")), Prompt("one", media=("a",))]
    requests = Probed().first(prompts, group_size=8, first_id=3, seed=1)
    assert [(r.prompt.id, r.count, r.group_id) for r in requests if r.role == "policy"] == [
        (p.id, 8, i) for i, p in enumerate(prompts, 3)
    ]
    probes = [r for r in requests if r.role == "probe"]
    assert [(r.prompt.id, r.count, r.group_id, r.view) for r in probes] == [("clip", 4, 3, "shuffled"), ("two", 4, 5, "shuffled")]
    assert len({r.seed for r in requests}) == 6


def test_the_truth_is_one_of_the_group():
    prompts = [Prompt(str(i), "when?", answer=answer) for i, answer in enumerate([Interval(1.5, 4), "B", (0, 2), 3, ["A", "C"]])]
    requests = WithTruth().first(prompts, group_size=4, first_id=0, seed=1)
    assert [(r.count, r.role, r.group_id) for r in requests] == [
        x for i in range(5) for x in ((3, "policy", i), (1, "injected", i))
    ]
    texts = ["1.50 to 4.00", "B", "0.00 to 2.00", "3", "A, C"]
    assert [r.written for r in requests[1::2]] == [f"<answer>{text}</answer>" for text in texts]
    assert all(a.prompt is b.prompt for a, b in zip(requests[::2], requests[1::2], strict=True))
    refused(r"prompt 'x' has the answer \{\}", WithTruth().first, [Prompt("x", answer={})], 4, 0, 1)
    refused(r"span 3 to 9 \(frames\)", WithTruth().first, [Prompt("x", answer=Interval(3, 9, "frames"))], 4, 0, 1)
    refused(r"group_size to 2 or more", WithTruth().first, prompts, 1, 0, 1)


def test_some_prompts_ask_for_the_answer_alone():
    prompts = [Prompt(str(i), "when?", answer="B") for i in range(200)]
    planner = WithTruth(direct=0.3, think_text="Think.")
    texts = [r.prompt.text for r in planner.first(prompts, 4, 0, 1)[::2]]
    assert set(texts) == {"when?\nThink.", "when?\nAnswer at once, without thinking."}
    assert 30 < texts.count("when?\nAnswer at once, without thinking.") < 90
    assert texts == [r.prompt.text for r in planner.first(prompts, 4, 0, 1)[::2]]
    assert texts[10:] == [r.prompt.text for r in planner.first(prompts[10:], 4, 10, 1)[::2]]


def look(planner: DifficultyAware, rewards: dict[int, list[float]], round_index: int, texts: dict[int, list[str]] | None = None):
    groups = [
        Group(i, Prompt("light"), tuple(Sample(text) for text in (texts or {}).get(i, [""] * len(values))))
        for i, values in rewards.items()
    ]
    rows = [(i, value) for i, values in rewards.items() for value in values]
    table = scores(torch.tensor([[value] for _, value in rows]))
    return planner.revise(groups, table, torch.tensor([i for i, _ in rows]), len(groups), round_index)


def test_hard_prompts_get_a_hint_and_easy_ones_a_worse_picture():
    planner = DifficultyAware(window=4, hint_per_reward=1.0, noise_per_reward=0.5, guides=2)
    prompts = [Prompt(str(i), f"what? {i}", (Video("a.mp4", fps=2.0),), answer="B") for i in range(3)]
    planner.first(prompts, 2, 0, seed=1)
    first = look(planner, {0: [0.5, 0.5], 1: [0.4, 0.6], 2: [0.5, 0.5]}, 0)
    assert not first.requests and not first.drop_groups, "nobody knows yet what is hard"
    planner.first(prompts, 2, 3, seed=1)
    revision = look(planner, {3: [0.0, 0.0], 4: [0.45, 0.5], 5: [1.0, 1.0]}, 0)
    # the last four rewards had the mean 0.5
    guide, worse = revision.requests
    assert revision.drop_groups == {3, 5}
    assert (guide.group_id, guide.count, guide.prompt.text) == (3, 2, "what? 0\nThe right answer is B. Show how one finds it.")
    assert guide.prompt.media == prompts[0].media, "the prompt is the one that was drawn, with its media"
    assert (worse.group_id, worse.count, worse.prompt.text) == (5, 2, "what? 2")
    assert worse.prompt.media[0].noise[0] == pytest.approx(0.25)
    assert replace(worse.prompt.media[0], noise=None) == CLIP, "all of its frames are shown"
    revision = look(planner, {3: [0.2, 0.9], 4: [0.45, 0.5], 5: [0.5, 0.5]}, 1, {3: ["no no no", "12345678"]})
    [hint] = revision.requests
    assert (hint.prompt.text, hint.count, hint.group_id) == ("what? 0\nBegin like this: 1234", 2, 3)
    assert revision.drop_groups == {3}
    assert len({guide.seed, hint.seed, planner.first(prompts, 2, 3, seed=1)[0].seed}) == 3
    assert look(planner, {3: [0.2, 0.9]}, 2) == type(revision)()
    assert list(planner.memory.rewards) == pytest.approx([0.45, 0.5, 1.0, 1.0]), "rewards of hinted prompts are not remembered"


def test_difficulty_is_remembered_from_run_to_run():
    planner = DifficultyAware(window=3)
    planner.first([Prompt("a")], 4, 0, 0)
    look(planner, {0: [0.1, 0.2, torch.nan, 0.4]}, 0)
    other = DifficultyAware(window=3)
    other.load_state_dict(planner.state_dict())
    assert list(other.memory.rewards) == pytest.approx([0.1, 0.2, 0.4])
    assert not replace(planner).memory.rewards, "a new run knows nothing"
    with pytest.raises(ValueError, match=r"remembers 3 rewards, this run 4.*algorithm.planner.window"):
        DifficultyAware(window=4).load_state_dict(planner.state_dict())


def test_overlong_penalty_is_a_reward_of_its_own():
    mask = torch.arange(12) < torch.tensor([4, 6, 8, 10, 12])[:, None]
    failed = torch.tensor([[False], [True], [False], [False], [False]])
    table = scores(torch.ones(5, 1), failed=failed)
    shaped = OverlongPenalty(length=10, buffer=4)(table, rollouts(mask), {})
    assert shaped.names == ("reward_0", "overlong")
    assert shaped.values[:, 1].tolist() == [0, 0, -0.5, -1, -1]
    assert shaped.status[:, 1].tolist() == [Status.OK] * 5
    assert shaped.total()[[0, 2, 3, 4]].tolist() == [1, 0.5, 0, 0]
    assert shaped.total()[1].isnan(), "a failed reward is not repaired by a penalty"
    # a fifth of the length unless told otherwise
    assert OverlongPenalty(length=10)(table, rollouts(mask), {}).values[:, 1].tolist() == [0, 0, 0, -1, -1]


def test_overlong_penalty_wants_a_length_and_its_name():
    with pytest.raises(ValueError, match=r"OverlongPenalty.length is not set.*max_new_tokens"):
        OverlongPenalty()(scores(torch.ones(1, 1)), rollouts(torch.ones(1, 1)), {})
    taken = replace(scores(torch.ones(1, 1)), names=("overlong",))
    refused("rename the reward", OverlongPenalty(10), taken, rollouts(torch.ones(1, 1)), {})


def test_truncated_rows_do_not_train():
    rows = rollouts(torch.tensor([[1, 1], [1, 0], [1, 1]]), [4, 2, 4], truncated=[False, False, True])
    assert DropTruncated()(rows).tolist() == [[True, True], [True, False], [False, False]]


def test_difficulty_is_a_column_of_the_prompt():
    batch = make_batch(with_columns(rollouts(torch.ones(3, 2), [1, 0, 1]), difficulty=[2, 1]), torch.zeros(3), {})
    assert Difficulty()(batch, counts_of(batch)).tolist() == [[2, 2], [1, 1], [2, 2]]
    refused(r"prompt '1' has nothing in the column 'size'.*name another column", Difficulty("size"), batch, counts_of(batch))


NAN = float("nan")


def table(values, weights=None, failed=None, names=("accuracy", "format")):
    made = scores(torch.tensor(values), weights, None if failed is None else torch.tensor(failed))
    return replace(made, names=tuple(names))


def rows(count):
    return rollouts(torch.ones(count, 1))


def test_a_gate_multiplies_and_keeps_both_columns():
    given = table([[0.8, 1.0], [0.8, 0.0], [0.4, 0.5]], [2.0, 0.0])
    gated = Gate(by="format")(given, rows(3), {})
    assert gated.names == ("accuracy", "format", "accuracy_gated")
    assert gated.weights.tolist() == [0, 0, 2]
    assert gated.values[:, :2].equal(given.values), "what the rewards said stays in the log"
    assert gated.total().tolist() == pytest.approx([1.6, 0, 0.4])
    assert Gate(by="format", at_least=0.5)(given, rows(3), {}).total().tolist() == pytest.approx([1.6, 0, 0.8])


def test_a_gate_with_weight_still_adds_its_own():
    gated = Gate(by="format")(table([[0.5, 1.0], [0.5, 0.0]], [1.0, 0.25]), rows(2), {})
    assert gated.total().tolist() == [0.75, 0]


def test_a_failed_gate_fails_what_it_gates_and_one_that_does_not_apply_gates_nothing():
    given = table([[0.8, NAN], [0.8, 1.0]], [1.0, 0.0], failed=[[False, True], [False, False]])
    assert Gate()(given, rows(2), {}).status[:, 2].tolist() == [Status.FAILED, Status.OK]
    assert Gate()(given, rows(2), {}).total()[0].isnan()
    assert Gate()(table([[0.8, NAN]], [1.0, 0.0]), rows(1), {}).total().tolist() == [pytest.approx(0.8)]
    failed = table([[NAN, 0.0]], [1.0, 0.0], failed=[[True, False]])
    assert Gate()(failed, rows(1), {}).status[0, 2] == Status.FAILED


def test_gates_name_rewards():
    given = table([[0.5, 0.5, 0.0]], [1.0, 1.0, 0.0], names=("iou", "count", "format"))
    assert Gate(rewards=("iou",))(given, rows(1), {}).weights.tolist() == [0, 1, 0, 1]
    assert Gate()(given, rows(1), {}).names[3:] == ("iou_gated", "count_gated")
    with pytest.raises(
        ValueError, match=r"Gate\.by is 'forma'; the run has the rewards \['iou', 'count', 'format'\]: name one of them"
    ):
        Gate(by="forma")(given, rows(1), {})
    refused("'iou_gated' already", Gate(), replace(given, names=("iou", "iou_gated", "format")), rows(1), {})


def test_the_minimum():
    given = table([[0.8, 0.5, 0.0], [0.1, NAN, 0.0], [NAN, NAN, 0.0]], [3.0, 1.0, 0.0], names=("a", "b", "log"))
    least = Minimum(weight=2.0)(given, rows(3), {})
    assert least.names[-1] == "minimum" and least.weights.tolist() == [0, 0, 0, 2]
    assert least.total().tolist()[:2] == pytest.approx([1.0, 0.2])
    assert least.status[:, 3].tolist() == [Status.OK, Status.OK, Status.NA] and least.total()[2].isnan()
    failed = table([[0.8, NAN]], failed=[[False, True]])
    assert Minimum()(failed, rows(1), {}).status[0, 2] == Status.FAILED
    assert Minimum(rewards=("format",))(table([[0.8, 0.3]]), rows(1), {}).total().tolist() == pytest.approx([1.1])


def test_the_unlikely_earns_more():
    logprobs = torch.tensor([[-1.0, -1.0], [-0.1, -9.0], [-0.5, 0.0], [-2.0, 0.0]])
    mask = torch.tensor([[1, 1], [1, 0], [1, 1], [1, 0]])
    given = table([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [0.0, 1.0]], [1.0, 0.0])
    shaped = Unlikeliness(0.4)(given, rollouts(mask, [0, 0, 0, 1]), {OLD_LOGPROBS: logprobs})
    # means -1, -0.1, -0.25: ranks 0, 2, 1 of three
    assert shaped.values[:, 0].tolist() == pytest.approx([1, 1 - 0.8 / 3, 1 - 0.4 / 3, 0])
    assert shaped.values[:, 1].tolist() == [1] * 4, "what is only logged stays as it is"
    assert Unlikeliness().reads == (OLD_LOGPROBS,)


def test_sum_z_scores_gate_and_minimum_differ():
    """The same two rewards, four ways to combine: only decoupling lifts the small spread of the second."""
    given = table([[1.0, 0.02], [1.0, 0.0], [0.0, 0.02], [0.0, 0.0]])
    made = rows(4)
    added = GroupNorm()(given, made).values[:, 0]
    apart = Decoupled(whiten="none")(given, made).values[:, 0]
    assert (added[0] - added[1]) < 0.1 < 1 < (apart[0] - apart[1])
    gated = GroupNorm()(Gate()(replace(given, weights=torch.tensor([1.0, 0.0])), made, {}), made).values[:, 0]
    assert gated[2] == gated[3] == gated[1] < gated[0]
    least = GroupNorm()(Minimum()(given, made, {}), made).values[:, 0]
    assert least[0] > least[1] == least[2] == least[3]
