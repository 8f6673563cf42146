import json
from pathlib import Path

import pytest

from mmrl.app.run.folder import RunDir
from mmrl.app.watch.page import PROMPTS_SHOWN, RECENT, Feed, Page
from tests.support.runs import write_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    return write_run(tmp_path_factory.mktemp("watched") / "run", steps=40, num_prompts=8)


def grown(folder: Path, steps: int) -> RunDir:
    run = RunDir.create(folder)
    run.config_file.write_text('steps = 20000\n[policy]\nmodel = "m"\n')
    numbers = {f"policy/{name}": 0.5 for name in "abcdefghijklmnopqrst"}
    lines = (
        {"step": step, "reward/total": step / steps, "reward/iou": 0.5, "time/step_s": 2.0, "time/rollout_s": 1.0, **numbers}
        for step in range(1, steps + 1)
    )
    run.metrics_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return run


def test_a_feed_says_how_far_the_run_is_and_how_long_it_will_take(tmp_path: Path):
    run = grown(tmp_path / "run", 30)
    feed = Feed(run)
    feed.follow()
    told = {"is_training": False, "step_s": 2.0, "seconds_left": (20000 - 30) * 2.0, "asked": ()}
    assert (feed.data().steps_done, feed.data().steps_wanted, feed.state(feed.data())) == (30, 20000, told)
    seen = feed.seen
    run.append(31, {"reward/total": 1.0})
    feed.follow()
    assert feed.seen != seen and feed.data().steps_done == 31


def test_a_run_that_resumes_is_read_from_its_start(tmp_path: Path):
    run = grown(tmp_path / "run", 30)
    feed = Feed(run)
    feed.follow()
    run.truncate(10)
    run.append(11, {"reward/total": 0.0})
    feed.follow()
    assert [line["step"] for line in feed.data().train] == list(range(1, 12))


def test_ten_thousand_steps_stay_small(tmp_path: Path):
    """A browser holds some ten times as much as the text: 50 MB would be 5 MB of it."""
    page = Page(grown(tmp_path / "run", 10_000))
    parts = page.parts()
    assert sum(len(part.html) for part in parts.values()) < 1_500_000
    assert page.feed.width == 128 and len(page.feed.recent) == RECENT
    assert "10000 of 20000" in parts["state"].html and "mean of 128 steps" in parts["curves"].html


def test_only_the_parts_that_changed_get_another_mark(run: RunDir):
    page = Page(run)
    before = page.parts()
    assert page.parts() == before
    with run.warnings_file.open("a") as stream:
        stream.write('{"step": 40, "level": "warning", "text": "step 40: the reward is flat"}\n')
    after = page.parts()
    assert {name for name in before if before[name].mark != after[name].mark} == {"state", "warnings"}
    assert "the reward is flat" in after["warnings"].html


def test_the_newest_samples_of_both_splits_are_shown_with_their_boxes(run: RunDir):
    html = Page(run).parts()["samples"].html
    assert "training, step 40" in html and "held out, step 40" in html
    assert html.count("<article") == 4 + PROMPTS_SHOWN
    assert 'class="truth"' in html and 'class="predicted"' in html
    assert 'src="media/' in html and "base64" not in html


@pytest.mark.parametrize("line", ["{}", "[]", "nothing", '{"step": 3}', '{"box_space": null, "prompt": "p", "media": [{}]}'])
def test_a_damaged_samples_file_is_a_sentence(tmp_path: Path, line: str):
    run = grown(tmp_path / "run", 3)
    run.samples_file("train", 3).write_text(line + "\n")
    assert "train-000003.jsonl is damaged" in Page(run).parts()["samples"].html


@pytest.mark.parametrize("name", ["config.toml", "changes.jsonl", "metrics.jsonl", "warnings.jsonl"])
def test_damaged_files_leave_a_page(tmp_path: Path, name: str):
    run = grown(tmp_path / "run", 3)
    (run.path / name).write_bytes(b'{"a": \x00\xff}\n{"step": 1, "text": 3, "key": 4}\n= [\n')
    assert "Curves" in Page(run).html()


def test_a_page_follows_requests(run: RunDir):
    page = Page(run)
    run.request_file("stop").touch()
    page.feed.follow()
    assert page.feed.state(page.feed.data())["asked"] == ("stop",)
    assert run.take_requests() == {"stop"} and run.take_requests() == frozenset()
