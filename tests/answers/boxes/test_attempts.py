import pytest

from mmrl.answers.boxes.attempts import AnySpace, read_attempts, true_boxes
from mmrl.answers.boxes.box import Box
from mmrl.answers.boxes.parsing import format_box
from mmrl.core.types import Group, MediaSize, Prompt, Sample

SIZE = MediaSize(640, 480, 644, 476)
TRUTH = Box(160, 120, 480, 240)


def attempt(text, space: AnySpace = "norm1000", answer=TRUTH, sizes=(SIZE,), template=None):
    attempts = read_attempts(Group(0, Prompt("p7", answer=answer), (Sample(text, media_sizes=sizes),)), space, template)
    assert attempts is not None
    return attempts[0]


def test_prediction_and_truth_end_in_pixels_of_the_file():
    found = attempt("[161, 119, 483, 238]", "resized")
    assert found.predicted == (TRUTH,) and found.truth == (TRUTH,) and found.extent == (640, 480)
    found = attempt("[250, 250, 750, 500]", "norm1000", Box(0.25, 0.25, 0.75, 0.5, "norm1"))
    assert found.predicted == found.truth == (TRUTH,)


@pytest.mark.parametrize(
    ("text", "unparsed", "outside"),
    [("[250, 250, 750, 500]", 0, 0), ("I see it", 1, 0), ("[160, 120, 480, 1080]", 1, 1), ("[]", 0, 0), ("[-1, 0, 5, 5]", 1, 1)],
)
def test_unreadable_and_outside_are_counted(text, unparsed, outside):
    parts = attempt(text).parts()
    assert (parts["unparsed"], parts["outside"]) == (unparsed, outside)


def test_one_box_outside_voids_the_whole_text():
    assert attempt("[250, 250, 750, 500] [0, 0, 1500, 10]").predicted == ()


def test_naming_many_boxes_does_not_pay():
    one, two = attempt("[250, 250, 750, 500]"), attempt("[250, 250, 750, 500] [0, 0, 10, 10]")
    again = attempt("[250, 250, 750, 500], yes, [250, 250, 750, 500]")

    def same(a, b):
        return float(a == b)

    assert (one.best(same), two.best(same), again.best(same)) == (1, 0.5, 1)


def test_a_broken_template_predicts_nothing():
    found = attempt("[250, 250, 750, 500]", template="direct")
    assert found.predicted == () and found.parts() == {"unparsed": 0, "outside": 0, "format": 0}
    assert attempt("<answer>[250, 250, 750, 500]</answer>\n", template="direct").predicted == (TRUTH,)


def test_points_are_converted_too():
    assert attempt("[500, 500]").points == ((320, 240),)
    assert attempt("[500, 1500]").outside


def test_without_sizes_only_equal_kinds_of_space_compare():
    assert attempt("[160, 120, 480, 240]", "pixel", sizes=()).predicted == (TRUTH,)
    share = Box(0.25, 0.25, 0.75, 0.5, "norm1")
    assert attempt("[250, 250, 750, 500]", "norm1000", share, ()).truth[0].corners == (250, 250, 750, 500)
    with pytest.raises(ValueError, match=r"'p7'.*media_sizes"):
        attempt("[250, 250, 750, 500]", "norm1000", sizes=())


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"space": "auto"}, '"auto"'),
        ({"answer": "B"}, r"'p7' is 'B'.*Box"),
        ({"answer": (TRUTH, "B")}, r"'p7'"),
        ({"answer": Box(0, 0, 641, 5)}, r"'p7'.*outside its space"),
    ],
    ids=["auto", "text", "mixed", "truth outside"],
)
def test_mistakes_are_named(options, says):
    with pytest.raises(ValueError, match=says):
        attempt("[1, 2, 3, 4]", **options)


def test_a_sample_without_text_is_an_error():
    with pytest.raises(ValueError, match=r"'p7' has no text"):
        attempt(None)


def test_true_boxes_accepts_one_or_several():
    assert true_boxes(Prompt("p", answer=TRUTH)) == (TRUTH,)
    assert true_boxes(Prompt("p", answer=[TRUTH, TRUTH])) == (TRUTH, TRUTH)
    assert true_boxes(Prompt("p", answer=())) == ()


def test_boxes_and_points_that_are_written_with_y_first():
    written = "[250, 250, 500, 750]"
    assert attempt(written, "norm1000_yx").predicted == (TRUTH,) != attempt(written).predicted
    assert attempt("x1=250, y1=250, x2=750, y2=500", "norm1000_yx").predicted == (TRUTH,)
    assert attempt("[375, 500]", "norm1000_yx").points == (TRUTH.center,)
    assert format_box(TRUTH.to("norm1000_yx", SIZE), "list") == written
