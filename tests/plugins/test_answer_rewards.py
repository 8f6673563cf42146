"""majority_vote, json_schema, math_answer, rewards of masks, pairwise_win_rate: numbers by hand, and what fails elsewhere."""

import json
import math
import threading
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import pytest

from mmrl.answers.block import InTemplate
from mmrl.answers.boxes.box import Box
from mmrl.answers.spans.interval import Interval
from mmrl.app.plugins.resolve import load
from mmrl.core.types import Group, MediaSize, Prompt, Sample, Scored
from tests.plugins.conftest import ROOT, values
from tests.support.each import for_each
from tests.support.refused import refused


def group(answer, *texts, columns=None):
    return Group(0, Prompt("p7", "?", answer=answer, columns=columns or {}), tuple(Sample(text) for text in texts))


def test_majority_votes(reward):
    vote = reward("majority_vote")
    texts = ["\\boxed{3}", "so <answer> 3 </answer>", "<think>\\boxed{3}</think>5", "3"]
    scored = vote(group(None, *texts))
    assert values(scored) == [1, 1, 0, 1]
    assert scored[0].parts == {"unparsed": 0, "agreement": 0.75}
    assert values(vote(group(None, "b", "a", "a", "b"))) == [1, 0, 0, 1], "ties go to the one seen first"


def test_nothing_found_has_no_vote(reward):
    """In MM-UPT's code the missing answer wins here."""
    scored = reward("majority_vote")(group("4", "<answer></answer>", "<think>x</think>", "4", "5"))
    assert values(scored) == [0, 0, 1, 0]
    assert [score.parts["unparsed"] for score in scored] == [1, 1, 0, 0]
    assert [score.parts["right"] for score in scored] == [0, 0, 1, 0]
    assert values(reward("majority_vote")(group(None, "", ""))) == [0, 0]


def test_votes_are_compared_by_what_they_mean(reward):
    assert values(reward("majority_vote", kind="number")(group(None, "5", "1,000", "1e3", "it is 1000.0 kg"))) == [0, 1, 1, 1]
    assert values(reward("majority_vote", kind="choice")(group(None, "(B)", "B.", "A", "maybe"))) == [1, 1, 0, 0]
    halves = group(None, "\\boxed{\\frac{1}{2}}", "\\boxed{ \\frac{1}{2} }", "\\boxed{2")
    assert values(reward("majority_vote")(halves)) == [1, 1, 0]


def test_a_weak_majority_can_say_nothing(reward):
    assert values(reward("majority_vote", at_least=0.6)(group(None, "a", "a", "b", "c"))) == [None] * 4
    silent = group(None, "a", "a", "<answer></answer>", "")
    assert values(reward("majority_vote", at_least=0.6)(silent)) == [None] * 4, "those who say nothing count among the votes"
    assert reward("majority_vote", at_least=0.5)(silent)[0].parts["agreement"] == 0.5
    assert values(reward("majority_vote", at_least=0.5)(silent)) == [1, 1, 0, 0]
    refused("it must be 0 to 1", reward, "majority_vote", at_least=2.0)


BOXES = {
    "type": "object",
    "required": ["keyframe_id", "boxes"],
    "properties": {
        "keyframe_id": {"type": "integer", "minimum": 0},
        "boxes": {
            "type": "array",
            "minItems": 1,
            "items": {"type": "array", "minItems": 4, "maxItems": 4, "items": {"type": "number"}},
        },
    },
}


