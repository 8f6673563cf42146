"""Film strips of clips with the true and the predicted span under them, and figures of spans."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from mmrl.answers.spans.interval import Interval
from mmrl.app.report.data import changes, load
from mmrl.app.report.page import write_report
from mmrl.app.report.rows import SampleLine
from mmrl.app.run.folder import RunDir
from mmrl.app.run.sample_files import CLIP_FRAMES, answer_spans, frames_of
from mmrl.app.run.trackers import JsonlTracker
from mmrl.core.samples import ClipTime
from mmrl.core.types import Group, Prompt, Sample, Scores, Video
from mmrl.data.files.mp4 import write_mp4
from mmrl.training.callbacks import Examples

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
    run = RunDir.create(path)
    run.metrics_file.touch()
    scores = Scores(("temporal_iou",), torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.long), torch.ones(1))
    for step, text in enumerate(texts):
        JsonlTracker(run, None).write(step, Examples([Group(0, prompt(clip), (Sample(text=text, clips=CLIP),))], scores), "eval")
    return run


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
