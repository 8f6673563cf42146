"""What a report counts and draws: intervals, signs and unread answers by hand, where the time went, clips and sounds."""

import json
import math
import re
import threading
import wave
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmrl.answers.spans.interval import Interval
from mmrl.app.report.data import changes, kind_of_row, load
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
from mmrl.app.report.page import MOST_CLIP_BYTES, MOST_PROMPTS, MOST_STEPS, evenly, thumbnail, write_report
from mmrl.app.report.rows import SampleLine
from mmrl.app.report.timing import Phase, phases, read_steps, step_lines, time_band
from mmrl.app.run import trackers as step_spans
from mmrl.app.run.folder import RunDir
from mmrl.app.run.sample_files import CLIP_FRAMES, WAVEFORM, answer_spans, digest, frames_of
from mmrl.app.run.trackers import StepSpans, stride
from mmrl.core.samples import Audio, ClipTime
from mmrl.core.types import Prompt, Sample, Video
from mmrl.data.files.mp4 import write_mp4
from mmrl.runtime.spans import span
from tests.app.report.test_page import page_of, row
from tests.support.runs import evaluated, write_run
from tests.support.sounds import tone, write_wav


def line(prompt: str, total: float | None, completion: str = "x", **more: Any) -> SampleLine:
    given = {"prompt": prompt, "text": "?", "total": total, "scores": {"r": total}, "columns": {}, "media_sizes": [], **more}
    return SampleLine(row(completion, [], **given).line, more.get("box_space"))


def test_shares_have_wilsons_interval_and_fewer_than_ten_prompts_none():
    few = estimate([0.2] * 9)
    assert not few.has_interval and (few.how, few.why_none, few.mean) == ("none", "9 of 10 prompts", pytest.approx(0.2))
    assert estimate([0.2] * 10).why_none == "" and estimate([0.2] * 10).has_interval
    # 8 of 10: centre (0.8 + z^2 / 20) / (1 + z^2 / 10) = 0.71673, half width z sqrt(.016 + z^2 / 400) / (1 + z^2 / 10) = 0.22657
    found = estimate([1.0] * 8 + [0.0] * 2)
    assert (found.how, found.mean) == ("wilson", 0.8)
    assert (found.low, found.high) == pytest.approx((0.49016, 0.94331), abs=1e-4)
    assert estimate([0.0] * 20).high == pytest.approx(0.16113, abs=1e-4), "none of 20 is not surely none"


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
    nine = PairedChange("r", 0.0, 1.0, math.nan, math.nan, 9, "reward", 9, 0)
    assert math.isnan(nine.sign_p), "nothing is said of nine prompts"


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
    plain, parts = ({one.name for one in figures(rows["c"], parts=parts)} for parts in (False, True))
    assert "r/exact" in parts - plain
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


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Without a step."""
    return RunDir.create(tmp_path / "run")


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


def test_equal_steps_one_step_alone_and_a_stall_between_the_phases(run: RunDir, clock: list[float]) -> None:
    assert step_lines(read_steps(run.spans_file)) == []
    spans = StepSpans(run)
    take_step(spans, clock, 1, 1.0)
    assert [one.title for one in step_lines(read_steps(run.spans_file))] == ["A typical step (1): 2.75 s"]
    for step, generate in ((2, 1.0), (3, 1.25), (4, 1.0)):
        take_step(spans, clock, step, generate)
    assert step_lines(read_steps(run.spans_file))[1].note == "Hardly longer than a typical one."
    take_step(spans, clock, 5, 1.0, between=7.25)
    assert step_lines(read_steps(run.spans_file))[1].note == "7 s more than a typical one in the rest."


def test_long_runs_keep_few_steps_and_every_slow_one(run: RunDir, clock: list[float]) -> None:
    spans = StepSpans(run)
    for step in range(1, 1001):
        take_step(spans, clock, step, 30.0 if step == 777 else 1.0)
    kept = [step.number for step in read_steps(run.spans_file)]
    assert len(kept) < 200 and 777 in kept and kept[:63] == list(range(1, 64))
    assert [stride(step) for step in (63, 64, 127, 128, 1000)] == [1, 2, 2, 4, 16]
    assert step_lines(read_steps(run.spans_file))[1].title.startswith("The slowest step (777)")
    run.truncate(700)
    assert max(step.number for step in read_steps(run.spans_file)) <= 700


def test_other_threads_and_evaluations_are_not_part_of_a_step(run: RunDir, clock: list[float]) -> None:
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
    # older runs have seconds alone
    found = phases([{"step": 1, "time/step_s": 4.0, "time/rollout_s": 1.0, "time/read_s": 2.0}, {"step": 2, "time/step_s": None}])
    shares = {"rollout": 0.25, "reading old and reference weights": 0.5, "everything else": 0.25}
    assert {phase.name: phase.share for phase in found} == shares
    assert phases([{"step": 1, "loss": 1.0}]) == [] and time_band(LINES[:1]) == ""


def test_bands_are_stacked_to_the_top():
    band = time_band(LINES)
    heights = [[float(y) for y in re.findall(r",([\d.]+)", points)] for points in re.findall(r'points="([^"]+)"', band)]
    assert len(heights) == 3
    for lower, upper in pairwise(heights):
        # a band's upper edge left to right is the next one's lower edge right to left
        assert lower[:2] == upper[:1:-1]
    assert heights[-1][:2] == [10.0, 10.0] and heights[0][:1:-1] == [184.0, 184.0]


def test_the_page_shows_them_and_long_runs_are_thinned(tmp_path: Path):
    lines = [{"step": step, "time/step_s": 1.0, "time/update_share": 1.0} for step in range(1, 1001)]
    assert max(len(points.split()) for points in re.findall(r'points="([^"]+)"', time_band(lines))) <= 300
    page = page_of(write_run(tmp_path / "run"))
    assert "Where the time went" in page and '<polygon class="band p0"' in page and "last step</th>" in page


CLIP = (ClipTime(8.0, 10.0, 16),)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Eight seconds whose frames grow brighter: 3 grey values per frame."""
    frames = np.stack([np.full((32, 48, 3), 3 * i, np.uint8) for i in range(80)])
    return str(write_mp4(tmp_path_factory.mktemp("clip") / "clip.mp4", frames, fps=10))


