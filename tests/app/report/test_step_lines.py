"""Time lines of a typical step and of the slowest one: what a run records of its spans, and how the report draws it."""

import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from mmrl.app.report.timing import read_steps, step_lines
from mmrl.app.run import trackers as step_spans
from mmrl.app.run.folder import RunDir
from mmrl.app.run.trackers import StepSpans, stride
from mmrl.runtime.spans import span
from tests.app.report.test_page import page_of
from tests.support.runs import write_run


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
    assert slowest.words == "3 s more than a typical one in rollout, of it 3 s in generate."
    lanes = re.findall(r'<rect class="band (p\d)" x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', slowest.drawing)
    # 272 pixels from 96 on are 5.75 s: rollout, reward, update, and the quarter of a second before the update
    expected = [("p0", 0.0, 4.25), ("p1", 4.25, 0.25), ("p3", 4.75, 1.0), ("p4", 4.5, 0.25)]
    assert lanes == [(name, f"{96 + 272 * at / 5.75:.1f}", f"{272 * long / 5.75:.1f}") for name, at, long in expected]
    assert slowest.drawing.count('class="inner"') == 5 and "generate: 4 s from 0.25 s on" in slowest.drawing
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
    drawing = step_lines(read_steps(run.spans_file))[0].drawing
    assert ">sampler-0</text>" in drawing and "chunk: 0.25 s from 0 s on" in drawing


def test_a_stall_between_the_phases_is_called_the_rest(tmp_path: Path, clock: list[float]) -> None:
    run = RunDir.create(tmp_path / "run")
    spans = StepSpans(run)
    for step, between in enumerate([0.25, 0.25, 0.25, 7.25], start=1):
        take_step(spans, clock, step, 1.0, between)
    assert step_lines(read_steps(run.spans_file))[1].words == "7 s more than a typical one in the rest."


def test_equal_steps_and_one_step_alone(tmp_path: Path, clock: list[float]) -> None:
    run = RunDir.create(tmp_path / "run")
    assert step_lines(read_steps(run.spans_file)) == []
    spans = StepSpans(run)
    take_step(spans, clock, 1, 1.0)
    assert [one.title for one in step_lines(read_steps(run.spans_file))] == ["A typical step (1): 2.75 s"]
    take_step(spans, clock, 2, 1.0)
    take_step(spans, clock, 3, 1.25)
    take_step(spans, clock, 4, 1.0)
    assert step_lines(read_steps(run.spans_file))[1].words == "Hardly longer than a typical one."


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
