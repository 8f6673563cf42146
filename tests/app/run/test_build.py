"""Config -> objects: what is filled in, what is refused and before what, and a run from the command to its report."""

import base64
import io
import json
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from mmrl.algorithms.views import repaint
from mmrl.app.commands.options import EvalArguments
from mmrl.app.commands.reward import data_url
from mmrl.app.commands.train import TrainArguments, run_training
from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved, RewardConfig
from mmrl.app.config.tasks import one_line, parse_reward
from mmrl.app.evaluation.command import run_evaluation
from mmrl.app.plugins.foreign_rewards import image_tensor, picture_at
from mmrl.app.plugins.resolve import load as load_plugin
from mmrl.app.run import build as building
from mmrl.app.run.build import build, named_reward
from mmrl.app.run.folder import RunDir
from mmrl.app.run.launch import take_next_free
from mmrl.app.run.sample_files import frames_of, image_bytes, strip_of
from mmrl.core.samples import Group, Prompt, Sample, Video
from mmrl.data.files.pictures import content_hash
from mmrl.data.tools.foreign import pixels, show
from mmrl.data.tools.pictures import zoom
from mmrl.lab import demos as demo
from mmrl.lab import models
from mmrl.lab.tiny.taught import BOXES, TAUGHT
from mmrl.policies.shared.pictures import digest_of_picture, open_picture
from mmrl.policies.video.decode import fetch
from mmrl.policies.video.sampling import FrameRule
from mmrl.serving.media import mask_of, pictures_of, sources_of, target_of
from mmrl.serving.wire import pack_group, unpack_group
from mmrl.training.checkpoints.save import Checkpoints
from tests.support.each import for_each
from tests.support.refused import refused
from tests.support.runs import assert_same_numbers

Make = Callable[..., Resolved]


@pytest.fixture
def make(empty_desk: None) -> Make:
    """configs/tiny/image.toml with overrides, in an empty working directory."""
    return lambda *words: configs.load("tiny/image", words)


def test_the_family_fills_in_the_box_space_and_the_run_its_length(make: Make):
    job = build(make("algorithm.preset=dr_grpo"))
    runner = job.trainer.collector.rewards
    assert [reward.name for reward in runner.rewards] == ["iou", "length"]
    assert runner.rewards[0].function.space == "norm1000"  # type: ignore[attr-defined]
    assert job.config.policy.box_space == "norm1000"  # type: ignore[union-attr]
    assert job.trainer.algorithm.aggregation.length == 16  # type: ignore[attr-defined]
    assert runner.weights.tolist() == pytest.approx([1.0, 0.1])


def test_a_model_that_does_not_say_how_it_writes_boxes_must_be_told(make: Make):
    config, reward = make().config, RewardConfig("iou")
    with pytest.raises(ValueError, match=r"reward 'iou' reads boxes, but it is not known.*policy\.box_space"):
        named_reward(config, reward, load_plugin("iou", "rewards")(), None)
    assert named_reward(config, RewardConfig("length"), load_plugin("length", "rewards")(), None).name == "length"


def test_a_function_keeps_its_settings(make: Make, tmp_path: Path):
    (tmp_path / "mine.py").write_text("def short(group, scale=1.0):\n    return [scale for _ in group.samples]\n")
    resolved = make("reward.1.use=./mine.py:short", "steps=1")
    resolved.table.set(("reward",), [{"use": "./mine.py:short", "scale": 0.25}], "command line")
    job = build(configs.resolve(resolved.table))
    assert job.trainer.step()["reward/short"] == 0.25


def test_the_same_seed_builds_the_same_adapters(make: Make):
    weights = [torch.cat([p.detach().flatten() for p in build(make("policy.lora.rank=2")).policy.parameters()]) for _ in range(2)]
    assert torch.equal(*weights)


