"""Prompts of a finished run drawn again, whose tokens and pictures are the same, and `mmrl draw` and `mmrl ask` of others."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.answers.boxes.box import Box
from mmrl.app import one_prompt
from mmrl.app.commands.options import SampleOptions
from mmrl.app.commands.sample import resample
from mmrl.app.commands.train import run_training
from mmrl.app.config import run as configs
from mmrl.app.one_prompt import ask, draw
from mmrl.app.run.folder import Line, RunDir, read_lines
from mmrl.app.run.revive import AnswerSample
from mmrl.app.run.sample_files import digest
from mmrl.app.watch.page import Page
from mmrl.core.types import MediaSize, Sample
from mmrl.data.files.mp4 import read_mp4
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.evaluate import SEED_STEP
from mmrl.training.metric_names import metric_of
from tests.support.refused import refused

REWARD = """
def letters(group):
    is_even = int(group.prompt.id.rpartition("-")[2]) % 2 == 0
    return [len(set(sample.text)) / 100 * is_even for sample in group.samples]
"""
COMMON = ["steps=3", "evaluate_every=3", "save_every=1", "checkpoint.keep=0", "samples_every=1", "prompts_per_step=2"]
TEXT = ["policy.sampling.max_new_tokens=8", "evaluation.num_prompts=2", 'reward=[{use = "mine.py"}]', "optimizer.lr=1e-2"]
CLIPS = ["data.size=8", "policy.video.workers=0"]
HINTS = ["algorithm.planner.window=4", "algorithm.planner.least=0.0"]
TREE = ["algorithm.preset=temp_flow_grpo", "algorithm.group_size=8", "algorithm.schedule.branches=2", "steps=2"]
RUNS = {
    "text": ("tiny/image", [*TEXT, "deterministic=true"]),
    "rounds": ("tiny/image", [*TEXT, "algorithm.preset=dapo", "algorithm.minibatches=2", "steps=2"]),
    "probes": ("tiny/clips", [*TEXT, *CLIPS, "algorithm.preset=t_grpo", "steps=2"]),
    "again": ("tiny/clips", [*TEXT, *CLIPS, "algorithm.preset=deepvideo_r1", *HINTS, 'data.questions=["when"]']),
    "flow": ("tiny/flow", ["optimizer.lr=1e-2"]),
    "tree": ("tiny/flow", [*TREE, "algorithm.schedule.at_steps=[0, 1]"]),
}


Finished = Callable[[str], RunDir]


@pytest.fixture(scope="module")
def finished(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Each run is trained when it is first asked for."""
    desk = tmp_path_factory.mktemp("desk")
    (desk / "mine.py").write_text(REWARD)

    def run(kind: str) -> RunDir:
        if not (desk / kind).exists():
            name, words = RUNS[kind]
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("MMRL_CACHE", str(cache))
                own = [word.replace("mine.py", str(desk / "mine.py")) for word in words]
                run_training(configs.load(name, [*COMMON, *own, f"output={str(desk / kind)!r}"]))
        return RunDir(desk / kind)

    return run


def noted(run: RunDir, step: int, split: str = "train") -> list[Line]:
    return read_lines(run.samples_file(split, step)).lines


@pytest.mark.parametrize("step", [1, 3])
def test_a_completion_is_drawn_again(finished: Finished, tmp_path: Path, step: int):
    run = finished("text")
    line = noted(run, step)[4]
    found = resample(run.path, SampleOptions(step, line["prompt"], out=tmp_path / "out"))
    assert [verdict.is_same for verdict in found.verdicts] == [True] * 4
    assert not found.differs
    assert "<|image_pad|>*4" in found.text and "Where is the 7?" in found.text and "recorded: mine" in found.text
    [picture] = (tmp_path / "out").iterdir()
    with Image.open(picture) as opened:
        assert list(opened.size) == line["media_sizes"][0][2:]


@pytest.mark.parametrize("step", [0, 3])
def test_a_held_out_answer_is_drawn_again(finished: Finished, step: int):
    run = finished("text")
    line = noted(run, step, "eval")[1]
    assert [verdict.is_same for verdict in resample(run.path, SampleOptions(step, line["prompt"], "eval")).verdicts] == [True]