@pytest.mark.parametrize(
    ("text", "whole", "shared"),
    [
        ('{"keyframe_id": 3, "boxes": [[1, 2, 3, 4], [5, 6, 7, 8.5]]}', 1, 1),
        ('```json\n{"keyframe_id": 3, "boxes": [[1, 2, 3], [5, 6, 7, 8]]}\n```', 0, 0.5),
        ('{"keyframe_id": "3", "boxes": [[1, 2, 3, 4]]}', 0, 0),
        ('{"keyframe_id": true, "boxes": [[1, 2, 3, 4]]}', 0, 0),
        ('{"keyframe_id": -1, "boxes": [[1, 2, 3, 4]]}', 0, 0),
        ('{"keyframe_id": 3, "boxes": []}', 0, 0),
        ('{"keyframe_id": 3, "boxes": [[NaN, 2, 3, 4]]}', 0, 0),
        ('{"boxes": [[1, 2, 3, 4]]}', 0, 0),
        ("[]", 0, 0),
        ("{oops", 0, 0),
        ("[" * 100_000, 0, 0),
    ],
)
def test_json_schema(text, whole, shared, reward):
    text = f"<think>t</think><answer>{text}</answer>"
    assert values(reward("json_schema", schema=BOXES)(group(None, text))) == [whole]
    assert values(reward("json_schema", schema=BOXES, items_of="boxes")(group(None, text))) == [shared]


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"enum": ["a", 1]}, ['"a"', "1"], ['"b"', "2"]),
        ({"const": {"a": 1}}, ['{"a": 1}'], ["{}"]),
        ({"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^a", "maxLength": 2}]}, ["null", '"ab"'], ['"b"', '"abc"']),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": False}, ['{"a": [1]}', "{}"], ['{"b": 1}', "[]"]),
        ({"type": ["integer", "boolean"], "maximum": 3}, ["3", "true", "2.0"], ["4", "2.5", "null"]),
    ],
)
def test_json_schema_words(schema, good, bad, reward):
    score = reward("json_schema", schema=schema)
    assert values(score(group(None, *good, *bad))) == [1] * len(good) + [0] * len(bad)


def test_json_schema_of_a_column(reward):
    score = reward("json_schema", column="form")
    assert values(score(group(None, "3", columns={"form": '{"type": "integer"}'}))) == [1]
    assert values(score(group(None, "3"))) == [None]
    refused(r"schema of prompt 'p7'\.format is not understood", score, group(None, "3", columns={"form": {"format": "date"}}))
    refused(r"schema\.properties\.a\.type is 'int'", reward, "json_schema", schema={"properties": {"a": {"type": "int"}}})
    refused("either a schema or a column", reward, "json_schema")


def test_math_answers_off_the_main_thread(reward):
    """Where math-verify stops itself with signals this scores 0 without a word (verl 5635)."""
    score = reward("math_answer", limit_s=20.0)
    texts = ["<answer>0.5</answer>", "$\\frac{1}{2}$", "\\boxed{\\frac{2}{4}}", "1/2", "0.25", "", "no idea at all", "x" * 3000]
    found = []
    thread = threading.Thread(target=lambda: found.extend(score(group("\\frac{1}{2}", *texts))))
    thread.start()
    thread.join()
    assert values(found) == [1, 1, 1, 1, 0, 0, 0, 0]
    assert [s.parts["unparsed"] for s in found[-3:]] == [1, 1, 1]


def test_math_that_never_ends_fails_alone_and_one_without_a_true_expression_is_an_error(reward):
    score = reward("math_answer", limit_s=5.0)
    tower, right = score(group("7", "$9^{9^{9^{9^{9}}}}!$", "$8-1$"))
    assert math.isnan(tower.value) and tower.parts["timeout"] == 1
    assert right.value == 1
    assert values(reward("math_answer")(group(None, "3"))) == [None]
    refused("answer '' of prompt 'p7' is no expression", reward("math_answer"), group("", "$3$"))


def rle(mask, compressed=True):
    from pycocotools import mask as tools

    if compressed:
        packed: Any = tools.encode(np.asfortranarray(mask.astype(np.uint8)))
        return {"size": [int(side) for side in packed["size"]], "counts": packed["counts"].decode()}
    runs = [(pixel, len([*same])) for pixel, same in groupby(mask.flatten(order="F").tolist())]
    return {"size": list(mask.shape), "counts": [0] * runs[0][0] + [run for _, run in runs]}


def square(top, left, side, height=20, width=30):
    mask = np.zeros((height, width), dtype=bool)
    mask[top : top + side, left : left + side] = True
    return mask


@pytest.mark.parametrize("compressed", [True, False])
def test_mask_iou(compressed, reward):
    """Both squares have 100 pixels and share 50."""
    truth, other = square(0, 0, 10), square(0, 5, 10)
    texts = [f"<answer>{json.dumps(rle(mask, compressed))}</answer>" for mask in (truth, other, square(10, 20, 10))]
    assert values(reward("mask_iou")(group(rle(truth, not compressed), *texts))) == [1, pytest.approx(50 / 150), 0]


