import importlib.util
import io
import json
import math
import sys
import types
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from mmrl.answers.boxes.box import Box
from mmrl.app.commands.sample import verdict
from mmrl.app.config.run import load as load_config
from mmrl.app.report.data import all_changes, load
from mmrl.app.report.rows import SampleLine
from mmrl.app.run.build import build_records, on_the_terminal
from mmrl.app.run.folder import Line, RunDir, also_split, read_lines
from mmrl.app.run.sample_files import frames_of, store
from mmrl.app.run.trackers import AccelerateTrackers, JsonlTracker, Losses, Progress, figures, flat
from mmrl.core.ranks import Ranks
from mmrl.core.samples import Segment, segments_of
from mmrl.core.types import Group, MediaSize, Prompt, Sample, Scores, Status
from mmrl.data.files.mp4 import write_mp4
from mmrl.training.callbacks import Callback, Callbacks, Examples
from tests.support.runs import evaluated

OK, NA, FAILED = int(Status.OK), int(Status.NA), int(Status.FAILED)
PHOTO = Image.radial_gradient("L").resize((1000, 500)).convert("RGB")
SCORES = Scores(
    ("iou", "short"),
    torch.tensor([[0.5, 1.0], [torch.nan, 0.0], [0.25, torch.nan]]),
    torch.tensor([[OK, OK], [FAILED, OK], [OK, NA]]),
    torch.tensor([1.0, 0.5]),
)


def groups() -> list[Group]:
    sizes = (MediaSize(1000, 500, 500, 250),)
    first = Prompt("p0", "Where?", (PHOTO,), Box(100, 100, 900, 400, "norm1000", "cat"), {"level": 3, "odd": object()})
    return [
        Group(4, first, tuple(Sample(text, truncated="<" in text, media_sizes=sizes) for text in ("[1, 2, 3, 4]", "<b>\n|"))),
        Group(9, Prompt("p1", "Draw", answer={"n": (1, 2)}), (Sample(image=torch.rand(3, 8, 8)),)),
    ]


def written(run: RunDir) -> list[Line]:
    JsonlTracker(run, "norm1000").write(20, Examples(groups(), SCORES), "eval")
    return read_lines(run.samples_file("eval", 20)).lines


def test_trackers_keep_the_protocol(tmp_path: Path) -> None:
    quiet = Console(file=io.StringIO())
    trackers = [JsonlTracker(RunDir.create(tmp_path)), Progress(1, 1, quiet), AccelerateTrackers([], tmp_path)]
    assert all(isinstance(tracker, Callback) for tracker in trackers)


def test_samples_lines_hold_scores_status_totals_and_what_json_can_say_of_prompts(tmp_path: Path) -> None:
    lines = written(RunDir.create(tmp_path))
    assert [[line["scores"][name] for name in ("iou", "short")] for line in lines] == [[0.5, 1.0], [None, 0.0], [0.25, None]]
    assert [line["status"]["iou"] for line in lines] == ["ok", "failed", "ok"] and lines[2]["status"]["short"] == "na"
    assert [line["total"] for line in lines] == [1.0, None, 0.25]
    places = [(line["group"], line["sample"], line["prompt"], line["truncated"]) for line in lines]
    assert places == [(4, 0, "p0", False), (4, 1, "p0", True), (9, 0, "p1", False)]
    first, _, last = lines
    assert first["columns"] == {"level": 3} and first["completion"] == "[1, 2, 3, 4]" and first["box_space"] == "norm1000"
    # norm1000 -> pixels of a 1000 x 500 file
    assert first["answer_boxes"] == [[100.0, 50.0, 900.0, 200.0, "cat"]] and first["media_sizes"] == [[1000, 500, 500, 250]]
    assert last["answer"] == {"n": [1, 2]} and last["answer_boxes"] == [] and last["completion"] is None


