"""Intervals, signs and shares of unread answers, against numbers worked out by hand."""

import math
from typing import Any

import numpy as np
import pytest

from mmrl.app.report.data import kind_of_row
from mmrl.app.report.figures import (
    MOST_RESAMPLED,
    PairedChange,
    bootstrap,
    estimate,
    estimates,
    figures,
    interval_of_mean,
    paired_changes,
)
from mmrl.app.report.rows import SampleLine


def line(
    prompt: str, total: float | None, completion: str = "x", parts: dict[str, float] | None = None, **more: Any
) -> SampleLine:
    values = {
        "prompt": prompt,
        "text": "?",
        "completion": completion,
        "total": total,
        "scores": {"r": total},
        "parts": parts or {},
    }
    return SampleLine(
        {**values, "answer_boxes": [], "media": [], "media_sizes": [], "columns": {}, **more}, more.get("box_space")
    )


def test_shares_have_wilsons_interval():
    # 8 of 10: centre (0.8 + z^2 / 20) / (1 + z^2 / 10) = 0.71673, half width z sqrt(.016 + z^2 / 400) / (1 + z^2 / 10) = 0.22657
    found = estimate([1.0] * 8 + [0.0] * 2)
    assert (found.how, found.mean) == ("wilson", 0.8)
    assert (found.low, found.high) == pytest.approx((0.49016, 0.94331), abs=1e-4)
    assert estimate([0.0] * 20).high == pytest.approx(0.16113, abs=1e-4), "none of 20 is not surely none"


def test_fewer_than_ten_prompts_have_no_interval_and_say_why():
    found = estimate([0.2] * 9)
    assert not found.has_interval and (found.how, found.why_none, found.mean) == ("none", "9 of 10 prompts", pytest.approx(0.2))
    assert estimate([0.2] * 10).why_none == "" and estimate([0.2] * 10).has_interval


def test_other_numbers_have_a_bootstrap_and_many_the_normal_interval():
    values = np.random.default_rng(0).uniform(size=400)
    found = estimate(values.tolist())
    assert found.how == "bootstrap" and (found.low, found.high) == bootstrap(values)
    many = np.random.default_rng(1).uniform(size=MOST_RESAMPLED + 1)
    assert estimate(many.tolist()).how == "normal"
    reach = 1.959964 * many.std(ddof=1) / math.sqrt(len(many))
    assert interval_of_mean(many) == pytest.approx((many.mean() - reach, many.mean() + reach))


def test_the_sign_test_counts_prompts_that_differ():
    before = {f"p{i}": [line(f"p{i}", 0.5)] for i in range(12)}
    after = {f"p{i}": [line(f"p{i}", 0.6 if i < 9 else 0.1 if i == 9 else 0.5)] for i in range(12)}
    (change,) = paired_changes(before, after)
    assert (change.higher, change.lower, change.same) == (9, 1, 2)
    # two-sided: 2 (1 + 10) / 2^10
    assert change.sign_p == pytest.approx(22 / 1024)
    (still,) = paired_changes(before, before)
    assert (still.higher, still.lower, still.sign_p) == (0, 0, 1.0)
    assert math.isnan(PairedChange("r", 0.0, 1.0, math.nan, math.nan, 9, "reward", 9, 0).sign_p), (
        "nothing is said of nine prompts"
    )


def test_samples_of_a_prompt_are_averaged_first_and_failed_ones_left_out():
    found = estimates({"a": [line("a", 0.0), line("a", 1.0)], "b": [line("b", 1.0)], "c": [line("c", None)]})
    assert (found["Reward"].mean, found["Reward"].num_prompts) == (0.75, 2)


def test_the_share_of_answers_that_were_not_read_stands_beside_each_mean():
    rows = {
        "a": [line("a", 0.0, parts={"r/unparsed": 1.0, "r/exact": 0.0})],
        "b": [line("b", 1.0, parts={"r/unparsed": 0.0, "r/exact": 1.0})],
        "c": [line("c", 1.0, parts={"r/exact": 1.0})],
    }
    found = estimates(rows, parts=True)
    assert found["Reward"].unread == found["r/exact"].unread == 0.5, "of the two whose reward said so"
    assert "r/unparsed" not in found and math.isnan(estimates({"a": [line("a", 0.0)]})["Reward"].unread)


def test_boxes_that_cannot_be_read_are_counted_where_no_reward_counts_them():
    box = {"answer_boxes": [[0, 0, 20, 20, None]], "media_sizes": [[100, 100, 100, 100]], "box_space": "pixel"}
    rows = [line("a", 1.0, "[0, 0, 20, 20]", **box), line("b", 0.0, "no idea", **box)]
    assert [row.unread for row in rows] == [0.0, 1.0]
    assert [row.value for row in rows] == [[[0.0, 0.0, 20.0, 20.0, None]], []]
    assert [kind_of_row(row, "box size") for row in rows] == ["small", "small"]
    changes = {one.name: one for one in paired_changes({"a": [rows[1]]}, {"a": [rows[0]]})}
    assert changes["Mean IoU"].unread == (1.0, 0.0)
    assert line("t", 1.0, "<think>so</think><answer> B </answer>").value == "B"


@pytest.mark.parametrize(("side", "kind"), [(31.9, "small"), (32, "medium"), (95.9, "medium"), (96, "large")])
def test_sizes_of_boxes_are_those_of_coco(side: float, kind: str):
    assert line("a", 1.0, answer_boxes=[[0, 0, side, side, None]]).box_size == kind


def test_kinds_are_columns_of_the_prompt():
    row = line("a", 1.0, columns={"split": "testA", "n": 3}, source="boxes")
    assert [kind_of_row(row, name) for name in ("split", "n", "source", "none")] == ["testA", "3", "boxes", ""]


def test_parts_are_figures_only_where_they_are_asked_for():
    rows = [line("a", 1.0, parts={"r/hit": 1.0})]
    assert "r/hit" in {one.name for one in figures(rows, parts=True)} - {one.name for one in figures(rows)}