def test_mask_iou_on_ragged_masks_equals_pycocotools(reward):
    from pycocotools import mask as tools

    rng = np.random.default_rng(0)
    masks = [rng.random((37, 53)) < share for share in (0.1, 0.5, 0.9)]
    truth = rng.random((37, 53)) < 0.4
    found = values(reward("mask_iou")(group(rle(truth), *(json.dumps(rle(mask)) for mask in masks))))
    packed = [tools.encode(np.asfortranarray(mask.astype(np.uint8))) for mask in (truth, *masks)]
    assert found == pytest.approx([float(tools.iou([one], packed[:1], [0])[0][0]) for one in packed[1:]])


def test_polygons(reward):
    size = MediaSize(30, 20, 30, 20)
    text = json.dumps({"polygon": [[0, 0, 10, 0, 10, 10, 0, 10]]})
    far = json.dumps({"polygon": [[0, 0, 1e12, 0, 1e12, 1e12, 0, 1e12]]})
    samples = tuple(Sample(t, media_sizes=(size,)) for t in (text, far))
    g = Group(0, Prompt("p7", "?", answer=rle(square(0, 0, 10))), samples)
    assert values(reward("mask_iou")(g)) == [pytest.approx(1), pytest.approx(100 / 600)]


@pytest.mark.parametrize(
    "text",
    [
        "no mask", '{"size": [20, 30], "counts": [1, 2, 3]}', '{"size": [20, 30], "counts": [-600, 1200]}',
        '{"size": [20, 30], "counts": "\\u00ff\\u00ff"}', '{"size": [20, 30], "counts": "' + "o" * 5000 + '"}',
        '{"size": [9999999, 30], "counts": [1]}', '{"size": [20, 30], "counts": null}', '{"polygon": [[1, 2, 3]]}',
        '{"polygon": 3}', "[1, 2]",
    ],
)  # fmt: skip
def test_what_is_no_mask_scores_nothing_and_is_counted(text, reward):
    [scored] = reward("mask_iou")(group(rle(square(0, 0, 10)), text))
    assert scored.value == 0 and scored.parts["unparsed"] == 1


def key_frames(*texts, masks=None, space="pixel", **fields):
    """Frame 0 shows nothing, frame 1 a square of 25 pixels, frame 2 one of 100 and one of 25; 30 x 20 pixels, seen as 60 x 40."""
    shown = [[], [rle(square(0, 0, 5))], [rle(square(0, 0, 10)), rle(square(12, 20, 5))]]
    samples = tuple(Sample(text, media_sizes=(MediaSize(30, 20, 60, 40),) * 3) for text in texts)
    found = Group(0, Prompt("p7", "?", columns={"masks": shown if masks is None else masks}), samples)
    return load("key_frame_boxes", "rewards")(space=space, **fields)(found)


def key_frame(frame, *boxes):
    return f"<think>a</think><answer>{json.dumps({'keyframe_id': frame, 'bbox_2d_list': boxes})}</answer>"


def test_a_key_frame_counts_by_its_area_and_the_boxes_in_it():
    whole, small = key_frame(2, [20, 12, 25, 17], [0, 0, 10, 10]), key_frame(1, [0, 0, 5, 5])
    half, none, far = key_frame(2, [0, 0, 10, 5]), key_frame(2), key_frame(2, [0, 0, 10, 100])
    found = key_frames(whole, small, half, none, far)
    assert values(found) == [2, 25 / 125 + 1, 1 + 0.5 / 2, 1, 1], "25 of 125 pixels; IoU 1/2 for one of two boxes"
    assert [one.parts["outside"] for one in found] == [0, 0, 0, 0, 1]
    assert values(key_frames(key_frame(2, [0, 0, 20, 20], [40, 24, 50, 34]), space="resized")) == [2]


def test_a_frame_that_shows_nothing_or_does_not_exist_scores_nothing():
    others = [key_frame(k, [0, 0, 10, 10]) for k in (0, 3, -1)]
    found = key_frames(*others, key_frame("2", [0, 0, 10, 10]), key_frame(True), "[0, 0, 10, 10]", "<answer>{</answer>")
    assert values(found) == [0] * 7
    assert [one.parts["unparsed"] for one in found] == [0, 0, 0, 1, 1, 1, 1]
    assert values(key_frames(key_frame(0, [0, 0, 1, 1]), masks=[[], [rle(square(0, 0, 0))]])) == [0]


