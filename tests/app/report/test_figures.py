"""Intervals, signs and shares of unread answers, against numbers worked out by hand."""

import json
import math
import re
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
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
from mmrl.app.report.timing import Phase, phases, read_steps, step_lines, time_band
from mmrl.app.run import trackers as step_spans
from mmrl.app.run.folder import RunDir
from mmrl.app.run.trackers import StepSpans, stride
from mmrl.runtime.spans import span
from tests.app.report.test_page import page_of, row
from tests.support.runs import write_run


def line(prompt: str, total: float | None, completion: str = "x", **more: Any) -> SampleLine:
    given = {"prompt": prompt, "text": "?", "total": total, "scores": {"r": total}, "columns": {}, "media_sizes": [], **more}
    return SampleLine(row(completion, [], **given).line, more.get("box_space"))


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


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The time, which only the test moves."""
    now = [100.0]

    class Clock:
        @staticmethod
        def perf_counter() -> float:
            return now[0]

    monkeypatch.setattr(step_spans, "time", Clock)
    yield now


def spend(clock: list[float], name: str, *inner: tuple[str, float], before: float = 0.0) -> None:
    """A span that holds others of these seconds, after some seconds without a name."""
    clock[0] += before
    with span(name):
        for inside, seconds in inner:
            with span(inside):
                clock[0] += seconds


def take_step(spans: StepSpans, clock: list[float], step: int, generate: float, between: float = 0.25) -> None:
    with span("step"):
        spend(clock, "rollout", ("encode", 0.25), ("generate", generate))
        spend(clock, "reward", ("judge", 0.25))
        spend(clock, "update", ("forward", 0.5), ("backward", 0.5), before=between)
    spans.after_step(step, {}, None)


def test_a_stall_is_found_and_named(tmp_path: Path, clock: list[float]) -> None:
    run = write_run(tmp_path / "run", steps=5)
    spans = StepSpans(run)
    for step, generate in enumerate([9.0, 1.0, 1.0, 4.0, 1.5], start=1):
        take_step(spans, clock, step, generate)
    lines = [json.loads(line) for line in run.spans_file.read_text().splitlines()]
    assert [line["seconds"] for line in lines] == [10.75, 2.75, 2.75, 5.75, 3.25] and lines[0]["is_first"]
    assert lines[3]["spans"][:3] == [["rollout", 0, 4.25], ["encode", 0, 0.25], ["generate", 0.25, 4.0]]
    typical, slowest = step_lines(read_steps(run.spans_file))
    # the first step of a process is left out; of 2.75, 2.75, 3.25 and 5.75 the lower median is 2.75
    assert typical.title == "A typical step (2): 2.75 s" and slowest.title == "The slowest step (4): 5.75 s"
    assert slowest.note == "3 s more than a typical one in rollout, of it 3 s in generate."
    lanes = re.findall(r'<rect class="band (p\d)" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', slowest.svg)
    # 272 pixels from 96 on are 5.75 s: rollout, reward, update, and the quarter of a second before the update
    expected = [("p0", 0.0, 4.25), ("p1", 4.25, 0.25), ("p3", 4.75, 1.0), ("p4", 4.5, 0.25)]
    assert lanes == [(name, f"{96 + 272 * at / 5.75:.1f}", f"{272 * long / 5.75:.1f}") for name, at, long in expected]
    assert slowest.svg.count('class="inner"') == 5 and "generate: 4 s from 0.25 s on" in slowest.svg
    page = page_of(run)
    assert "A typical step (2): 2.75 s" in page and "of it 3 s in generate." in page


def test_a_thread_that_samples_has_a_lane_of_its_own(tmp_path: Path, clock: list[float]) -> None:
    run = write_run(tmp_path / "run", steps=2)
    spans, begun, go_on = StepSpans(run), threading.Event(), threading.Event()

    def draw_chunks() -> None:
        with span("chunk"):
            begun.set()
            go_on.wait()

    clock[0] += 7.0
    with span("step"):
        clock[0] += 1.0
        threads = [threading.Thread(target=draw_chunks, name=name) for name in ("sampler-0", "a reward's")]
        threads[0].start()
        begun.wait()
        threads[1].start()
        clock[0] += 0.5
        spend(clock, "update", ("forward", 0.5))
    spans.after_step(1, {}, None)
    with span("step"):
        spend(clock, "update", ("forward", 0.25))
        go_on.set()
        for thread in threads:
            thread.join()
        clock[0] += 0.25
    spans.after_step(2, {}, None)
    lines = [json.loads(line)["beside"] for line in run.spans_file.read_text().splitlines()]
    assert lines == [{"sampler-0": [["chunk", 1.0, 1.0]]}, {"sampler-0": [["chunk", 0.0, 0.25]]}]
    drawing = step_lines(read_steps(run.spans_file))[0].svg
    assert ">sampler-0</text>" in drawing and "chunk: 0.25 s from 0 s on" in drawing


def test_a_stall_between_the_phases_is_called_the_rest(tmp_path: Path, clock: list[float]) -> None:
    run = RunDir.create(tmp_path / "run")
    spans = StepSpans(run)
    for step, between in enumerate([0.25, 0.25, 0.25, 7.25], start=1):
        take_step(spans, clock, step, 1.0, between)
    assert step_lines(read_steps(run.spans_file))[1].note == "7 s more than a typical one in the rest."


def test_equal_steps_and_one_step_alone(tmp_path: Path, clock: list[float]) -> None:
    run = RunDir.create(tmp_path / "run")
    assert step_lines(read_steps(run.spans_file)) == []
    spans = StepSpans(run)
    take_step(spans, clock, 1, 1.0)
    assert [one.title for one in step_lines(read_steps(run.spans_file))] == ["A typical step (1): 2.75 s"]
    take_step(spans, clock, 2, 1.0)
    take_step(spans, clock, 3, 1.25)
    take_step(spans, clock, 4, 1.0)
    assert step_lines(read_steps(run.spans_file))[1].note == "Hardly longer than a typical one."


def test_long_runs_keep_few_steps_and_every_slow_one(tmp_path: Path, clock: list[float]) -> None:
    run = RunDir.create(tmp_path / "run")
    spans = StepSpans(run)
    for step in range(1, 1001):
        take_step(spans, clock, step, 30.0 if step == 777 else 1.0)
    kept = [step.number for step in read_steps(run.spans_file)]
    assert len(kept) < 200 and 777 in kept and kept[:63] == list(range(1, 64))
    assert [stride(step) for step in (63, 64, 127, 128, 1000)] == [1, 2, 2, 4, 16]
    assert step_lines(read_steps(run.spans_file))[1].title.startswith("The slowest step (777)")
    run.truncate(700)
    assert max(step.number for step in read_steps(run.spans_file)) <= 700


def test_other_threads_and_evaluations_are_not_part_of_a_step(tmp_path: Path, clock: list[float]) -> None:
    run = RunDir.create(tmp_path / "run")
    spans = StepSpans(run)
    spend(clock, "evaluate", ("generate", 5.0))
    with span("step"):
        thread = threading.Thread(target=spend, args=(clock, "judge", ("inside", 1.0)))
        thread.start()
        thread.join()
        spend(clock, "rollout", ("generate", 1.0))
    spans.after_step(1, {}, None)
    (step,) = read_steps(run.spans_file)
    assert [one.name for one in step.spans] == ["rollout", "generate"] and step.seconds == 2.0


def test_a_line_that_is_no_step_is_named(tmp_path: Path) -> None:
    (tmp_path / "spans.jsonl").write_text('{"step": 1}\n')
    with pytest.raises(ValueError, match=r"spans\.jsonl, line 1 is no step with its spans: remove the line"):
        read_steps(tmp_path / "spans.jsonl")


LINES = [
    {"step": 1, "time/step_s": 8.0, "time/rollout_share": 0.5, "time/update_share": 0.25, "time/rollout_s": 9.0},
    {"step": 2, "time/step_s": 24.0, "time/rollout_share": 0.125, "time/update_share": 0.875},
]


def test_parts_of_all_steps_and_of_the_last():
    # rollout 4 + 3 of 32 s, update 2 + 21, the rest 2 + 0; shares of all processes count before seconds of one
    assert phases(LINES) == [
        Phase("rollout", "p0", 3.5, 0.21875, 0.125),
        Phase("update", "p3", 11.5, 0.71875, 0.875),
        Phase("everything else", "p4", 1.0, 0.0625, 0.0),
    ]


def test_older_runs_have_seconds_alone():
    found = phases([{"step": 1, "time/step_s": 4.0, "time/rollout_s": 1.0, "time/read_s": 2.0}, {"step": 2, "time/step_s": None}])
    assert [(phase.name, phase.share) for phase in found] == [
        ("rollout", 0.25),
        ("reading old and reference weights", 0.5),
        ("everything else", 0.25),
    ]
    assert phases([{"step": 1, "loss": 1.0}]) == [] and time_band(LINES[:1]) == ""


def test_bands_are_stacked_to_the_top():
    band = time_band(LINES)
    heights = [[float(y) for y in re.findall(r",([\d.]+)", points)] for points in re.findall(r'points="([^"]+)"', band)]
    assert len(heights) == 3
    for lower, upper in pairwise(heights):
        # a band's upper edge left to right is the next one's lower edge right to left
        assert lower[:2] == upper[:1:-1]
    assert heights[-1][:2] == [10.0, 10.0] and heights[0][:1:-1] == [184.0, 184.0]


def test_long_runs_are_thinned():
    lines = [{"step": step, "time/step_s": 1.0, "time/update_share": 1.0} for step in range(1, 1001)]
    assert max(len(points.split()) for points in re.findall(r'points="([^"]+)"', time_band(lines))) <= 300


def test_the_page_shows_them(tmp_path):
    page = page_of(write_run(tmp_path / "run"))
    assert "Where the time went" in page and '<polygon class="band p0"' in page and "last step</th>" in page
