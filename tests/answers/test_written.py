"""True answers as models write them: what the rewards' own readers make of them, for every kind, space, unit and template."""

from dataclasses import replace
from itertools import product

import pytest

from mmrl.answers.block import completion_text, keeps_format
from mmrl.answers.boxes.attempts import read_boxes
from mmrl.answers.boxes.box import SPACES, Box
from mmrl.answers.boxes.parsing import DIGITS, convert_boxes, parse_boxes, parse_points
from mmrl.answers.questions import read_letters, true_letters
from mmrl.answers.spans.attempts import read_spans
from mmrl.answers.spans.interval import Interval
from mmrl.answers.written import Way, format_answer
from mmrl.core.types import MediaSize, Prompt, Sample
from tests.support.each import for_each
from tests.support.refused import refused

SIZE = MediaSize(640, 480, 644, 476)
BOXES = (
    Box(64, 48, 320, 240, label="cat"),
    (Box(1, 2, 639.7, 479.9), Box(100.5, 7, 101, 470, label='a "b"')),
    Box(639.9, 479.9, 640, 480),  # thinner than a unit, in the corner
    Box(0.1, 0.2, 0.4, 0.9, "norm1"),
    (),
)


@for_each("truth, space, template, lists", product(BOXES, SPACES, (None, "direct", "think", "json"), (False, True)))
def test_boxes_are_read_back_in_every_space_to_half_a_unit(truth, space, template, lists):
    if lists and template == "json":
        return
    prompt = Prompt("p", "?", answer=truth)
    text = Way(space, template, lists=lists).of(prompt, SIZE, "It is there.")
    assert template is None or keeps_format(text, template)
    attempt = read_boxes(prompt, Sample(text, media_sizes=(SIZE,)), space)
    boxes = truth if isinstance(truth, tuple) else (truth,)
    assert len(attempt.predicted) == len(boxes) and not attempt.outside
    assert bool(boxes) or attempt.says_nothing
    for box, found in zip(boxes, parse_boxes(text, space), strict=True):
        true, unit = box.to(space, SIZE), 10.0 ** -DIGITS[space]
        # a side below a unit keeps a whole one
        assert all(abs(a - b) <= unit * 1.01 for a, b in zip(true.corners, found.corners, strict=True))
        if min(true.x2 - true.x1, true.y2 - true.y1) > 2 * unit:
            assert all(abs(a - b) <= unit * 0.51 for a, b in zip(true.corners, found.corners, strict=True))
        assert found.label == (None if lists else box.label)


def test_a_model_that_is_not_known_to_write_boxes_is_refused_and_so_is_a_size_that_is_missing():
    prompt = Prompt("p", "?", answer=BOXES[0])
    refused(r"prompt 'p': the answer is made of boxes, .*set policy.box_space to pixel, resized", Way().of, prompt, SIZE)
    refused("prompt 'p': space 'pixel' needs the picture's size", Way("norm1000").of, prompt, None)
    assert Way("pixel").of(prompt, None) == '[{"bbox_2d": [64, 48, 320, 240], "label": "cat"}]'


@for_each("space", SPACES)
def test_a_point_is_the_middle_of_the_box(space):
    text = Way(space, points=True).of(Prompt("p", "?", answer=BOXES[0]), SIZE)
    [point] = parse_points(text, space)
    middle = Box(64, 48, 320, 240).to(space, SIZE).center
    assert all(abs(a - b) <= 0.5 * 10.0 ** -DIGITS[space] for a, b in zip(point, middle, strict=True))


SPANS = (
    (Interval(1.5, 4), {}),
    ((Interval(0.25, 1.13), Interval(6, 8.25)), {}),
    (Interval(0.1, 0.4, "norm"), {"duration": 12.0}),
    (Interval(12, 48, "frames"), {"duration": 12.0, "fps": 8.0}),
)


@for_each("case, unit", product(SPANS, ("seconds", "norm", "frames")))
def test_spans_are_read_back_whatever_the_reward_takes_bare_numbers_for(case, unit):
    truth, columns = case
    prompt = Prompt("p", "?", answer=truth, columns={"duration": 12.0, "fps": 8.0, **columns})
    text = Way(unit=unit, template="direct").of(replace(prompt, columns=columns), None)
    assert read_spans(prompt, Sample(text), unit).iou == pytest.approx(1, abs=0.01)


def test_letters_numbers_and_texts():
    written = {"B": "B", ("A", "C"): "A, C", 3: "3", 0.125: "0.125", 1234567.5: "1234567.5", " a cat ": "a cat"}
    assert {answer: format_answer(answer) for answer in written} == written and format_answer(["A", "C"]) == "A, C"
    letters = Prompt("p", "?", answer="A,C", columns={"options": ("cat", "dog", "cow")})
    for template in (None, "direct", "think"):
        sample = Sample(Way(template=template).of(letters, None))
        assert read_letters(letters, sample.text or "") == true_letters(letters) == {"A", "C"}
    for answer in (None, {"a": 1}, "", object()):
        refused("cannot be written: it is no text, number, box, span or list of these", format_answer, answer)


def test_behind_a_thought_that_the_template_opened_the_answer_is_still_one():
    prompt = Prompt("p", "?", answer="B")
    for template in (None, "think"):
        text = Way(template=template, opened="<think>").of(prompt, None, "Left.")
        whole = completion_text(prompt, Sample(text, opened="<think>"))
        assert not text.startswith("<think>") and read_letters(prompt, whole) == {"B"}
    assert keeps_format(f"<think>{text}", "think")


FORMS = (
    '```json\n[{"bbox_2d": [64, 48, 320, 240], "label": "cat"}]\n```',
    "<think>Near (64, 48) in 2 steps, [1, 2, 3].</think><answer>[64, 48, 320, 240]</answer>",
    "x1=64, y1=48, x2=320, y2=240",
    "<ref>cat</ref><box>[[64, 48, 320, 240]]</box>",
    "<|box_start|>(64,48),(320,240)<|box_end|>",
    "64, 48, 320, 240",
    "<answer>64 48 320 240</answer>",
)


@for_each("text, space", product(FORMS, SPACES))
def test_completions_are_converted_as_they_are_written_and_back(text, space):
    moved = convert_boxes(text, "pixel", space, SIZE)
    [box] = parse_boxes(moved, space)
    assert box.to("pixel", SIZE).iou(Box(64, 48, 320, 240)) > 0.98
    assert parse_boxes(convert_boxes(moved, space, "pixel", SIZE), "pixel")[0].iou(Box(64, 48, 320, 240)) > 0.98
    assert "2 steps, [1, 2, 3]" in moved if "steps" in text else True
    assert ("cat" in moved) == ("cat" in text)


def test_points_are_converted_too_and_thin_boxes_stay_boxes():
    assert convert_boxes("(320, 240)", "pixel", "norm1000", SIZE) == "(500, 500)"
    assert convert_boxes("(64, 240)", "pixel", "norm1000_yx", SIZE) == "(500, 100)"
    assert convert_boxes("64, 240", "pixel", "norm1", SIZE) == "0.1, 0.5"
    assert convert_boxes("[639.9, 0, 640, 480]", "pixel", "norm1000", SIZE) == "[999, 0, 1000, 1000]"
    assert convert_boxes("no box", "pixel", "norm1000", None) == "no box"
    refused("space 'pixel' needs the picture's size", convert_boxes, "[1, 2, 3, 4]", "pixel", "norm1000", None)