def test_masks_of_frames_are_refused_by_frame_and_column():
    with pytest.raises(ValueError, match="frame 1 in column 'masks' of prompt 'p7' holds no masks: "):
        key_frames("", masks=[[], [{"size": [20, 30], "counts": [1]}]])
    with pytest.raises(ValueError, match="masks of frame 0 in column 'masks' of prompt 'p7' have other sizes than its picture"):
        key_frames("", masks=[[rle(square(0, 0, 10, 30, 20))]])
    refused('space is still "auto"', key_frames, "", space="auto")
    assert load("key_frame_boxes", "rewards")(space="pixel")(group("4", "5")) == [None]


def test_masks_of_another_size_and_empty_ones(reward):
    truth = rle(square(0, 0, 10))
    [scored] = reward("mask_iou")(group(truth, json.dumps(rle(square(0, 0, 10, 30, 20)))))
    assert scored.value == 0 and scored.parts["wrong_size"] == 1
    empty = rle(square(0, 0, 0))
    assert values(reward("mask_iou")(group(empty, json.dumps(empty), json.dumps(truth)))) == [1, 0]
    refused("answer of prompt 'p7' is no mask", reward("mask_iou"), group("somewhere", "{}"))


def by_text(g):
    """The number a sample says."""
    return [Scored(float(s.text), {}) for s in g.samples]


def test_win_rates_by_any_scorer_against_all_or_some_opponents(reward):
    g = group(None, "1", "5", "3", "5.1")
    rates = reward("pairwise_win_rate", scorer=by_text)(g)
    assert values(rates) == pytest.approx([0, 2 / 3, 1 / 3, 1])
    assert [rate.parts["score"] for rate in rates] == [1, 5, 3, 5.1]
    assert values(reward("pairwise_win_rate", scorer=by_text, margin=0.5)(g)) == pytest.approx([0, 5 / 6, 1 / 3, 5 / 6])
    soft = values(reward("pairwise_win_rate", scorer=by_text, temperature=1.0)(group(None, "0", "1")))
    assert soft == pytest.approx([1 - 1 / (1 + math.exp(-1)), 1 / (1 + math.exp(-1))])
    rates = reward("pairwise_win_rate", scorer=by_text, opponents=1)(group(None, "1", "2", "3", "4"))
    assert [rate.parts["comparisons"] for rate in rates] == [2] * 4
    assert values(rates) == [0, 0.5, 0.5, 1]


def test_a_sample_whose_score_failed_fails_alone_and_mistakes_with_scorers_are_named(reward):
    """Pref-GRPO's code raises KeyError when a comparison is missing."""
    rates = values(reward("pairwise_win_rate", scorer=by_text)(group(None, "1", "nan", "3")))
    assert math.isnan(rates[1]) and rates[::2] == [0, 1]
    assert reward("pairwise_win_rate", scorer=lambda g: [None] * 2)(group(None, "a", "b")) == [None, None]
    refused("one of them", reward("pairwise_win_rate"), group(None, "1", "2"))
    refused("1 samples", reward("pairwise_win_rate", scorer=by_text), group(None, "1"))
    refused("answered 1 values for the 2 samples", reward("pairwise_win_rate", scorer=lambda g: [1.0]), group(None, "1", "2"))
    refused("the scorer answered dict for", reward("pairwise_win_rate", scorer=lambda g: {"a": 1.0}), group(None, "1", "2"))


@dataclass(frozen=True)
class Biased:
    """Likes the first place, and truth a little."""

    def compare(self, g, pairs):
        share = {pair: 0.8 + 0.1 * (float(g.samples[pair[0]].text) > float(g.samples[pair[1]].text)) for pair in pairs}
        return {pair: None if "x" in pair else value for pair, value in share.items()}


def test_a_liking_for_the_first_place_cancels(reward):
    rates = reward("pairwise_win_rate", scorer=Biased())(group(None, "1", "2", "3"))
    assert values(rates) == pytest.approx([0.45, 0.5, 0.55])
    assert rates[0].parts["first_wins"] == pytest.approx(0.85)