def test_samples_lines_hold_who_wrote_what(tmp_path: Path) -> None:
    run, segments = RunDir.create(tmp_path), segments_of([("policy", 2), ("environment", 3), ("policy", 1)])
    sample = Sample("now", (5, 6, 7, 8, 9, 4), segments=segments, earlier="then? ")
    evaluated(run, Prompt("p"), {1: [sample, Sample("now", (4,))]})
    several, one = read_lines(run.samples_file("eval", 1)).lines
    assert SampleLine(several, None).transcript == sample.transcript and SampleLine(several, None).text == "now"
    assert tuple(Segment(*part) for part in several["segments"]) == segments
    assert SampleLine(one, None).transcript == "now" and one["segments"] == [["policy", 0, 1]]
    assert verdict(sample, several, run).is_same
    assert (
        "from letter 1 on: recorded 'then? now', now 'when? now'" in verdict(replace(sample, earlier="when? "), several, run).text
    )


def test_pictures_are_small_and_stored_once(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path)
    first, second, drawn = written(run)
    JsonlTracker(run).write(30, Examples(groups()[:1], SCORES.take(torch.tensor([0, 1]))), "train")
    assert first["media"] == second["media"] and first["media"][0]["width"] == 1000
    assert len(list(run.media.glob("*.jpg"))) == 1 and len(list(run.media.glob("*.png"))) == 1
    with Image.open(run.samples / first["media"][0]["file"]) as stored:
        assert stored.size == (512, 256) and stored.format == "JPEG"
    with Image.open(run.samples / drawn["image"]["file"]) as stored:
        assert stored.size == (8, 8) and stored.format == "PNG"


def test_a_picture_of_which_every_pixel_counts_is_kept_whole(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path)
    kept, small, drawn = (store(run.media, PHOTO.resize((1300, 900)), most) for most in (None, 512, 1024))
    with Image.open(run.samples / kept["file"]) as whole:
        assert whole.format == "PNG" and whole.tobytes() == PHOTO.resize((1300, 900)).tobytes()
    sizes = [Image.open(run.samples / one["file"]).size for one in (small, drawn)]
    assert sizes == [(512, 354), (1024, 709)]


@pytest.mark.parametrize(
    ("media", "kind", "size", "num_frames"),
    [
        (Image.new("RGBA", (5, 4)), "picture", (5, 4), 1),
        (np.zeros((4, 5, 3), dtype=np.uint8), "picture", (5, 4), 1),
        (torch.rand(3, 4, 5), "picture", (5, 4), 1),
        (torch.rand(4, 5, 3), "picture", (5, 4), 1),
        (torch.randint(0, 255, (9, 3, 4, 5), dtype=torch.uint8), "video", (5, 4), 4),
        ([Image.new("RGB", (5, 4))] * 2, "video", (5, 4), 2),
    ],
    ids=["PIL", "array", "tensor chw", "tensor hwc", "video tensor", "frames"],
)
def test_media_become_frames(media: Any, kind: str, size: tuple[int, int], num_frames: int) -> None:
    frames, found = frames_of(media)
    assert (found, len(frames)) == (kind, num_frames) and frames[0].size == size


def test_pictures_are_turned_upright_as_the_policy_sees_them(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (30, 20)).save(tmp_path / "turned.jpg", exif=exif)
    assert frames_of(tmp_path / "turned.jpg")[0][0].size == (20, 30)


def test_a_video_file_becomes_a_strip_of_its_frames(tmp_path: Path) -> None:
    write_mp4(tmp_path / "clip.mp4", np.stack([np.full((48, 64, 3), level, np.uint8) for level in range(0, 250, 25)]), fps=8)
    run = RunDir.create(tmp_path / "run")
    evaluated(run, Prompt("p", "When?", (str(tmp_path / "clip.mp4"),)), {0: [Sample(text="3 s")]})
    media = json.loads(run.samples_file("eval", 0).read_text())["media"][0]
    with Image.open(run.samples / media["file"]) as stored:
        assert media["kind"] == "video" and stored.size == (4 * 66 - 2, 48)
        assert np.asarray(stored.convert("L"))[24, [32, 230]] == pytest.approx([0, 225], abs=12)


