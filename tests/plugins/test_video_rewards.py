"""Rewards for questions about videos: spans of time, letters, numbers, texts, and the type that every row has for itself."""

from pathlib import Path

import pytest

from mmrl.answers.spans.interval import Interval
from mmrl.core.samples import ClipTime
from mmrl.core.types import Group, Prompt, Sample
from tests.numerics.registry import read

VECTORS = Path(__file__).resolve().parents[1] / "numerics" / "vectors" / "vlm.json"
SPAN = Interval(2, 6)


@pytest.fixture
def ask():
    """answer, texts -> a group; further words are columns of the row."""

    def build(answer, *texts, clips=(), **columns):
        return Group(0, Prompt("p7", "When?", (), answer, columns), tuple(Sample(text, clips=clips) for text in texts))

    return build


def values(scores):
    return [pytest.approx(score.value) for score in scores]


def part(scores, name):
    return [score.parts[name] for score in scores]


def test_temporal_iou_by_hand(reward, ask):
    texts = ["2 to 6", "<answer>4 to 8</answer>", "0:02 - 0:04", "7 to 9", "no idea", "6 to 2", "2 to 4 and 5 to 6"]
    scores = reward("temporal_iou")(ask(SPAN, *texts))
    # 4/4; 2 of 2..8; 2 of 4; none; unreadable; inverted; 3 of 4
    assert values(scores) == [1, 1 / 3, 0.5, 0, 0, 0, 0.75]
    assert part(scores, "unparsed") == [0, 0, 0, 0, 1, 1, 0]
    assert part(scores, "recall30") == [1, 1, 1, 0, 0, 0, 1] and part(scores, "recall70") == [1, 0, 0, 0, 0, 0, 1]


def test_naming_all_of_the_clip_does_not_pay(reward, ask):
    assert values(reward("temporal_iou")(ask(SPAN, "0 to 40", "0 to 10, 10 to 40", duration=40.0))) == [0.1, 0.1]


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


def test_spans_end_with_the_clip(reward, ask):
    scores = reward("temporal_iou")(ask(Interval(6, 10), "6 to 99", "12 to 15", duration=10.0))
    assert values(scores) == [1, 0] and part(scores, "outside") == [0, 1] and part(scores, "unparsed") == [0, 0]
    # annotations may end a little after the file
    assert values(reward("temporal_iou")(ask(Interval(6, 10.2), "6 to 10.2", duration=10.0))) == [1]


def test_time_r1_multiplies_by_closeness_of_both_ends(reward, ask):
    scores = reward("temporal_iou", kind="time_r1")(ask(SPAN, "2 to 6", "4 to 8", "4 to 8, 30 to 40", "?", duration=20.0))
    # IoU 1/3, both ends 2 of 20 seconds off; then the same for one of two spans
    assert values(scores) == [1, 0.9 * 0.9 / 3, 0.9 * 0.9 / 3 / 1, 0]
    assert values(reward("temporal_iou", kind="time_r1")(ask(SPAN, "4 to 8, 10 to 12", duration=20.0))) == [0.9 * 0.9 / 6]
    with pytest.raises(ValueError, match="duration"):
        reward("temporal_iou", kind="time_r1")(ask(SPAN, "2 to 6"))
    with pytest.raises(ValueError, match="2 true spans"):
        reward("temporal_iou", kind="time_r1")(ask((SPAN, Interval(8, 9)), "2 to 6", duration=20.0))


def test_several_true_spans(reward, ask):
    truth = (SPAN, Interval(8, 9))
    assert values(reward("temporal_iou")(ask(truth, "2 to 6, 8 to 9", "2 to 6"))) == [1, 0.8]
    # one of two found; two found and one invented
    assert values(reward("temporal_iou", kind="map")(ask(truth, "2 to 6", "2 to 6, 8 to 9, 20 to 30"))) == [51 / 101, 2 / 3]
    assert values(reward("temporal_iou")(ask((), "none", "2 to 6"))) == [1, 0]


def test_template_gates_and_no_answer_does_not_apply(reward, ask):
    scores = reward("temporal_iou", template="direct")(ask(SPAN, "2 to 6", "<answer>2 to 6</answer>"))
    assert values(scores) == [0, 1] and part(scores, "format") == [0, 1] and part(scores, "unparsed") == [0, 0]
    for name in ("temporal_iou", "key_frame", "choice", "number", "rouge", "ocr_wer"):
        assert reward(name)(ask(None, "x", "y")) == [None, None]