def prompt(clip: str, answer: object = Interval(2, 4)) -> Prompt:
    return Prompt("p", "When is it?", (Video(clip),), answer)


def finished(path: Path, clip: str, *texts: str) -> RunDir:
    """A run whose evaluations wrote these texts."""
    answers = {step: [Sample(text=text, clips=CLIP)] for step, text in enumerate(texts)}
    return evaluated(RunDir.create(path), prompt(clip), answers)


def test_a_clip_becomes_the_middles_of_equal_parts(clip: str) -> None:
    frames, kind = frames_of(Video(clip))
    assert kind == "video" and len(frames) == CLIP_FRAMES == 8
    # part k of 8 seconds has its middle at k + 0.5 seconds, which is frame 10 k + 5, give or take one
    assert [float(np.asarray(frame).mean()) for frame in frames] == pytest.approx([3 * (10 * k + 5) for k in range(8)], abs=4)
    later = frames_of(Video(clip, start=4.0, end=8.0))[0]
    assert float(np.asarray(later[0]).mean()) == pytest.approx(3 * 42.5, abs=4)


def test_spans_are_drawn_in_percent_of_the_clip(tmp_path: Path, clip: str) -> None:
    run = finished(tmp_path / "run", clip, "1.0 to 7.0", "2.0 to 5.0")
    page = write_report(run.path).read_text(encoding="utf-8")
    # 2 to 4 of 8 seconds; 1 to 7; 2 to 5. The pair shows both, best or worst of the last evaluation one of them again
    assert page.count('<i class="truth" style="left:25.000%;width:25.000%"') == 3
    assert page.count('<i class="predicted" style="left:12.500%;width:75.000%"') == 1
    assert page.count('<i class="predicted" style="left:25.000%;width:37.500%"') == 2
    assert "true span" in page and "Answer:" not in page
    figures = {change.name: change for change in changes(load(run.path))}
    assert (figures["Mean IoU"].before, figures["Mean IoU"].after) == pytest.approx((2 / 6, 2 / 3))
    assert [figures[f"R@{least}"].after for least in (0.3, 0.5, 0.7)] == [1.0, 1.0, 0.0]
    assert "Hits" not in figures and "Acc@0.5" not in figures


