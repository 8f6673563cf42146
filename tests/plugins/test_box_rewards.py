"""Every shipped box reward: its gold answer is best, its contract holds, its formula gives known numbers."""

import pytest

from mmrl.answers.boxes.box import SPACES, Box
from mmrl.answers.boxes.parsing import format_box
from mmrl.core.types import Group, MediaSize, Prompt, Sample
from tests.support.styles import box_in

SIZE = MediaSize(640, 480, 644, 476)
TRUTH = Box(160, 120, 480, 240)
BEST = {"iou": 1.0, "giou": 1.0, "multi_box": 1.0, "point_in_box": 1.375}
names = pytest.mark.parametrize("name", BEST)


def values(scored):
    return [pytest.approx(score.value) for score in scored]


@names
@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("style", ["json", "list", "tags", "corners"])
def test_the_gold_answer_scores_best(name, space, style, reward, group_of):
    gold = box_in(style, TRUTH.to(space, SIZE))
    near = box_in(style, Box(150, 125, 470, 250).to(space, SIZE))
    fields = {"kind": "mean_iou"} if name == "multi_box" else {}
    best, worse, none = reward(name, space=space, **fields)(group_of(TRUTH, gold, near, "no idea"))
    assert best.value == pytest.approx(BEST[name])
    assert best.value > worse.value > none.value == 0
    assert best.parts["unparsed"] == worse.parts["unparsed"] == 0 and none.parts["unparsed"] == 1


@names
@pytest.mark.parametrize("kind", ["f1", "mean_iou", "map"])
def test_gold_of_several_boxes(name, kind, reward, group_of):
    truth = (Box(0, 0, 10, 10, label="cat"), Box(20, 20, 40, 40, label="dog"))
    gold = "[" + ", ".join(format_box(box) for box in truth) + "]"
    if name == "multi_box":
        every, one = reward(name, space="pixel", kind=kind, labels=True)(group_of(truth, gold, format_box(truth[0])))
        assert every.value == 1 and 0 < one.value < 1
    else:
        with pytest.raises(ValueError, match=r"'p7' has 2 true boxes.*multi_box"):
            reward(name, space="pixel")(group_of(truth, gold))


@names
def test_contract(name, reward, group_of):
    texts = ["[1, 2, 30, 40]", "", "<answer>"]
    assert len(reward(name, space="pixel")(group_of(TRUTH, *texts))) == 3
    assert reward(name, space="pixel")(group_of(None, *texts)) == [None] * 3
    with pytest.raises(ValueError, match="auto"):
        reward(name)(group_of(TRUTH, *texts))
    with pytest.raises(ValueError, match="'p7'"):
        reward(name, space="pixel")(group_of("B", *texts))


@names
def test_a_template_gates_the_reward(name, reward, group_of):
    bare, wrapped = "[160, 120, 480, 240]", "<answer>[160, 120, 480, 240]</answer>\n"
    scored = reward(name, space="pixel", template="direct")(group_of(TRUTH, bare, wrapped))
    assert values(scored) == [0, BEST[name]]
    assert [score.parts["format"] for score in scored] == [0, 1]


@names
def test_a_box_outside_its_space_scores_nothing_and_is_counted(name, reward, group_of):
    (scored,) = reward(name, space="norm1000")(group_of(TRUTH, "[160, 120, 480, 1240]"))
    assert scored.value == 0 and scored.parts["unparsed"] == scored.parts["outside"] == 1


