"""One completion as spans of a clip: seconds, the clip's end, templates, and what is counted for the log."""

import pytest

from mmrl.answers.spans.attempts import read_spans
from mmrl.answers.spans.interval import Interval, Unit
from mmrl.core.types import Prompt, Sample

TRUTH = Interval(2, 4)


def attempt(text: str, answer: object = TRUTH, unit: Unit = "seconds", template=None, **columns: float):
    return read_spans(Prompt("p7", answer=answer, columns={"duration": 10.0, **columns}), Sample(text), unit, template)


def test_spans_are_cut_at_the_end_of_the_clip():
    found = attempt("<answer>from 3 to 30 seconds</answer>")
    assert found.predicted == (Interval(3, 10),) and found.truth == (TRUTH,) and not found.outside
    late = attempt("<answer>from 12 to 30 seconds</answer>")
    assert late.predicted == () and late.parts() == {"unparsed": 0.0, "outside": 1.0, "format": 1.0}


def test_numbers_count_the_unit_of_the_reward():
    assert attempt("<answer>4 to 8</answer>", unit="frames", fps=2.0).predicted == (Interval(2, 4),)
    with pytest.raises(ValueError, match="prompt 'p7'"):
        attempt("<answer>4 to 8</answer>", unit="frames")


def test_a_text_off_its_template_holds_no_span():
    off = attempt("from 2 to 4 seconds", template="think")
    assert off.predicted == () and not off.keeps_format
    assert off.parts() == {"unparsed": 0.0, "outside": 0.0, "format": 0.0}
    kept = attempt("<think>hm</think><answer>2 to 4</answer>", template="think")
    assert kept.keeps_format and kept.predicted == (TRUTH,) and kept.iou == 1.0


def test_what_holds_no_readable_span_is_counted():
    assert attempt("I see it").parts()["unparsed"] == 1.0
    assert attempt("<answer>none</answer>").parts()["unparsed"] == 0.0


def test_one_true_span_is_asked_for_where_only_one_will_do():
    assert attempt("<answer>1 to 3</answer>").only_truth == TRUTH
    several = attempt("<answer>1 to 3</answer>", (TRUTH, Interval(6, 8)))
    with pytest.raises(ValueError, match="prompt 'p7' has 2 true spans"):
        _ = several.only_truth
    assert attempt("<answer>6 to 9, 2 to 5</answer>").best == Interval(2, 5)
    assert attempt("I see it").best is None
