"""Rewards of answers about pictures and clips: boxes, spans of time, letters, numbers, texts, and the type that a row has."""

from pathlib import Path

import pytest

from mmrl.answers.boxes.box import SPACES, Box
from mmrl.answers.boxes.parsing import format_box
from mmrl.answers.spans.interval import Interval
from mmrl.core.samples import ClipTime
from mmrl.core.types import Group, MediaSize, Prompt, Sample
from tests.numerics.registry import read
from tests.support.refused import refused
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


@pytest.mark.parametrize("kind", ["f1", "mean_iou", "map"])
def test_gold_of_several_boxes(kind, reward, group_of):
    truth = (Box(0, 0, 10, 10, label="cat"), Box(20, 20, 40, 40, label="dog"))
    gold = "[" + ", ".join(format_box(box) for box in truth) + "]"
    every, one = reward("multi_box", space="pixel", kind=kind, labels=True)(group_of(truth, gold, format_box(truth[0])))
    assert every.value == 1 and 0 < one.value < 1
    for name in BEST.keys() - {"multi_box"}:
        refused(r"'p7' has 2 true boxes.*multi_box", reward(name, space="pixel"), group_of(truth, gold))


@names
def test_a_row_without_answer_space_or_box_and_a_box_outside_its_space_score_nothing(name, reward, group_of):
    texts = ["[1, 2, 30, 40]", "", "<answer>"]
    assert len(reward(name, space="pixel")(group_of(TRUTH, *texts))) == 3
    assert reward(name, space="pixel")(group_of(None, *texts)) == [None] * 3
    refused("auto", reward(name), group_of(TRUTH, *texts))
    refused("'p7'", reward(name, space="pixel"), group_of("B", *texts))
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
    group = group_of(Box(0, 0, 10, 10), "[20, 0, 30, 10]", "[600, 400, 610, 410]", "nothing to see")
    near, far, silent = reward("giou", space="pixel")(group)
    # near: union 200, hull 300, so GIoU = -1/3
    assert near.value == pytest.approx(1 / 3)
    assert near.value > far.value > silent.value == 0


def test_multi_box_numbers_and_an_empty_truth_that_wants_to_hear_so(reward, group_of):
    truth = (Box(0, 0, 10, 10), Box(20, 20, 30, 30))
    texts = ["[0, 0, 10, 10]", "[0, 0, 10, 10] [20, 20, 30, 35]", "[0, 0, 10, 10] [20, 20, 30, 30] [50, 50, 60, 60]"]
    group = group_of(truth, *texts)
    assert values(reward("multi_box", space="pixel")(group)) == [2 / 3, 1, 0.8]
    assert values(reward("multi_box", space="pixel", kind="mean_iou")(group)) == [1 / 2, (1 + 2 / 3) / 2, 2 / 3]
    # differences in number 1 of 2, 0, 1 of 3
    assert values(reward("multi_box", space="pixel", count_penalty=0.3)(group)) == [2 / 3 - 0.15, 1, 0.7]
    scored = reward("multi_box", space="pixel")(group_of((), "[]", "<answer>None</answer>", "[1, 2, 3, 4]", "hm"))
    assert values(scored) == [1, 1, 0, 0]
    assert [score.parts["unparsed"] for score in scored] == [0, 0, 0, 1]


def test_a_corner_a_whole_side_off_gives_no_closeness(reward, group_of):
    """GUI-G1's code divides by zero here."""
    sizes = (MediaSize(100, 100, 100, 100),)
    group = group_of(Box(0, 0, 1, 1), "[0, 0, 100, 100] [99, 99, 100, 100]", sizes=sizes)
    (scored,) = reward("point_in_box", space="pixel")(group)
    assert scored.parts["corners"] == pytest.approx(4 / (1 + 1 + 100 + 100) / 2)
    (scored,) = reward("point_in_box", space="pixel")(group_of(Box(0, 0, 1e-9, 1), "[0, 0, 100, 1]", sizes=sizes))
    assert scored.parts["corners"] == pytest.approx(0, abs=1e-6)