def test_iou_numbers(reward, group_of):
    # 320 x 120 against the same moved by 32: overlap 288 x 120
    texts = ["[160, 120, 480, 240]", "[192, 120, 512, 240]", "[500, 300, 600, 400]", "[160, 120, 480, 240] [0, 0, 9, 9]"]
    scored = reward("iou", space="pixel")(group_of(TRUTH, *texts))
    assert values(scored) == [1, 288 / 352, 0, 0.5]
    assert [score.parts["acc50"] for score in scored] == [1, 1, 0, 1]
    assert [score.parts["hit"] for score in scored] == [1, 1, 0, 0.5]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (Box(0, 0, 100, 1), "[0, 0, 100, 1]"),
        (Box(7, 7, 8, 8), "[7, 7, 8, 8]"),
        (Box(10.5, 20, 30, 40), "<think>t</think><answer>[10.5, 20, 30, 40]</answer>"),
        (Box(10, 20, 30, 40), "<answer>(10, 20, 30, 40)</answer>"),
        (Box(100, 100, 200, 200), "<answer>[0, 0, 10, 10]</answer><answer>[100, 100, 200, 200]</answer>"),
        (Box(100, 100, 200, 200), "[100, 100, 200, 200]"),
    ],
    ids=["one pixel high", "one pixel", "float", "tuple", "second answer", "no tags"],
)
def test_what_other_projects_score_zero(answer, text, reward, group_of):
    """VLM-R1's reward gives each of these exact answers 0."""
    (scored,) = reward("iou", space="pixel")(group_of(answer, text))
    assert scored.value == 1


def test_boxes_of_the_resized_picture_are_scaled(reward, group_of):
    """A model that saw 560 x 280 as 280 x 280 and answers in the pixels it saw."""
    sizes = (MediaSize(560, 280, 280, 280),)
    group = group_of(Box(100, 100, 200, 200), "[50, 100, 100, 200]", "[100, 100, 200, 200]", sizes=sizes)
    assert values(reward("iou", space="resized")(group)) == [1, 0]


def test_giou_grades_misses_and_never_rewards_silence(reward, group_of):
    near, far, silent = reward("giou", space="pixel")(
        group_of(Box(0, 0, 10, 10), "[20, 0, 30, 10]", "[600, 400, 610, 410]", "nothing to see")
    )
    # near: union 200, hull 300, so GIoU = -1/3
    assert near.value == pytest.approx(1 / 3)
    assert near.value > far.value > silent.value == 0


def test_multi_box_numbers(reward, group_of):
    truth = (Box(0, 0, 10, 10), Box(20, 20, 30, 30))
    texts = ["[0, 0, 10, 10]", "[0, 0, 10, 10] [20, 20, 30, 35]", "[0, 0, 10, 10] [20, 20, 30, 30] [50, 50, 60, 60]"]
    group = group_of(truth, *texts)
    assert values(reward("multi_box", space="pixel")(group)) == [2 / 3, 1, 0.8]
    assert values(reward("multi_box", space="pixel", kind="mean_iou")(group)) == [1 / 2, (1 + 2 / 3) / 2, 2 / 3]
    # differences in number 1 of 2, 0, 1 of 3
    assert values(reward("multi_box", space="pixel", count_penalty=0.3)(group)) == [2 / 3 - 0.15, 1, 0.7]


def test_empty_truth_wants_to_hear_so(reward, group_of):
    scored = reward("multi_box", space="pixel")(group_of((), "[]", "<answer>None</answer>", "[1, 2, 3, 4]", "hm"))
    assert values(scored) == [1, 1, 0, 0]
    assert [score.parts["unparsed"] for score in scored] == [0, 0, 0, 1]


def test_gui_g1_numbers(reward, group_of):
    """Parts of vector gui_g1_rewards; only the bare object, which the official code scores 0, is read here."""
    texts = [
        '```json\n[{"bbox_2d": [100, 50, 200, 90], "label": "ok"}]\n```',
        '[{"bbox_2d": [120, 60, 260, 100]}]',
        '```json\n[{"bbox_2d": [300, 50, 400, 90]}]\n```',
        '[{"bbox_2d": [100, 50, 200, 90',
        '[{"point_2d": [150, 70]}]',
        '[{"bbox_2d": [0, 0, 400, 180]}]',
        '[{"bbox_2d": [100.5, 50, 199.5, 90]}]',
        "<think>x</think> click the button",
        '{"bbox_2d": [100, 50, 200, 90]}',
    ]
    sizes = (MediaSize(1000, 800, 1000, 800),)
    scored = reward("point_in_box", space="pixel")(group_of(Box(100, 50, 200, 90), *texts, sizes=sizes))
    hit = [1, 1, 0, 0, 0, 1, 1, 0, 1]
    iou = [0.25, 0.0833333333333, 0, 0, 0, 0.0138888888889, 0.2475, 0, 0.25]
    corners = [0.125, 0.121667692061, 0.111111111111, 0, 0, 0.109780610579, 0.124968742186, 0, 0.125]
    assert [score.parts["hit"] for score in scored] == hit
    assert [0.25 * score.parts["iou"] for score in scored] == pytest.approx(iou, abs=1e-9)
    assert [0.125 * score.parts["corners"] for score in scored] == pytest.approx(corners, abs=1e-9)
    assert [score.value for score in scored] == pytest.approx([sum(parts) for parts in zip(hit, iou, corners, strict=True)])


