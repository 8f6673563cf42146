"""Strips of a report: the same prompts from the first evaluation to the last."""

import re
from pathlib import Path

from PIL import Image

from mmrl.app.report.page import MOST_PROMPTS, MOST_STEPS, evenly, thumbnail, write_report
from mmrl.app.run.folder import RunDir
from tests.support.runs import write_run


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