def test_text_without_a_span_counts_0_and_is_named(tmp_path: Path, clip: str) -> None:
    run = finished(tmp_path / "run", clip, "never", "2.0 to 4.0")
    page = write_report(run.path).read_text(encoding="utf-8")
    assert {change.name: change for change in changes(load(run.path))}["Mean IoU"].before == 0.0
    assert page.count('<div class="film"') == 3


def test_other_answers_have_no_spans(clip: str) -> None:
    sample = Sample(text="A", clips=CLIP)
    assert answer_spans(prompt(clip, "A,C"), sample) is None and answer_spans(prompt(clip, None), sample) is None
    assert answer_spans(prompt(clip), Sample(text="1 to 2")) is None
    assert answer_spans(prompt(clip, (Interval(1, 2), Interval(3, 4))), Sample(text="0 to 3", clips=CLIP)) == {
        "seconds": 8.0,
        "truth": [[1.0, 2.0], [3.0, 4.0]],
        "predicted": [[0.0, 3.0]],
    }
    old = SampleLine({"completion": "1 to 2", "answer_boxes": [], "media": [], "media_sizes": []}, None)
    assert old.spans is None and math.isnan(old.iou)


def labels(run: RunDir) -> list[list[str]]:
    """The labels of every strip."""
    found = re.findall(r'<div class="over-steps">(.*?)</article>', write_report(run.path).read_text(), re.DOTALL)
    return [re.findall(r'<p class="label">(step \d+|source)', strip) for strip in found]


def copy_samples(run: RunDir, split: str, steps: list[int]) -> None:
    """Evaluations at more steps, as the first one was."""
    text = run.samples_file("eval", run.sample_steps("eval")[0]).read_text()
    for step in steps:
        run.samples_file(split, step).write_text(text.replace('"step": 0', f'"step": {step}').replace('"eval"', f'"{split}"'))


def test_steps_are_even_with_the_first_and_the_last():
    assert evenly([0, 10, 20], 8) == [0, 10, 20] and evenly([], 8) == [] and evenly([5], 8) == [5]
    assert evenly(list(range(0, 101)), 5) == [0, 25, 50, 75, 100]
    assert len(evenly(list(range(1000)), MOST_STEPS)) == MOST_STEPS


def test_held_out_prompts_stand_side_by_side_over_the_steps(tmp_path: Path):
    run = write_run(tmp_path / "run", steps=4, num_prompts=9)
    for step in run.sample_steps("eval")[1:]:
        run.samples_file("eval", step).unlink()
    copy_samples(run, "eval", [2])
    assert labels(run) == [], "two evaluations are shown as pairs"
    copy_samples(run, "eval", [4, 6])
    assert labels(run) == [["step 0", "step 2", "step 4", "step 6"]] * MOST_PROMPTS
    page = run.report_file.read_text()
    assert "<h3>Held out</h3>" in page and "<h3>Seen</h3>" not in page
    copy_samples(run, "seen", [0])
    assert labels(run)[MOST_PROMPTS:] == [["step 0"]] * MOST_PROMPTS
    assert "<h3>Seen</h3>" in run.report_file.read_text()


def test_pictures_of_a_strip_are_small_and_lie_in_the_page(tmp_path: Path):
    large, small, broken = (tmp_path / name for name in ("large.jpg", "small.png", "broken.jpg"))
    Image.effect_noise((1024, 700), 90).convert("RGB").save(large, quality=95)
    Image.new("RGB", (16, 16)).save(small)
    broken.write_bytes(b"x" * 20_000)
    assert thumbnail(large).startswith("data:image/jpeg;base64,") and len(thumbnail(large)) < 200_000 < large.stat().st_size
    assert thumbnail(small).startswith("data:image/png;base64,")
    assert thumbnail(broken) == thumbnail(tmp_path / "gone.png") == thumbnail(tmp_path / "clip.mp4") == ""