def test_a_corner_a_whole_side_off_gives_no_closeness(reward, group_of):
    """GUI-G1's code divides by zero here."""
    sizes = (MediaSize(100, 100, 100, 100),)
    (scored,) = reward("point_in_box", space="pixel")(
        group_of(Box(0, 0, 1, 1), "[0, 0, 100, 100] [99, 99, 100, 100]", sizes=sizes)
    )
    assert scored.parts["corners"] == pytest.approx(4 / (1 + 1 + 100 + 100) / 2)
    (scored,) = reward("point_in_box", space="pixel")(group_of(Box(0, 0, 1e-9, 1), "[0, 0, 100, 1]", sizes=sizes))
    assert scored.parts["corners"] == pytest.approx(0, abs=1e-6)


def test_a_point_can_hit(reward, group_of):
    group = group_of(TRUTH, "[320, 180]", "[10, 10]", "[320, 180] [321, 180]", "[320, 480]")
    scored = reward("point_in_box", space="pixel", points=True)(group)
    assert values(scored) == [1, 0, 0, 0]
    assert [score.parts["unparsed"] for score in scored] == [0, 0, 1, 0]


def test_size_term_without_picture_size_is_an_error(reward, group_of):
    group = group_of(TRUTH, "[160, 120, 480, 240]", sizes=())
    with pytest.raises(ValueError, match="media_sizes"):
        reward("point_in_box", space="pixel")(group)
    assert values(reward("point_in_box", space="pixel", size_coef=0.0)(group)) == [1.25]


def test_box_and_points_counts_what_can_be_read(reward):
    """Points may come in either order; what is no number, or out of the box, counts as nothing."""
    prompt = Prompt("p", answer=Box(10, 10, 60, 60), columns={"points": [[20, 20], [40, 50]]})
    json = '{"bbox": [10, 10, 60, 60], "points_1": [40, 50], "points_2": [20, 20]}'
    texts = {
        f"<think>so</think> <answer>{json}</answer>": 5.0,
        f"<answer>{json}</answer>": 4.0,
        f"<think>so</think><answer>{json.replace('[20, 20]', '[61, 20]')}</answer>": 4.0,
        f"<think>so</think><answer>{json.replace('[20, 20]', '[true, 20]')}</answer>": 3.0,
        f"<think>so</think><answer>{json.replace('[20, 20]', '[' + '9' * 400 + ', 20]')}</answer>": 3.0,
        "<think>so</think><answer>[1, 2]</answer>": 1.0,
        "no": 0.0,
    }
    found = reward("box_and_points")(Group(0, prompt, tuple(Sample(text) for text in texts)))
    assert values(found) == list(texts.values())
    assert [one.parts["unparsed"] for one in found] == [0, 0, 0, 0, 0, 1, 1]
    opened = Sample(f"so</think><answer>{json}</answer>", opened="<think>")
    assert values(reward("box_and_points")(Group(0, prompt, (opened,)))) == [5.0]
    with pytest.raises(ValueError, match=r"prompt 'p' needs a Box as answer and two points .*'points'"):
        reward("box_and_points")(Group(0, Prompt("p", answer=Box(0, 0, 1, 1)), (Sample("x"),)))
    assert reward("box_and_points")(Group(0, Prompt("p"), (Sample("x"),))) == [None]