def test_rows_that_cannot_be_scored_are_named(reward, ask):
    with pytest.raises(ValueError, match="need an Interval"):
        reward("temporal_iou")(ask("2 to 6", "2 to 6"))
    with pytest.raises(ValueError, match="'p7': the true span 12 to 15"):
        reward("temporal_iou")(ask(Interval(12, 15), "2 to 6", duration=10.0))
    with pytest.raises(ValueError, match=r"'p7'.*frame rate"):
        reward("temporal_iou", unit="frames")(ask(SPAN, "2 to 6"))
    with pytest.raises(ValueError, match="column duration is 'long'"):
        reward("temporal_iou")(ask(SPAN, "2 to 6", duration="long"))
    with pytest.raises(ValueError, match="letters"):
        reward("choice")(ask("the dog", "A"))
    with pytest.raises(ValueError, match="one number"):
        reward("number")(ask("many", "3"))
    with pytest.raises(ValueError, match="needs a text"):
        reward("rouge")(ask("", "a"))
    with pytest.raises(ValueError, match="'p7' has no text"):
        reward("choice")(Group(0, Prompt("p7", answer="A"), (Sample(image=object()),)))


def test_key_frames(reward, ask):
    scores = reward("key_frame", most=3)(ask(SPAN, "at 3.5 s", "3 s, 7 s", "nowhere", "3, 3.1, 3.2, 3.3"))
    assert values(scores) == [1, 0.5, 0, 0] and part(scores, "unparsed") == [0, 0, 1, 0]
    assert values(reward("key_frame", unit="frames")(ask(SPAN, "frame 5", "frame 13", clips=(ClipTime(10.0, 30.0, 20),)))) == [
        1,
        0,
    ]


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
    with pytest.raises(ValueError, match="0 or more"):
        reward("number", absolute=-1.0)


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


def test_unknown_types_are_errors_that_name_the_row(reward, ask):
    with pytest.raises(ValueError, match=r"prompt 'p7' \(clips.jsonl:12\): column problem_type is 'essay'"):
        reward("by_type")(ask("A", "A", problem_type="essay", file_row="clips.jsonl:12"))
    with pytest.raises(ValueError, match="column problem_type is None"):
        reward("by_type")(ask("A", "A"))
    assert values(reward("by_type", column="kind")(ask("A", "A", kind="Multiple_Choice"))) == [1]


def test_by_type_has_the_options_of_its_kinds(reward, ask):
    assert values(reward("by_type", soft=True)(ask("A,C", "A", problem_type="multiple choice"))) == [0.5]
    assert values(reward("by_type", relative=0.1)(ask(100, "110", "111", problem_type="numerical"))) == [1, 0]
    assert values(reward("by_type", unit="norm")(ask(SPAN, "0.2 to 0.6", problem_type="temporal", duration=10))) == [1]
    soft = reward("by_type", soft=True)(ask("A,C", "A", "C, A", problem_type="multiple choice"))
    assert part(soft, "exact") == [0, 1] and part(soft, "choice") == [0.5, 1]
    spans = reward("by_type")(ask(SPAN, "2 to 6", "4 to 8", problem_type="temporal", duration=10))
    assert [part(spans, f"recall{least}") for least in (30, 50, 70)] == [[1, 1], [1, 0], [1, 0]]
    gated = reward("by_type", template="think")(ask("A", "A", "<think>x</think><answer>A</answer>", problem_type="choice"))
    assert values(gated) == [0, 1] and part(gated, "format") == [0, 1]


def test_repetition_is_trls(reward):
    vector = read(VECTORS)["trl_rewards"]
    group = Group(0, Prompt("p7"), tuple(Sample("x", tuple(ids)) for ids in vector.inputs["repetition_ids"]))
    scores = reward("repetition", size=vector.params["ngram"])(group)
    assert scores == pytest.approx(vector.outputs["repetition"])
    assert reward("repetition", size=2, penalty=2.0)(group)[1] == pytest.approx(-1.5)
    with pytest.raises(ValueError, match="no tokens"):
        reward("repetition")(Group(0, Prompt("p7"), (Sample("x"),)))


def test_numbers_that_math_verify_accepts_are_accepted(reward, ask):
    """TRL's accuracy needs LaTeX around a number; where it answers at all, a right answer is right here too."""
    vector = read(VECTORS)["trl_rewards"]
    for (text, truth), score in zip(vector.inputs["accuracy_pairs"], vector.outputs["accuracy"], strict=True):
        if score is not None and score >= 0.5:
            assert values(reward("number")(ask(truth, text))) == [1]
    assert values(reward("choice")(ask("B", "The answer is B"))) == [1]