def test_a_run_leaves_everything_behind_and_goes_on_where_it_stopped(make: Make):
    words = ["samples_every=1", "save_every=1", "evaluation.num_prompts=2", "trackers.project=unused"]
    whole = run_training(make(*words, "steps=3", "output=whole"))
    cut = run_training(make(*words, "steps=2", "output=cut"))
    run_training(TrainArguments(["steps=3"], resume=cut.path).resolve(), cut.path)
    assert tomllib.loads(cut.config_file.read_text())["steps"] == 3
    assert "no tracker is on, so this cannot act" in cut.report_file.read_text(), "warnings from before the first step"

    assert_same_numbers(cut, whole, [1, 2, 3])
    weights = [Checkpoints(run.checkpoints).load()["policy"]["weights"] for run in (whole, cut)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_evaluation_of_a_run_is_the_one_the_run_wrote(make: Make):
    run = run_training(make("steps=1", "output=run"))
    found = run_evaluation(EvalArguments([str(run.path)]))
    last = [line for line in run.read_metrics().lines if "eval/total" in line][-1]
    assert found == pytest.approx({name: value for name, value in last.items() if name in found}, nan_ok=True)
    assert [json.loads(line)["step"] for line in run.metrics_file.read_text().splitlines()] == [0, 1, 1]


def test_an_output_that_holds_a_run_is_refused_and_a_default_moves_on(make: Make, tmp_path: Path):
    RunDir.create(tmp_path / "old").append(1, {"loss": 0.0})
    refused(r"already holds a run: .*--resume", run_training, make("output=old"))
    (tmp_path / "runs" / "image").mkdir(parents=True)
    assert take_next_free(Path("runs/image")) == (Path("runs/image-2"), [Path("runs/image-2")])


def test_one_line_trains_a_video_model(tmp_path: Path):
    config = one_line("video", "m", "moving_digits", ["by_type"], ["policy.video.fps=1.0"]).config
    video: Any = config.policy.video  # type: ignore[union-attr]
    assert (config.data.use, config.reward[0].use, video.max_frames, video.fps) == ("moving_digits", "by_type", 64, 1.0)
    refused(r"--task video needs --reward, for example .*--task video .*by_type", one_line, "video", "m", "moving_digits", [], [])


def test_one_line_says_what_a_config_would(make: Make, tmp_path: Path):
    make()
    (tmp_path / "boxes.jsonl").write_text("")
    resolved = one_line("grounding", "m", "boxes.jsonl", ["iou", "./mine.py:short=0.2"], ["steps=7"])
    config = resolved.config
    assert (config.steps, config.policy.model) == (7, "m")
    assert (config.data.use, config.data.args) == ("grounding_jsonl", {"path": "boxes.jsonl"})
    assert [(reward.use, reward.weight) for reward in config.reward] == [("iou", 1.0), ("./mine.py:short", 0.2)]
    assert resolved.table.origin(("algorithm", "preset")) == "task grounding"
    assert one_line("grounding", "m", "digits_grounding", ["iou"], []).config.data.use == "digits_grounding"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (TrainArguments(["tiny/image"], task="grounding"), "not both"),
        (TrainArguments(["tiny/image"], model="m"), "--model goes with --task"),
        (TrainArguments([]), "give a config"),
        (TrainArguments([], task="grounding", data="x", rewards=["iou"]), "needs --model"),
        (TrainArguments([], task="grounding", model="m", rewards=["iou"]), "needs --data"),
        (TrainArguments([], task="grounding", model="m", data="x"), "needs --reward"),
        (TrainArguments([], task="ground", model="m", data="x", rewards=["iou"]), "did you mean 'grounding'"),
        (TrainArguments([], task="grounding", model="m", data="nope.jsonl", rewards=["iou"]), "is no file"),
        (TrainArguments([], resume=Path("nope")), "not a folder"),
        (TrainArguments(["tiny/image"], card="24GB"), "--card goes with --task"),
        (TrainArguments(["tiny/image"], held_out="test.jsonl"), "--held-out goes with --task"),
        (TrainArguments(["tiny/imag"]), "did you mean the shipped 'tiny/image'"),
    ],
)
def test_words_that_describe_no_run(given: TrainArguments, message: str):
    refused(message, given.resolve, error=(ValueError, FileNotFoundError))


def test_a_slip_in_a_shipped_rewards_name_is_told_before_data_and_model_are_looked_at():
    refused("no reward is called 'iuo': did you mean 'iou'", one_line, "grounding", "nowhere", "shapes", ["iuo=0.5"], [])
    for use in ("./later.py", "./later.py:short", "http://127.0.0.1:1/iou", "trl:./theirs.py:right"):
        assert parse_reward(use) == {"use": use}
    assert parse_reward("iou=0.5") == {"use": "iou", "weight": 0.5}
    refused("the weight 'much' is no number", parse_reward, "iou=much")