def test_media_of_unknown_kind_are_named_not_dropped(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path)
    evaluated(run, Prompt("p", media=(3.5,)), {0: [Sample(text="a")]})
    assert json.loads(run.samples_file("eval", 0).read_text())["media"] == [{"kind": "unknown", "file": None, "what": "float"}]


def test_tensorboard_gets_metrics_pictures_and_completions(tmp_path: Path) -> None:
    tracker = AccelerateTrackers(["tensorboard"], tmp_path, config={"policy": {"model": "m"}, "stop": ["a"]})
    tracker.log(1, {"reward/iou": 0.25})
    tracker.log(2, {"reward/iou": 0.5})
    tracker.samples(2, groups(), SCORES, "train")
    tracker.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("reward/iou")] == [(1, 0.25), (2, 0.5)]
    assert events.Tags()["images"] == ["train/p0/prompt-0", "train/p1/sample-0"]
    (picture,) = events.Images("train/p0/prompt-0")
    assert (picture.step, picture.width, picture.height) == (2, 1000, 500)
    (table,) = events.Tensors("train/completions/text_summary")
    text = table.tensor_proto.string_val[0].decode()
    assert "| p0 | Where? | [1, 2, 3, 4] | 1.0 | 0.5 | 1.0 |" in text and "&lt;b&gt; \\|" in text


def stand_in(monkeypatch: pytest.MonkeyPatch, started: dict[str, Any] | None = None) -> list[tuple[dict[str, Any], int]]:
    """A module in the place of wandb, which is not among the test requirements; returns what it is told."""
    logged: list[tuple[dict[str, Any], int]] = []
    started = {} if started is None else started
    wandb = types.ModuleType("wandb")
    wandb.__spec__ = importlib.util.spec_from_loader("wandb", None)
    run = types.SimpleNamespace(log=lambda values, step: logged.append((values, step)), finish=lambda: logged.append(({}, -1)))
    names = {
        "init": lambda **settings: started.update(settings) or run,
        "config": types.SimpleNamespace(update=lambda values, allow_val_change: started.update(config=values)),
        "Image": lambda picture, caption: (picture.size, caption),
        "Video": lambda file, caption, format: (Path(file).suffix, Path(file).read_bytes()[4:8], caption, format),
        "Table": lambda columns, data, dataframe: (columns, data),
    }
    for name, value in names.items():
        setattr(wandb, name, value)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    return logged


def test_wandb_gets_metrics_pictures_and_a_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: dict[str, Any] = {}
    logged = stand_in(monkeypatch, started)
    tracker = AccelerateTrackers(["wandb"], tmp_path / "run-7", "shop", {"a": {"b": 1}})
    tracker.log(3, {"loss": 1.5})
    tracker.samples(3, groups(), SCORES, "eval")
    tracker.close()
    assert started == {"project": "shop", "name": "run-7", "dir": str(tmp_path / "run-7"), "config": {"a.b": 1}}
    assert logged[0] == ({"loss": 1.5}, 3) and logged[-1] == ({}, -1)
    columns, data = logged[1][0]["eval/completions"]
    assert columns == ["prompt", "text", "completion", "total", "iou", "short"] and data[1][4] is None and len(data) == 3
    assert logged[2] == ({"eval/pictures": [((1000, 500), "Where?"), ((8, 8), "Draw: 0.25")]}, 3)


def test_services_get_clips_as_files_and_every_way_to_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged = stand_in(monkeypatch)
    tracker = AccelerateTrackers(["wandb", "tensorboard"], tmp_path / "run")
    frames = np.stack([np.full((32, 48, 3), level, dtype=np.uint8) for level in (0, 80, 160, 240)])
    group = Group(0, Prompt("p0", "a wave"), (Sample(video=frames, fps=4.0), Sample(video=frames[::-1], fps=4.0)))
    scores = SCORES.take(torch.tensor([0, 2]))
    tracker.after_evaluation(5, {"eval/total": 0.5}, Examples([group], scores, also={"plain": Examples([group], scores)}))
    tracker.close()
    clips = next(values["eval/clips"] for values, _ in logged if "eval/clips" in values)
    assert clips == [(".mp4", b"ftyp", "a wave: 1", "mp4"), (".mp4", b"ftyp", "a wave: 0.25", "mp4")]
    assert {"eval/plain/clips", "eval/plain/completions"} <= {name for values, _ in logged for name in values}
    assert len(list((tmp_path / "run" / "samples" / "media").glob("*.mp4"))) == 2
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert "eval/p0/sample-0" in events.Tags()["images"] and "eval/total" in events.Tags()["scalars"]