def test_async_scorers_keep_one_loop(reward):
    """One event loop per call breaks what an async scorer made in the first."""
    import asyncio

    loops = []

    async def later(g):
        loops.append(asyncio.get_running_loop())
        return [float(s.text) for s in g.samples]

    wins = reward("pairwise_win_rate", scorer=later)
    assert [values(wins(group(None, *texts))) for texts in (("1", "2"), ("9", "8"))] == [[0, 1], [1, 0]], "group by group"
    assert loops[0] is loops[1] and not loops[0].is_closed()


SHARES, SQUARE = {"space": "norm1000"}, rle(square(0, 0, 5))
OPENED = {
    "by_type": ({}, "B", "B"),
    "choice": ({}, "B", "B"),
    "number": ({}, 4, "4"),
    "math_answer": ({}, "4", "4"),
    "rouge": ({}, "a red dog", "a red dog"),
    "ocr_wer": ({}, "a red dog", "a red dog"),
    "answer_recall": ({}, "a red dog", "a red dog"),
    **dict.fromkeys(("iou", "giou"), (SHARES, Box(0.1, 0.1, 0.5, 0.5, "norm1"), "[100, 100, 500, 500]")),
    "point_in_box": ({**SHARES, "iou_coef": 0.0, "size_coef": 0.0}, Box(0.1, 0.1, 0.5, 0.5, "norm1"), "[100, 100, 500, 500]"),
    "multi_box": (SHARES, (Box(0.1, 0.1, 0.5, 0.5, "norm1"),), "[100, 100, 500, 500]"),
    **dict.fromkeys(("temporal_iou", "pseudo_span", "key_frame"), ({}, Interval(1.0, 2.0), "1.0 to 2.0")),
    "label_levels": ({}, "hand/finger", "hand/finger"),
    "mask_iou": ({}, SQUARE, json.dumps(SQUARE)),
    "key_frame_boxes": ({"space": "pixel"}, None, '{"keyframe_id": 1}'),
}
"""Reward that may ask for a template -> its settings, an answer, and what a model writes that earns 1 of it."""
COLUMNS = {"duration": 10.0, "problem_type": "choice", "masks": [[], [SQUARE]]}


@for_each("name", OPENED)
def test_a_thought_that_the_template_opened_earns_nothing_until_it_ends(name, reward):
    settings, answer, text = OPENED[name]
    texts = {"": text, "<think>": f"Let me see.</think>{text}", "<think> ": f"<think>x</think> {text}"}
    samples = [Sample(text=written, opened=tag.strip()) for tag, written in texts.items()]
    samples += [Sample(text=text, opened="<think>", truncated=True), Sample(text=f"<answer>{text}</answer> or", opened="<think>")]
    found = reward(name, **settings)(Group(0, Prompt("p", "q", answer=answer, columns=COLUMNS), tuple(samples)))
    assert [getattr(one, "value", one) for one in found] == pytest.approx([1, 1, 1, 0, 0])


@for_each("name", OPENED)
def test_format_says_which_texts_keep_the_template_where_there_is_one(name, reward):
    settings, answer, text = OPENED[name]
    kept, wrong = f"<think>x</think><answer>{text}</answer>", "<think>x</think><answer>?</answer>"
    asked = group(answer, text, kept, kept, wrong, columns=COLUMNS)
    free, held = reward(name, **settings)(asked), reward(name, template="think", **settings)(asked)
    assert values(free) == pytest.approx([1, 1, 1, 0]) and values(held) == pytest.approx([0, 1, 1, 0])
    assert ["format" in one.parts for one in free] == [False] * 4 and [one.parts["format"] for one in held] == [0, 1, 1, 1]
    assert [one.parts["unparsed"] for one in held] == [1, 0, 0, free[3].parts["unparsed"]]


def test_every_reward_that_may_ask_for_a_template_is_among_them():
    found = {file.stem: load(str(file), "rewards") for file in (ROOT / "rewards").glob("*.py")}
    assert {name for name, one in found.items() if isinstance(one, type) and issubclass(one, InTemplate)} == set(OPENED)