def test_the_demo_gives_its_seed_to_data_and_training(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    make()
    seeds: list[int] = []

    def taught(name: str, seed: int, short: bool) -> Path:
        seeds.append(seed)
        return models.tiny_model("tiny:qwen3_vl")

    monkeypatch.setattr(demo, "taught_model", taught)
    words = ["steps=1", "prompts_per_step=2", "data.size=4", "evaluation.num_prompts=2", "policy.sampling.max_new_tokens=4"]
    run = demo.run("grounding", tmp_path / "out", 5, words)
    config = configs.load(str(run.config_file)).config
    assert seeds == [5] and (config.seed, config.data.args["seed"], config.steps) == (5, 5, 1)
    assert config.evaluation.data is not None and config.evaluation.data.args["seed"] == 5
    assert run.report_file.is_file()


def test_imitation_says_how_far_it_is_without_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    def teach(seed: int, note: Any, short: bool) -> Path:
        for step in (1, 2, 3):
            note(step, 3, 0.5 / step)
        return Path("model")

    monkeypatch.setitem(TAUGHT["text"], "grounding", teach)  # type: ignore[arg-type] - a dict
    assert demo.taught_model("grounding", 0) == Path("model")
    said = [line.strip() for line in capsys.readouterr().err.splitlines() if "step" in line]
    assert said == ["part 1, step 1/3  loss 0.50", "part 1, step 3/3  loss 0.17"]


def test_a_stage_teaches_a_model_once_and_the_same_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    few = replace(BOXES, short=("stage.0.steps=2", "prompts_per_step=2", "data.size=8"))
    monkeypatch.setitem(TAUGHT["text"], "grounding", few)  # type: ignore[arg-type] - a dict
    made, steps = list[Path](), list[tuple[int, int]]()
    for name in ("first", "second"):
        monkeypatch.setenv("MMRL_CACHE", str(tmp_path / name))
        torch.manual_seed(len(made))
        before = torch.get_rng_state()
        made += [demo.taught_model("grounding", 0, short=True)]
        assert torch.equal(torch.get_rng_state(), before)
        note = lambda step, last, loss: steps.append((step, last))  # noqa: E731
        assert models.teach_once("text", "grounding", 0, note, short=True) == made[-1] and not steps, "taught twice"
    first, second = ((folder / "model.safetensors").read_bytes() for folder in made)
    assert first == second and made[0].name == made[1].name
    untaught = models.tiny_model("tiny:untaught_grounding")
    assert first != (untaught / "model.safetensors").read_bytes()
    assert models.teach_once("text", "grounding", 1, note, short=True).name != made[0].name
    assert steps == [(1, 2), (2, 2)]


def test_one_process_builds_the_tiny_model_once(make: Make, cache: Path):
    make()
    folder = models.tiny_model("tiny:qwen3_vl")
    written = (folder / "config.json").stat().st_mtime_ns
    assert folder.is_relative_to(cache)
    assert models.tiny_model("tiny:qwen3_vl") == folder
    assert (folder / "config.json").stat().st_mtime_ns == written
    assert not list(folder.parent.glob("*.partial"))


@pytest.mark.usefixtures("empty_desk")
def test_a_tiny_model_is_made_without_a_word_of_libraries(capfd: pytest.CaptureFixture[str]):
    for name, kind in (("tiny:sd3", "flow"), ("tiny:smolvlm", "text")):
        models.tiny_model(name, kind)
    assert capfd.readouterr().err == ""


def test_a_data_set_that_gives_no_prompts_at_all_is_named():
    with pytest.raises(ValueError, match=r"\[data\] mine gave NoneType in place of prompts: return a list"):
        building.load_prompts(lambda: None, "[data] mine")  # pyright: ignore[reportArgumentType] - a careless function


SIDE = 32


def drawing(hidden: int = 0) -> Image.Image:
    picture = Image.new("RGBA", (SIDE, SIDE), (hidden, hidden, hidden, 0))
    picture.paste((255, 0, 0, 255), (4, 4, 12, 12))
    return picture


def on_white() -> np.ndarray:
    expected = np.full((SIDE, SIDE, 3), 255, np.uint8)
    expected[4:12, 4:12] = (255, 0, 0)
    return expected


def over_the_wire(folder: Path) -> Image.Image:
    """What a reward on a server gets of a picture that lies in memory."""
    group = Group(0, Prompt("p", media=(drawing(),)), (Sample(text="x"),))
    return unpack_group(pack_group(group), folder).prompt.media[0]


def edit(file: Path) -> Prompt:
    return Prompt("p", media=(str(file),), columns={"target": drawing(), "mask": drawing()})


SEEN: dict[str, Callable[[Path], Any]] = {
    "the model": lambda file: open_picture(str(file), "p"),
    "the model, from memory": lambda file: open_picture(drawing(), "p"),
    "the report": lambda file: frames_of(str(file))[0][0],
    "the report's files": lambda file: Image.open(io.BytesIO(image_bytes(drawing())[0])),
    "a strip": lambda file: strip_of([drawing()]),
    "a gallery": lambda file: Image.open(io.BytesIO(base64.b64decode(data_url(drawing()).partition(",")[2]))),
    "a reward for pictures": lambda file: pictures_of(Group(0, edit(file), (Sample(image=drawing()),)))[0],
    "a reward for edits": lambda file: sources_of(edit(file))[0],
    "the wanted edit": lambda file: target_of(edit(file)),
    "a reward's server": lambda file: over_the_wire(file.parent),
    "a reward of flow_grpo": lambda file: (
        image_tensor([Group(0, Prompt("p"), (Sample(image=drawing()),))])[0].permute(1, 2, 0) * 255
    ).byte(),
    "a reward of TRL": lambda file: picture_at(str(file)),
    "a masked view": lambda file: repaint(str(file), lambda found: found),
    "a zoom": lambda file: zoom(str(file), (0, 0, 1000, 1000), "norm1000"),
    "an environment of another library": lambda file: show(drawing())[1][0],
    "frames that are pictures": lambda file: fetch(Video((str(file),), fps=1.0), FrameRule(min_frames=1)).pixels[0],
}
"""Who sees it -> the pixels that they see, of a file or of a picture in memory."""


@for_each("name", SEEN)
def test_everybody_sees_the_drawing_on_white(name: str, tmp_path: Path) -> None:
    drawing().save(tmp_path / "a.png")
    assert np.array_equal(np.asarray(SEEN[name](tmp_path / "a.png")), on_white())
    mask = np.asarray(mask_of(edit(tmp_path / "a.png")))
    assert mask.tolist() == np.where(on_white()[..., 1] == 255, 255, 76).tolist(), "what is transparent in a mask may change"


def test_hashes_are_of_what_is_seen(tmp_path: Path) -> None:
    own, plain = drawing(), Image.fromarray(on_white())
    empty = Image.new("RGBA", own.size, (255, 0, 0, 0))
    for of in (content_hash, pixels):
        assert of(own) == of(drawing(200)) == of(plain) != of(empty)


def test_pictures_that_look_different_have_different_digests() -> None:
    red, blue, clear, turned = (Image.new("P", (2, 2)) for _ in range(4))
    for one in (red, clear, turned):
        one.putpalette([255, 0, 0])
    blue.putpalette([0, 0, 255])
    clear.info["transparency"] = 0
    turned.getexif()[0x112] = 6
    assert len(set(map(digest_of_picture, (red, blue, clear, turned)))) == 4
    assert digest_of_picture(red) == digest_of_picture(red.copy())


def test_pictures_without_a_white_are_refused_by_name(tmp_path: Path) -> None:
    floats = Image.fromarray(np.ones((4, 4), np.float32))
    floats.save(tmp_path / "depth.tif")
    prompt = Prompt("p", media=(str(tmp_path / "depth.tif"),), columns={"target": floats})
    for read in (
        lambda: open_picture(prompt.media[0], "p"),
        lambda: open_picture(floats, "p"),
        lambda: sources_of(prompt),
        lambda: target_of(prompt),
        lambda: content_hash(prompt.media[0]),
    ):
        refused(r"(depth\.tif'?|target|picture|file\)) holds floats of 32 bits, of which nothing", read)