def test_samples_of_every_way_to_answer_are_kept(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    shown = Examples(groups(), SCORES, [{"iou/hit": 1.0}, {}, {}])
    for step in (0, 5):
        JsonlTracker(run).after_evaluation(step, {"eval/total": 0.5}, replace(shown, also={"no guidance [1]": shown}))
    assert run.also_names() == ["no guidance [1]"] and run.sample_steps("eval") == [0, 5]
    assert run.sample_steps(also_split("no guidance [1]")) == [0, 5]
    assert [line["parts"] for line in read_lines(run.samples_file("eval", 5)).lines] == [{"iou/hit": 1.0}, {}, {}]
    found = {one.name for one in all_changes(load(run.path))}
    assert {"Reward", "no guidance [1]: Reward"} <= found
    run.truncate(0)
    assert run.sample_steps(also_split("no guidance [1]")) == [0]


def test_missing_and_unknown_trackers_name_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r'needs the package trackio, which is not installed: pip install "mmrl\[track\]"'):
        AccelerateTrackers(["trackio"], tmp_path)
    with pytest.raises(ValueError, match="tracker 'neptune' is unknown: choose among tensorboard, wandb, trackio"):
        AccelerateTrackers(["neptune"], tmp_path)


def test_progress_writes_plain_lines_now_and_then_and_the_last_step(tmp_path: Path) -> None:
    now, out = [0.0], io.StringIO()
    progress = Progress(10, 4, Console(file=out, width=40), every_s=5.0, clock=lambda: now[0])
    progress.after_evaluation(0, {"eval/iou": 0.25, "eval/iou/unparsed": 0.0, "eval/total": 0.5}, Examples(groups(), SCORES))
    for step in range(1, 11):
        now[0] += 2.0
        metrics = {"reward/total": 0.5, "reward/iou": 0.4, "reward/iou/std": 9.0, "time/step_s": 2.0, "rollout/actions": 100.0}
        progress.after_step(step, metrics, None)
    progress.after_evaluation(10, {"eval/iou": 0.5, "eval/total": 0.25}, Examples(groups(), SCORES))
    progress.close()
    lines = out.getvalue().splitlines()
    assert lines == [
        "step 0  held out: iou 0.250  total 0.500",
        "step 1/10  reward 0.5  2.0 prompts/s  50 actions/s  18 s left",
        "step 4/10  reward 0.5  2.0 prompts/s  50 actions/s  12 s left",
        "step 7/10  reward 0.5  2.0 prompts/s  50 actions/s  6 s left",
        "step 10/10  reward 0.5  2.0 prompts/s  50 actions/s  0 s left",
        "step 10  held out: iou 0.500 (+0.250)  total 0.250 (-0.250)",
    ]


def said_of(metrics: Mapping[int, dict[str, float]], shown: Examples) -> list[str]:
    """The lines about these evaluations."""
    out = io.StringIO()
    progress = Progress(5, 4, Console(file=out))
    for step, values in metrics.items():
        progress.after_evaluation(step, values, shown)
    return out.getvalue().splitlines()


def test_what_nothing_scored_is_no_nan() -> None:
    totals = {0: math.nan, 5: 0.5, 10: math.nan, 15: 0.75}
    said = said_of({step: {"eval/total": total} for step, total in totals.items()}, Examples(groups(), SCORES))
    assert [line.partition("total ")[2] for line in said] == ["no score", "0.500", "no score", "0.750 (+0.250)"]


