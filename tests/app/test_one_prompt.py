"""`mmrl draw` and `mmrl ask`, and the runs without held-out prompts that they look at."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mmrl.answers.boxes.box import Box
from mmrl.app import one_prompt
from mmrl.app.commands.train import run_training
from mmrl.app.config import run as configs
from mmrl.app.one_prompt import ask, draw
from mmrl.app.run.folder import RunDir
from mmrl.app.run.revive import AnswerSample
from mmrl.app.run.sample_files import digest
from mmrl.app.watch.page import Page
from mmrl.core.types import MediaSize, Sample
from mmrl.data.files.mp4 import read_mp4
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.evaluate import SEED_STEP

COMMON = ["steps=2", "prompts_per_step=2", "algorithm.group_size=4", "samples_every=1", "audit_steps=1", "save_every=1"]
COMMON += ["checkpoint.keep=0", "checkpoint.asynchronous=false"]
FLOW = [*COMMON, "evaluation.num_steps=4", "evaluation.num_samples=1", "evaluate_every=0", "evaluation.seen=1"]
TEXT = [*COMMON, "data.size=4", "policy.sampling.max_new_tokens=6", "evaluation.num_prompts=256", "evaluate_every=0"]


def trained(config: str, folder: Path, *words: str) -> RunDir:
    """A tiny run without held-out prompts."""
    resolved = configs.load(config, [*words, f"output={str(folder)!r}"])
    resolved.table.values["evaluation"].pop("data")
    return run_training(configs.resolve(resolved.table, (), resolved.name))


@pytest.fixture(scope="module")
def flow(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMRL_CACHE", str(cache))
        return trained("tiny/flow", tmp_path_factory.mktemp("flow") / "run", *FLOW)


@pytest.fixture(scope="module")
def text(cache: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMRL_CACHE", str(cache))
        return trained("tiny/image", tmp_path_factory.mktemp("text") / "run", *TEXT)


@pytest.fixture(autouse=True)
def room(empty_desk: None) -> None:
    Image.new("RGB", (64, 48), "white").save("room.png")


def lines(run: RunDir, split: str, step: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run.samples_file(split, step).read_text().splitlines()]


def numbers(run: RunDir) -> list[dict[str, float]]:
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in run.read_metrics().lines]


@pytest.mark.parametrize("kind", ["flow", "text"])
def test_training_is_the_same_with_and_without_prompts_that_are_shown(kind: str, request: pytest.FixtureRequest):
    run: RunDir = request.getfixturevalue(kind)
    words = [*(FLOW if kind == "flow" else TEXT), "evaluation.seen=0"]
    other = trained("tiny/flow" if kind == "flow" else "tiny/image", Path("without"), *words)
    assert run.sample_steps("seen") == [0, 1, 2] and other.sample_steps("seen") == []
    assert not any(name.startswith("eval/") for line in numbers(run) for name in line), "nothing claims a score"
    assert repr(numbers(run)) == repr(numbers(other))
    shown, plain = (Checkpoints(one.checkpoints).load(2) for one in (run, other))
    for name, weights in shown["policy"]["weights"].items():
        assert torch.equal(weights, plain["policy"]["weights"][name])
    # beartype, which checks types in tests, draws from Python's own generator
    for name in ("torch", "numpy"):
        assert str(shown["random"][0][name]) == str(plain["random"][0][name])


def test_a_prompt_is_drawn_as_the_run_drew_it(flow: RunDir):
    for step in (0, 2):
        [line] = lines(flow, "seen", step)
        found = draw(flow.path, line["text"], step=step, seed=1234 * SEED_STEP, out=Path(f"{step}.png"))
        with Image.open(f"{step}.png") as picture:
            assert digest(Sample(image=picture.convert("RGB"))) == line["digest"]
        assert found == {
            **{"run": flow.path, "step": step, "prompt": line["text"], "seed": 1234 * SEED_STEP, "file": Path(f"{step}.png")},
            **{"width": 16, "height": 16},
        }
    assert draw(flow.path, "a blue cup", seed=3)["file"] == draw(flow.path, "a blue cup", seed=3)["file"]
    assert draw(flow.path, "a blue cup", seed=3)["step"] == 2


def test_seen_prompts_are_in_the_report_and_on_the_page_that_follows_a_run(flow: RunDir, text: RunDir):
    for run, count in ((flow, 1), (text, 4)):
        report = run.report_file.read_text()
        assert report.count('class="over-steps"') == count and "<h3>Seen</h3>" in report and "Held out</h3>" not in report
        assert all(f'<p class="label">step {step}' in report for step in (0, 1, 2))
        assert "seen: prompts that train, step 2" in Page(run).parts()["samples"].html


def test_a_question_is_answered_as_the_run_answered_it(text: RunDir):
    line = lines(text, "seen", 2)[0]
    picture = Path("question.png")
    Image.open(text.samples / line["media"][0]["file"]).save(picture)
    found = ask(text.path, [str(picture), line["text"]])
    assert (found["step"], found["answer"], found["boxes"], found["file"]) == (2, line["completion"], [], None)
    assert ask(text.path, ["room.png", "Where?"], step=0)["step"] == 0


def test_boxes_of_an_answer_are_drawn_into_the_picture(text: RunDir, monkeypatch: pytest.MonkeyPatch):
    said = 'a "cup"\n[{"bbox_2d": [250, 500, 5000, 1000], "label": "cup"}]'
    sample = Sample(text=said, media_sizes=(MediaSize(64, 48, 64, 48),))
    monkeypatch.setattr(one_prompt, "answer", lambda *_: AnswerSample(sample, 2, 0, "norm1000"))
    found = ask(text.path, ["room.png", "Where is the cup?"])
    assert found["boxes"] == [[16.0, 24.0, 320.0, 48.0, "cup"]]
    assert Path(str(found["file"])).parent == text.path / "tries"
    with Image.open(str(found["file"])) as picture:
        assert picture.getpixel((16, 30)) == (255, 106, 19) and picture.getpixel((5, 5)) == (255, 255, 255)
    one_prompt.draw_boxes(one_prompt.Prompt("p", "", ("room.png",)), [Box(-900, -900, 1e6, 20)], Path("far.png"))
    monkeypatch.setattr(one_prompt, "answer", lambda *_: AnswerSample(sample, 2, 0, None))
    assert ask(text.path, ["room.png", "Where is the cup?"])["boxes"] == []


def test_a_clip_is_written_as_mp4_or_as_a_strip(flow: RunDir, monkeypatch: pytest.MonkeyPatch):
    import numpy as np

    def give(shape: tuple[int, ...]) -> None:
        answer = AnswerSample(Sample(video=np.zeros(shape, np.uint8), fps=4.0), 2, 5, None)
        monkeypatch.setattr(one_prompt, "answer", lambda *_: answer)

    monkeypatch.setattr(one_prompt, "config_of", lambda *_: configs.load("tiny/t2v").config)
    give((5, 16, 16, 3))
    found = draw(flow.path, "it moves")
    frames, rate = read_mp4(Path(str(found["file"])))
    assert (len(frames), rate, found["frames"], found["fps"], found["width"]) == (5, 4.0, 5, 4.0, 16)
    give((5, 16, 15, 3))
    assert Path(str(draw(flow.path, "it moves", seed=1)["file"])).suffix == ".png"
    with pytest.raises(ValueError, match=r"H.264 holds no clip of 15 x 16, odd sides"):
        draw(flow.path, "it moves", out=Path("odd.mp4"))


@pytest.mark.parametrize(
    ("command", "words", "error", "match"),
    [
        (ask, (["room.png", "x"],), ValueError, r"draws, and writes nothing: let it draw with mmrl draw .*run "),
        (
            draw,
            ("x", [Path("room.png")]),
            ValueError,
            r"prompt .* holds 1 picture, but policy.model .* draws from text alone",
        ),
        (draw, ("x", [Path("gone.png")]), FileNotFoundError, r"there is no file gone.png: give the path of a picture or clip"),
        (draw, ("x", (), 7), ValueError, r"no checkpoint of step 7: there are 1, 2, and 0 is the model before training"),
        (draw, ("x", (), None, None, Path("a.gif")), ValueError, r"--out a.gif: a picture is written as .png or"),
        (draw, ("a fox \udc9f",), ValueError, r"character 7 of the prompt is half of one, as broken UTF-8 is: type it again"),
        (draw, ("x", (), None, None, Path("room.png")), FileExistsError, r"--out room.png exists already"),
    ],
)
def test_mistakes_of_a_generator_are_one_sentence(flow: RunDir, command: Any, words: Any, error: type[Exception], match: str):
    with pytest.raises(error, match=match):
        command(flow.path, *words)


@pytest.mark.parametrize(
    ("words", "error", "match"),
    [
        (["gone.png", "x"], FileNotFoundError, r"there is no file gone.png"),
        (["room.png"], ValueError, r"room.png is a file, and the last word is the question"),
        (["room.png", "\ud83e?"], ValueError, r"character 1 of the prompt is half of one"),
        (["broken.png", "x"], ValueError, r"'broken.png' is not a picture that PIL can read"),
    ],
)
def test_mistakes_of_a_question_are_one_sentence(text: RunDir, words: list[str], error: type[Exception], match: str):
    Path("broken.png").write_text("no picture")
    with pytest.raises(error, match=match):
        ask(text.path, words)


def test_a_run_without_a_checkpoint_says_what_is_there(text: RunDir):
    run = RunDir.create("fresh")
    run.config_file.write_bytes(text.config_file.read_bytes())
    with pytest.raises(ValueError, match=r"fresh has no whole checkpoint yet: --step 0 takes the model before training"):
        ask(run.path, ["room.png", "x"])
    with pytest.raises(ValueError, match=r"fresh has a model that writes, and draws nothing: ask it with mmrl ask fresh PICTURE"):
        draw(run.path, "x")