def finished_with_sound(folder: Path, sound: Audio, answer: object) -> RunDir:
    """A run with two evaluations of one prompt about the sound."""
    prompt = Prompt("p", "When does it ring?", (sound,), answer, {"duration": 4.0})
    return evaluated(RunDir.create(folder), prompt, {0: [Sample("0.0 to 4.0")], 1: [Sample("2.0 to 3.0")]})


def test_a_waveform_is_high_where_the_sound_is_loud(tmp_path: Path):
    [drawn], kind = frames_of(write_wav(tmp_path / "a.wav", [tone(4.0, start=2.0)]))
    dark = (np.asarray(drawn).mean(2) < 200).sum(0)
    assert kind == "sound" and drawn.size == WAVEFORM and dark[:250].max() <= 2 and dark[260:].min() > WAVEFORM[1] - 8
    silent, _ = frames_of(write_wav(tmp_path / "b.wav", [np.zeros(16_000)]))
    assert (np.asarray(silent[0]).mean(2) < 200).sum(0).max() <= 2


@pytest.mark.parametrize("answer", [Interval(2, 3), "a bell"], ids=["a span", "words"])
def test_the_page_plays_the_sound_beside_its_waveform(tmp_path: Path, answer: object):
    run = finished_with_sound(tmp_path / "run", write_wav(tmp_path / "a.wav", [tone(4.0, start=2.0)]), answer)
    page = write_report(run.path).read_text(encoding="utf-8")
    assert page.count('<audio src="data:audio/wav;base64,') == page.count("<audio ") >= 3 and "media-src data:" in page
    [stored] = (run.samples / "media").glob("*.wav")
    with wave.open(str(stored)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (16_000, 1, 64_000)
    bars = page.count('<i class="truth" style="left:50.000%;width:25.000%"'), page.count('style="left:0.000%;width:100.000%"')
    assert bars == ((3, 1) if isinstance(answer, Interval) else (0, 0))


def test_a_sound_too_large_for_the_page_stays_beside_the_samples(tmp_path: Path):
    run = finished_with_sound(tmp_path / "run", write_wav(tmp_path / "a.wav", [tone(MOST_CLIP_BYTES / 32_000 + 1)]), "a bell")
    page = write_report(run.path).read_text(encoding="utf-8")
    assert "<audio " not in page and 'class="picture strip"' in page and len(list((run.samples / "media").glob("*.wav"))) == 1


def test_a_drawn_sound_is_kept_as_a_file_and_played(tmp_path: Path):
    left, right = tone(0.5, 400.0), tone(0.5, 900.0)
    made = tuple(Sample(sound=np.stack(pair).astype(np.float32), rate=16_000) for pair in ((left, right), (right, right)))
    run = evaluated(RunDir.create(tmp_path / "run"), Prompt("p", "a hum"), {0: made, 1: made})
    files = sorted((run.samples / "media").glob("*.wav"))
    first = json.loads(run.samples_file("eval", 0).read_text(encoding="utf-8").splitlines()[0])["sound"]
    assert (first["kind"], first["width"], first["height"]) == ("sound", *WAVEFORM)
    with wave.open(str(run.samples / first["sound"])) as file:
        assert (file.getframerate(), file.getnchannels(), file.getnframes()) == (16_000, 2, 8_000)
        back = np.frombuffer(file.readframes(8_000), "<i2").reshape(-1, 2).T / 32767
    np.testing.assert_allclose(back, made[0].sound, atol=0.51 / 32767)
    page = write_report(run.path).read_text(encoding="utf-8")
    assert len(files) == 2 and page.count('<audio src="data:audio/wav;base64,') >= 2
    louder = Sample(sound=made[0].sound * np.float32(1 + 1e-6), rate=16_000)
    assert digest(made[0]) == digest(Sample(sound=made[0].sound.copy(), rate=16_000)) != digest(louder)