def test_a_point_can_hit_and_the_term_of_sizes_needs_a_pictures_size(reward, group_of):
    group = group_of(TRUTH, "[320, 180]", "[10, 10]", "[320, 180] [321, 180]", "[320, 480]")
    scored = reward("point_in_box", space="pixel", points=True)(group)
    assert values(scored) == [1, 0, 0, 0]
    assert [score.parts["unparsed"] for score in scored] == [0, 0, 1, 0]
    group = group_of(TRUTH, "[160, 120, 480, 240]", sizes=())
    refused("media_sizes", reward("point_in_box", space="pixel"), group)
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


VECTORS = Path(__file__).resolve().parents[1] / "numerics" / "vectors" / "vlm.json"
SPAN = Interval(2, 6)


@pytest.fixture
def ask():
    """answer, texts -> a group; further words are columns of the row."""

    def build(answer, *texts, clips=(), **columns):
        return Group(0, Prompt("p7", "When?", (), answer, columns), tuple(Sample(text, clips=clips) for text in texts))

    return build


def part(scores, name):
    return [score.parts[name] for score in scores]


def test_temporal_iou_by_hand(reward, ask):
    texts = ["2 to 6", "<answer>4 to 8</answer>", "0:02 - 0:04", "7 to 9", "no idea", "6 to 2", "2 to 4 and 5 to 6"]
    scores = reward("temporal_iou")(ask(SPAN, *texts))
    # 4/4; 2 of 2..8; 2 of 4; none; unreadable; inverted; 3 of 4
    assert values(scores) == [1, 1 / 3, 0.5, 0, 0, 0, 0.75]
    assert part(scores, "unparsed") == [0, 0, 0, 0, 1, 1, 0]
    assert part(scores, "recall30") == [1, 1, 1, 0, 0, 0, 1] and part(scores, "recall70") == [1, 0, 0, 0, 0, 0, 1]


def test_units_of_the_model_and_of_the_truth(reward, ask):
    clip = (ClipTime(10.0, 30.0, 20),)
    # the model was shown 20 frames in 10 seconds, so that frame 4 begins at second 2
    assert values(reward("temporal_iou", unit="frames")(ask(SPAN, "4 to 12", "2 s to 6 s", clips=clip))) == [1, 1]
    assert values(reward("temporal_iou")(ask(SPAN, "frames 4 to 12", "20% to 60%", clips=clip))) == [1, 1]
    assert values(reward("temporal_iou", unit="norm")(ask(SPAN, "0.2 to 0.6", clips=clip))) == [1]
    # a truth in frames counts those of the file
    assert values(reward("temporal_iou")(ask(Interval(60, 180, "frames"), "2 to 6", clips=clip))) == [1]
    assert values(reward("temporal_iou")(ask(Interval(0.2, 0.6, "norm"), "2 to 6", duration=10))) == [1]
    assert values(reward("temporal_iou")(ask(SPAN, "frames 4 to 12"))) == [0]


def test_spans_end_with_the_clip_and_naming_all_of_it_does_not_pay(reward, ask):
    scores = reward("temporal_iou")(ask(Interval(6, 10), "6 to 99", "12 to 15", duration=10.0))
    assert values(scores) == [1, 0] and part(scores, "outside") == [0, 1] and part(scores, "unparsed") == [0, 1]
    # annotations may end a little after the file
    assert values(reward("temporal_iou")(ask(Interval(6, 10.2), "6 to 10.2", duration=10.0))) == [1]
    assert values(reward("temporal_iou")(ask(SPAN, "0 to 40", "0 to 10, 10 to 40", duration=40.0))) == [0.1, 0.1]


def test_time_r1_multiplies_by_closeness_of_both_ends(reward, ask):
    scores = reward("temporal_iou", kind="time_r1")(ask(SPAN, "2 to 6", "4 to 8", "4 to 8, 30 to 40", "?", duration=20.0))
    # IoU 1/3, both ends 2 of 20 seconds off; then the same for one of two spans
    assert values(scores) == [1, 0.9 * 0.9 / 3, 0.9 * 0.9 / 3 / 1, 0]
    assert values(reward("temporal_iou", kind="time_r1")(ask(SPAN, "4 to 8, 10 to 12", duration=20.0))) == [0.9 * 0.9 / 6]
    refused("duration", reward("temporal_iou", kind="time_r1"), ask(SPAN, "2 to 6"))
    refused("2 true spans", reward("temporal_iou", kind="time_r1"), ask((SPAN, Interval(8, 9)), "2 to 6", duration=20.0))