def test_progress_has_a_line_for_every_way_to_answer() -> None:
    shown = Examples(groups(), SCORES, also={"plain": Examples(groups(), SCORES)})
    first = {"eval/total": 0.25, "eval/plain/total": 0.125, "eval/plain/iou/hit": 1.0}
    assert said_of({0: first, 5: {name: 2 * value for name, value in first.items()}}, shown) == [
        "step 0  held out: total 0.250",
        "step 0  held out, plain: total 0.125",
        "step 5  held out: total 0.500 (+0.250)",
        "step 5  held out, plain: total 0.250 (+0.125)",
    ]


SEVERAL = {"reward/a": 0.1, "reward/b": 0.2, "reward/total": 0.3, "reward/no_spread": 0.0, "policy/kl": 0.00123}
SHARES = {"rollout": 0.41, "reward": 0.001, "read": 0.029, "update": 0.52, "idle": 0.04}


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (SEVERAL, "reward 0.3  a 0.1  b 0.2  no spread 0  kl 0.00123"),
        ({"reward/total": 0.3, "reward/no_spread": math.nan}, "reward 0.3"),
        ({f"time/{name}_share": share for name, share in SHARES.items()}, "rollout 41 %  read 3 %  update 52 %  idle 4 %"),
    ],
    ids=["names of several rewards", "no figure that a step lacks", "where time went"],
)
def test_progress_says_of_a_step(metrics: dict[str, float], said: str) -> None:
    out = io.StringIO()
    Progress(5, 4, Console(file=out)).after_step(3, metrics, None)
    assert out.getvalue() == f"step 3/5  {said}  0 s left\n"


def test_what_is_denoised_has_no_length() -> None:
    metrics = {"reward/total": 0.3, "rollout/length": 3.0, "rollout/actions": 48.0, "time/step_s": 2.0}
    assert figures(metrics, 4) == "reward 0.3  length 3  2.0 prompts/s  24 actions/s"
    assert figures(metrics, 4, denoises=True) == "reward 0.3  2.0 prompts/s  24 denoising steps/s"
    drawn, written = (on_the_terminal(load_config(name).config)[0] for name in ("tiny/flow", "tiny/image"))
    assert isinstance(drawn, Progress) and isinstance(written, Progress) and (drawn.denoises, written.denoises) == (True, False)


def test_losses_count_the_steps_of_their_stage() -> None:
    seen: list[tuple[int, int, float]] = []
    losses = Losses(lambda *given: seen.append(given), 3)
    losses.after_step(3, {"loss": 1.0}, None)
    losses.enter("stage 2 of 2, rl", 3, 2)
    losses.after_step(4, {"loss": 0.5}, None)
    assert seen == [(3, 3, 1.0), (1, 2, 0.5)]


def test_after_a_resume_changes_are_still_those_since_the_first_evaluation(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path / "run")
    for step, total in ((0, 0.25), (5, 0.5)):
        run.append(step, {"eval/total": total})
    out = io.StringIO()
    progress = Progress(10, 4, Console(file=out))
    build_records(load_config("tiny/flow").config, run, None, Ranks(), lambda config: [progress])
    progress.after_evaluation(10, {"eval/total": 0.75}, Examples(groups(), SCORES))
    assert out.getvalue() == "step 10  held out: total 0.750 (+0.500)\n"


def test_tables_in_lists_are_settings_of_their_own() -> None:
    found = flat({"reward": [{"use": "iou", "weight": 1.0}], "by": ["split"]})
    assert found == {"reward.0.use": "iou", "reward.0.weight": 1.0, "by": "['split']"}


def test_several_hear_of_steps_and_of_evaluations(tmp_path: Path) -> None:
    runs = [RunDir.create(tmp_path / name) for name in "ab"]
    both = Callbacks([JsonlTracker(run) for run in runs], Path.is_dir)
    both.after_step(1, {"loss": 2.0}, Examples(groups(), SCORES))
    both.after_step(2, {"loss": 1.0}, None)
    both.after_evaluation(2, {"eval/total": 0.5}, Examples(groups(), SCORES))
    both.close()
    for run in runs:
        assert run.read_metrics().lines == [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.0}, {"step": 2, "eval/total": 0.5}]
        assert run.sample_steps("train") == [1] and run.sample_steps("eval") == [2]