@pytest.mark.parametrize(("kind", "step"), [("flow", 1), ("flow", 3), ("tree", 2)])
def test_a_picture_is_drawn_again(finished: Finished, tmp_path: Path, kind: str, step: int):
    run = finished(kind)
    found = resample(run.path, SampleOptions(step, noted(run, step)[-1]["prompt"], index=1, out=tmp_path))
    assert [verdict.is_same for verdict in found.verdicts] == [True]
    assert Image.open(next(tmp_path.glob("*sample-1.png"))).size == (16, 16)


def test_a_clip_is_shown_again_and_answered_alike(finished: Finished, tmp_path: Path):
    """Probes with shuffled frames, drawn beside the samples, change nothing."""
    run = finished("probes")
    found = resample(run.path, SampleOptions(2, noted(run, 2)[0]["prompt"], out=tmp_path))
    assert [verdict.is_same for verdict in found.verdicts] == [True] * 4
    assert len(list(tmp_path.glob("*frame*.png"))) == 16


def test_a_group_of_a_later_round_is_drawn_again(finished: Finished):
    """Dynamic sampling dropped the odd prompts and drew others."""
    run = finished("rounds")
    line = max(noted(run, 2), key=lambda line: line["group"])
    first = {line["group"] for line in noted(run, 1)}
    assert max(first) > 1, "no second round happened"
    assert all(verdict.is_same for verdict in resample(run.path, SampleOptions(2, line["prompt"])).verdicts)


def test_a_group_sampled_again_for_its_scores_needs_the_whole_step(finished: Finished):
    run = finished("again")
    prompts = {line["prompt"]: line for step in (2, 3) for line in noted(run, step) if "Begin like this" in line["text"]}
    line = next(iter(prompts.values()))
    found = resample(run.path, SampleOptions(line["step"], line["prompt"]))
    assert found.differs and "--whole" in found.text
    found = resample(run.path, SampleOptions(line["step"], line["prompt"], whole=True))
    assert [verdict.is_same for verdict in found.verdicts] == [True] * 4
    assert "scored again: mine" in found.text


def test_what_differs_is_found_and_other_weights_draw_other_pictures(finished: Finished, monkeypatch):
    run = finished("text")
    file = run.samples_file("train", 2)
    lines = noted(run, 2)
    completion = lines[0]["completion"]
    lines[0]["completion"] = completion[:3] + "#" + completion[4:]
    lines[1]["digest"] = "0"
    kept = file.read_text()
    try:
        file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        found = resample(run.path, SampleOptions(2, lines[0]["prompt"]))
    finally:
        file.write_text(kept)
    assert [verdict.is_same for verdict in found.verdicts] == [False, False, True, True]
    assert "from letter 4 on: recorded '#" in found.text
    assert "in tokens that read alike" in found.text
    run, load = finished("flow"), Checkpoints.load

    def stale(self: Checkpoints, step: int | None = None) -> dict[str, Any]:
        return load(self, step) | {"policy": load(self, 1)["policy"]}

    monkeypatch.setattr(Checkpoints, "load", stale)
    found = resample(run.path, SampleOptions(3, noted(run, 3)[0]["prompt"]))
    assert found.differs
    assert "pixels by up to" in found.text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"step": 5, "prompt": "train-0-1"}, r"kept no weights .* of step 5: .*again at step 1, 2, 3; save_every"),
        ({"step": 2, "prompt": "train-1"}, r"step 2 drew no prompt 'train-1': .*known: train-0-"),
        ({"step": 3, "prompt": "nope", "split": "eval"}, r"no held-out prompt is called 'nope'"),
        ({"step": 2, "index": 7}, "4 samples, numbered from 0: there is no 7"),
    ],
)
def test_what_is_not_there_is_named(finished: Finished, words: dict[str, Any], message: str):
    run = finished("text")
    refused(message, resample, run.path, SampleOptions(**{"prompt": noted(run, 2)[0]["prompt"]} | words))


@pytest.mark.parametrize("kind", RUNS)
def test_every_metric_of_a_run_has_a_unit_and_a_meaning(finished: Finished, kind: str):
    lines = finished(kind).read_metrics().lines
    nameless = sorted({name for line in lines for name in line if metric_of(name) is None})
    assert nameless == [], f"{nameless}: say unit and meaning in mmrl/training/metric_names.py"
    assert {"eval/total", "policy/grad_norm", "time/step_s"} <= {name for line in lines for name in line}