def test_several_true_spans(reward, ask):
    truth = (SPAN, Interval(8, 9))
    assert values(reward("temporal_iou")(ask(truth, "2 to 6, 8 to 9", "2 to 6"))) == [1, 0.8]
    # one of two found; two found and one invented
    assert values(reward("temporal_iou", kind="map")(ask(truth, "2 to 6", "2 to 6, 8 to 9, 20 to 30"))) == [51 / 101, 2 / 3]
    assert values(reward("temporal_iou")(ask((), "none", "2 to 6"))) == [1, 0]


def test_no_answer_does_not_apply(reward, ask):
    for name in ("temporal_iou", "key_frame", "choice", "number", "rouge", "ocr_wer"):
        assert reward(name)(ask(None, "x", "y")) == [None, None]


def test_rows_that_cannot_be_scored_are_named(reward, ask):
    refused("need an Interval", reward("temporal_iou"), ask("2 to 6", "2 to 6"))
    refused("'p7': the true span 12 to 15", reward("temporal_iou"), ask(Interval(12, 15), "2 to 6", duration=10.0))
    refused(r"'p7'.*frame rate", reward("temporal_iou", unit="frames"), ask(SPAN, "2 to 6"))
    refused("column duration is 'long'", reward("temporal_iou"), ask(SPAN, "2 to 6", duration="long"))
    refused("letters", reward("choice"), ask("the dog", "A"))
    refused("one number", reward("number"), ask("many", "3"))
    refused("needs a text", reward("rouge"), ask("", "a"))
    refused("'p7' has no text", reward("choice"), Group(0, Prompt("p7", answer="A"), (Sample(image=object()),)))


def test_key_frames(reward, ask):
    scores = reward("key_frame", most=3)(ask(SPAN, "at 3.5 s", "3 s, 7 s", "nowhere", "3, 3.1, 3.2, 3.3"))
    assert values(scores) == [1, 0.5, 0, 0] and part(scores, "unparsed") == [0, 0, 1, 0]
    assert part(reward("key_frame")(ask(SPAN, "3 s", "3 s, 12 s", duration=10.0)), "outside") == [0, 1]
    group = ask(SPAN, "frame 5", "frame 13", clips=(ClipTime(10.0, 30.0, 20),))
    assert values(reward("key_frame", unit="frames")(group)) == [1, 0]


def test_choices_exact_and_soft(reward, ask):
    texts = ["A,C", "<answer>A</answer>", "A, B", "none of them", "C and A"]
    exact, soft = (reward("choice", kind=kind)(ask("A,C", *texts)) for kind in ("exact", "soft"))
    assert values(exact) == [1, 0, 0, 0, 1] and values(soft) == [1, 0.5, 0, 0, 1]
    assert part(soft, "unparsed") == [0, 0, 0, 1, 0] and part(soft, "exact") == [1, 0, 0, 0, 1]
    assert values(reward("choice")(ask(["C", "A"], "A,C"))) == [1]
    assert values(reward("choice")(ask("B", "a dog", "cat", options=["cat", "a dog"]))) == [1, 0]


def test_numbers_exact_and_near(reward, ask):
    texts = ["3", "3.0", "<answer>three</answer>", "4", "2 or 3"]
    scores = reward("number")(ask(3, *texts))
    assert values(scores) == [1, 1, 1, 0, 0] and part(scores, "unparsed") == [0, 0, 0, 0, 1]
    assert values(reward("number", relative=0.1)(ask("1,000", "1100", "1101", "900"))) == [1, 0, 1]
    assert values(reward("number", kind="regression")(ask(10.0, "9", "30", "x"))) == [0.9, 0, 0]
    assert values(reward("number", kind="relative")(ask(10.0, "11.2"))) == [0.8]
    refused("0 or more", reward, "number", absolute=-1.0)


def test_texts_written_and_read(reward, ask):
    scores = reward("rouge")(ask("the cat sat", "<answer>the cat sat</answer>", "a cat was sitting", ""))
    assert values(scores) == [1, (2 / 7 + 0 + 2 / 7) / 3, 0] and part(scores, "rouge1")[1] == pytest.approx(2 / 7)
    scores = reward("ocr_wer")(ask("hello world", "hello world", "hello big world", "Hello world", "a b c d e"))
    assert values(scores) == [1, 0.5, 0.5, 0] and part(scores, "error_rate")[3] == 2.5
    assert values(reward("ocr_wer", ignore_case=True)(ask("hello world", "Hello World"))) == [1]
    assert values(reward("ocr_wer", of="characters")(ask("abcd", "abxd", "<answer>abcd</answer>"))) == [0.75, 1]


ROWS = {
    "multiple choice": ("A,C", "A,C", 1),
    "numerical": (3, "3.0", 1),
    "regression": (10.0, "9", 0.9),
    "OCR": ("stop here", "stop", 0.5),
    "free-form": ("a dog runs", "a dog runs", 1),
    "temporal grounding": (Interval(2, 6), "4 to 8", 1 / 3),
}


def test_every_row_is_scored_by_its_own_type(reward, ask):
    """In Video-R1 the first row's type decides for the whole batch; one reward object scores all rows here, in any order."""
    by_type = reward("by_type")
    for order in (ROWS, reversed(ROWS)):
        for kind in order:
            answer, text, value = ROWS[kind]
            scores = by_type(ask(answer, text, "zzz", problem_type=kind))
            assert values(scores) == [value, 0], kind
    assert values(by_type(ask("3 dogs", "3 dogs", problem_type="free-form"))) == [1]


def test_by_type_has_the_options_of_its_kinds_and_names_rows_of_unknown_ones(reward, ask):
    assert values(reward("by_type", soft=True)(ask("A,C", "A", problem_type="multiple choice"))) == [0.5]
    assert values(reward("by_type", relative=0.1)(ask(100, "110", "111", problem_type="numerical"))) == [1, 0]
    assert values(reward("by_type", unit="norm")(ask(SPAN, "0.2 to 0.6", problem_type="temporal", duration=10))) == [1]
    soft = reward("by_type", soft=True)(ask("A,C", "A", "C, A", problem_type="multiple choice"))
    assert part(soft, "exact") == [0, 1] and part(soft, "choice") == [0.5, 1]
    spans = reward("by_type")(ask(SPAN, "2 to 6", "4 to 8", problem_type="temporal", duration=10))
    assert [part(spans, f"recall{least}") for least in (30, 50, 70)] == [[1, 1], [1, 0], [1, 0]]
    with pytest.raises(ValueError, match=r"prompt 'p7' \(clips.jsonl:12\): column problem_type is 'essay'"):
        reward("by_type")(ask("A", "A", problem_type="essay", file_row="clips.jsonl:12"))
    refused("column problem_type is None", reward("by_type"), ask("A", "A"))
    assert values(reward("by_type", column="kind")(ask("A", "A", kind="Multiple_Choice"))) == [1]


def test_repetition_is_trls(reward):
    vector = read(VECTORS)["trl_rewards"]
    group = Group(0, Prompt("p7"), tuple(Sample("x", tuple(ids)) for ids in vector.inputs["repetition_ids"]))
    scores = reward("repetition", size=vector.params["ngram"])(group)
    assert scores == pytest.approx(vector.outputs["repetition"])
    assert reward("repetition", size=2, penalty=2.0)(group)[1] == pytest.approx(-1.5)
    refused("no tokens", reward("repetition"), Group(0, Prompt("p7"), (Sample("x"),)))


def test_numbers_that_math_verify_accepts_are_accepted(reward, ask):
    """TRL's accuracy needs LaTeX around a number; where it answers at all, a right answer is right here too."""
    vector = read(VECTORS)["trl_rewards"]
    for (text, truth), score in zip(vector.inputs["accuracy_pairs"], vector.outputs["accuracy"], strict=True):
        if score is not None and score >= 0.5:
            assert values(reward("number")(ask(truth, text))) == [1]
    assert values(reward("choice")(ask("B", "The answer is B"))) == [1]