BRIEF = ["steps=2", "prompts_per_step=2", "algorithm.group_size=4", "samples_every=1", "audit_steps=1", "save_every=1"]
BRIEF += ["checkpoint.keep=0", "checkpoint.asynchronous=false", "evaluate_every=0"]
DRAWS = ["evaluation.num_steps=4", "evaluation.num_samples=1", "evaluation.seen=1"]
WRITES = ["data.size=4", "policy.sampling.max_new_tokens=6", "evaluation.num_prompts=256"]
SEEN = {"flow": ("tiny/flow", DRAWS), "text": ("tiny/image", WRITES)}
Seen = dict[str, RunDir]


def trained(kind: str, folder: Path, *words: str) -> RunDir:
    """A tiny run without held-out prompts."""
    config, own = SEEN[kind]
    resolved = configs.load(config, [*BRIEF, *own, *words, f"output={str(folder)!r}"])
    resolved.table.values["evaluation"].pop("data")
    return run_training(configs.resolve(resolved.table, (), resolved.name))


@pytest.fixture(scope="module")
def seen(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, RunDir]:
    """Runs that draw and that write, both without held-out prompts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMRL_CACHE", str(cache))
        return {kind: trained(kind, tmp_path_factory.mktemp(kind) / "run") for kind in SEEN}


@pytest.fixture(autouse=True)
def room(empty_desk: None) -> None:
    Image.new("RGB", (64, 48), "white").save("room.png")


def numbers(run: RunDir) -> list[dict[str, float]]:
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in run.read_metrics().lines]


@pytest.mark.parametrize("kind", ["flow", "text"])
def test_training_is_the_same_with_and_without_prompts_that_are_shown(kind: str, seen: Seen):
    run, other = seen[kind], trained(kind, Path("without"), "evaluation.seen=0")
    assert run.sample_steps("seen") == [0, 1, 2] and other.sample_steps("seen") == []
    assert not any(name.startswith("eval/") for line in numbers(run) for name in line), "nothing claims a score"
    assert repr(numbers(run)) == repr(numbers(other))
    shown, plain = (Checkpoints(one.checkpoints).load(2) for one in (run, other))
    for name, weights in shown["policy"]["weights"].items():
        assert torch.equal(weights, plain["policy"]["weights"][name])
    # beartype, which checks types in tests, draws from Python's own generator
    for name in ("torch", "numpy"):
        assert str(shown["random"][0][name]) == str(plain["random"][0][name])


def test_a_prompt_is_drawn_as_the_run_drew_it(seen: Seen):
    for step in (0, 2):
        [line] = noted(seen["flow"], step, "seen")
        found = draw(seen["flow"].path, line["text"], step=step, seed=1234 * SEED_STEP, out=Path(f"{step}.png"))
        with Image.open(f"{step}.png") as picture:
            assert digest(Sample(image=picture.convert("RGB"))) == line["digest"]
        assert found == {
            **{
                "run": seen["flow"].path,
                "step": step,
                "prompt": line["text"],
                "seed": 1234 * SEED_STEP,
                "file": Path(f"{step}.png"),
            },
            **{"width": 16, "height": 16},
        }
    assert draw(seen["flow"].path, "a blue cup", seed=3)["file"] == draw(seen["flow"].path, "a blue cup", seed=3)["file"]
    assert draw(seen["flow"].path, "a blue cup", seed=3)["step"] == 2


def test_seen_prompts_are_in_the_report_and_on_the_page_that_follows_a_run(seen: Seen):
    for run, count in ((seen["flow"], 1), (seen["text"], 4)):
        report = run.report_file.read_text()
        assert report.count('class="over-steps"') == count and "<h3>Seen</h3>" in report and "Held out</h3>" not in report
        assert all(f'<p class="label">step {step}' in report for step in (0, 1, 2))
        assert "seen: prompts that train, step 2" in Page(run).parts()["samples"].html


def test_a_question_is_answered_as_the_run_answered_it(seen: Seen):
    line = noted(seen["text"], 2, "seen")[0]
    picture = Path("question.png")
    Image.open(seen["text"].samples / line["media"][0]["file"]).save(picture)
    found = ask(seen["text"].path, [str(picture), line["text"]])
    assert (found["step"], found["answer"], found["boxes"], found["file"]) == (2, line["completion"], [], None)
    assert ask(seen["text"].path, ["room.png", "Where?"], step=0)["step"] == 0


def test_boxes_of_an_answer_are_drawn_into_the_picture(seen: Seen, monkeypatch: pytest.MonkeyPatch):
    said = 'a "cup"\n[{"bbox_2d": [250, 500, 5000, 1000], "label": "cup"}]'
    sample = Sample(text=said, media_sizes=(MediaSize(64, 48, 64, 48),))
    monkeypatch.setattr(one_prompt, "answer", lambda *_: AnswerSample(sample, 2, 0, "norm1000"))
    found = ask(seen["text"].path, ["room.png", "Where is the cup?"])
    assert found["boxes"] == [[16.0, 24.0, 320.0, 48.0, "cup"]]
    assert Path(str(found["file"])).parent == seen["text"].path / "tries"
    with Image.open(str(found["file"])) as picture:
        assert picture.getpixel((16, 30)) == (255, 106, 19) and picture.getpixel((5, 5)) == (255, 255, 255)
    one_prompt.draw_boxes(one_prompt.Prompt("p", "", ("room.png",)), [Box(-900, -900, 1e6, 20)], Path("far.png"))
    monkeypatch.setattr(one_prompt, "answer", lambda *_: AnswerSample(sample, 2, 0, None))
    assert ask(seen["text"].path, ["room.png", "Where is the cup?"])["boxes"] == []


def test_a_clip_is_written_as_mp4_or_as_a_strip(seen: Seen, monkeypatch: pytest.MonkeyPatch):
    def give(shape: tuple[int, ...]) -> None:
        answer = AnswerSample(Sample(video=np.zeros(shape, np.uint8), fps=4.0), 2, 5, None)
        monkeypatch.setattr(one_prompt, "answer", lambda *_: answer)

    monkeypatch.setattr(one_prompt, "config_of", lambda *_: configs.load("tiny/t2v").config)
    give((5, 16, 16, 3))
    found = draw(seen["flow"].path, "it moves")
    frames, rate = read_mp4(Path(str(found["file"])))
    assert (len(frames), rate, found["frames"], found["fps"], found["width"]) == (5, 4.0, 5, 4.0, 16)
    give((5, 16, 15, 3))
    assert Path(str(draw(seen["flow"].path, "it moves", seed=1)["file"])).suffix == ".png"
    refused(r"H.264 holds no clip of 15 x 16, odd sides", draw, seen["flow"].path, "it moves", out=Path("odd.mp4"))


@pytest.mark.parametrize(
    ("kind", "command", "words", "error", "match"),
    [
        ("flow", ask, (["room.png", "x"],), ValueError, r"draws, and writes nothing: let it draw with mmrl draw .*run "),
        ("flow", draw, ("x", [Path("room.png")]), ValueError, "prompt .* 1 picture, but policy.model .* draws from text alone"),
        ("flow", draw, ("x", [Path("gone.png")]), FileNotFoundError, "no file gone.png: give the path of a picture or clip"),
        ("flow", draw, ("x", (), 7), ValueError, r"checkpoints has no checkpoint of step 7 \(there: 1, 2\)"),
        ("flow", draw, ("x", (), None, None, Path("a.gif")), ValueError, r"--out a.gif: a picture is written as .png or"),
        ("flow", draw, ("a fox \udc9f",), ValueError, "character 7 .* is half of one, as broken UTF-8 is: type it again"),
        ("flow", draw, ("x", (), None, None, Path("room.png")), FileExistsError, r"--out room.png exists already"),
        ("text", ask, (["gone.png", "x"],), FileNotFoundError, r"there is no file gone.png"),
        ("text", ask, (["room.png"],), ValueError, r"room.png is a file, and the last word is the question"),
        ("text", ask, (["room.png", "\ud83e?"],), ValueError, r"character 1 of the prompt is half of one"),
        ("text", ask, (["broken.png", "x"],), ValueError, r"'broken.png' is not a picture that PIL can read"),
    ],
)
def test_mistakes_are_one_sentence(seen: Seen, kind: str, command: Any, words: Any, error: type[Exception], match: str):
    Path("broken.png").write_text("no picture")
    refused(match, command, seen[kind].path, *words, error=error)


def test_a_run_without_a_checkpoint_says_what_is_there(seen: Seen):
    run = RunDir.create("fresh")
    run.config_file.write_bytes(seen["text"].config_file.read_bytes())
    refused(r"fresh has no whole checkpoint yet: --step 0 takes the model before training", ask, run.path, ["room.png", "x"])
    refused(r"fresh has a model that writes, and draws nothing: ask it with mmrl ask fresh PICTURE", draw, run.path, "x")
