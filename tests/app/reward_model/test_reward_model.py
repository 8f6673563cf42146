"""A reward model from pairs: one line trains it, a config names its folder, and it is tried, scored with and served."""

import json
import math
import random
import shutil
import tomllib
from pathlib import Path
from typing import Any, cast

import pytest
import tomli_w
from PIL import Image
from typer.testing import CliRunner

from mmrl import load_judge, load_reward, load_reward_model
from mmrl.app.cli.groups import reward
from mmrl.app.commands import train as commands
from mmrl.app.commands.train import TrainArguments, train
from mmrl.app.reward_model.scorer import axes_of
from mmrl.app.run.folder import RunDir
from mmrl.core.types import Group, Prompt, Sample
from mmrl.runtime.blame import RewardUnavailableError

USUAL = ["--model", "tiny:qwen3_vl", "--card", "8GB", "prompts_per_step=8", "optimizer.lr=3e-3"]


def letters(rng: random.Random) -> str:
    return "".join(rng.choice("abcde") for _ in range(rng.randint(3, 6)))


def write_pairs(file: Path, count: int, seed: int) -> Path:
    """Pairs of texts, of which the one with more e was preferred."""
    rng = random.Random(seed)
    rows = []
    while len(rows) < count:
        a, b = sorted((letters(rng), letters(rng)), key=lambda text: text.count("e"))
        if a.count("e") < b.count("e"):
            rows.append({"question": f"Write letters, {len(rows)}.", "chosen": b, "rejected": a})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


def said_by(*words: object) -> str:
    """What `mmrl reward` prints for these words."""
    done = CliRunner().invoke(reward, [str(word) for word in words])
    assert done.exit_code == 0, done.output + repr(done.exception)
    return done.output


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """A run of twelve steps on pairs of texts."""
    folder = tmp_path_factory.mktemp("pairs")
    train, held_out = write_pairs(folder / "pairs.jsonl", 96, 1), write_pairs(folder / "other.jsonl", 40, 2)
    words = ["--data", train, "--held-out", held_out, "--output", folder / "rm", *USUAL, "steps=12"]
    said = said_by("train", *words)
    assert "agreement" in said and "[[reward]] use = " in said
    return RunDir.open(folder / "rm")


def test_what_it_prints_is_what_it_keeps(run: RunDir):
    (kept,) = json.loads((run.path / "agreement.json").read_text()).values()
    assert kept["count"] == 40 and kept["low"] < kept["share"] < kept["high"]
    steps = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert steps[0]["loss"] == pytest.approx(0.6931, abs=1e-3), "a fresh head orders nothing"
    assert min(step["loss"] for step in steps) < 0.69 < steps[0]["loss"] < 0.70


@pytest.mark.evidence
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_it_learns_what_was_preferred(seed: int, tmp_path: Path):
    train, held_out = write_pairs(tmp_path / "pairs.jsonl", 256, 10 + seed), write_pairs(tmp_path / "other.jsonl", 200, 20 + seed)
    words = ["--data", train, "--held-out", held_out, "--output", tmp_path / "rm", *USUAL, "steps=80", f"seed={seed}"]
    said_by("train", *words)
    (kept,) = json.loads((tmp_path / "rm" / "agreement.json").read_text()).values()
    assert kept["low"] > 0.8


def test_its_folder_is_a_reward(run: RunDir, tmp_path: Path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "Write letters.", "completion": "abcd"}\n{"prompt": "Write letters.", "completion": "eee"}\n')
    said = said_by("score", run.path, rows, "--out", tmp_path / "scores.jsonl")
    assert "2 scored" in said
    scored = {one["completion"]: one["score"] for one in map(json.loads, (tmp_path / "scores.jsonl").read_text().splitlines())}
    data = f"data={{use = 'qa_jsonl', path = '{rows}', columns = {{answer = 'completion', question = 'prompt'}}}}"
    small = ["steps=1", "prompts_per_step=2", "algorithm.group_size=2", "policy.sampling.max_new_tokens=4"]
    words = [*small, data, f"reward=[{{use = '{run.path}'}}]", "evaluation={seen = 0}", "evaluate_every=0"]
    train(TrainArguments(["tiny/image", *words], output=tmp_path / "policy"))
    (step,) = [json.loads(line) for line in (tmp_path / "policy" / "metrics.jsonl").read_text().splitlines()]
    assert math.isfinite(step["reward/reward_model"])
    group = Group(0, Prompt("p", "Write letters."), tuple(Sample(text) for text in scored))
    again = load_reward("reward_model", run=str(run.path), shift=1.0, scale=2.0)(group)
    assert [one.value for one in again] == pytest.approx([(value - 1) / 2 for value in scored.values()])


@pytest.mark.parametrize("kind", ["a model's code", "a part's code"])
def test_a_folder_of_somebody_runs_no_code_of_its_own(kind: str, run: RunDir, tmp_path: Path):
    """Trust is what the user's own config says; what a run names beside its model is not read."""
    folder, fuse, rows = tmp_path / "rm", tmp_path / "executed", tmp_path / "rows.jsonl"
    shutil.copytree(run.path, folder)
    rows.write_text('{"prompt": "Write letters.", "completion": "abcd"}\n')
    told = tomllib.loads(run.config_file.read_text())
    if kind == "a part's code":
        (tmp_path / "evil.py").write_text(f"open({str(fuse)!r}, 'w')\ndef sampler(prompts, seed): pass\n")
        told["sampler"] = {"use": f"{tmp_path}/evil.py:sampler"}
        told["algorithm"]["planner"] = {"use": f"{tmp_path}/evil.py:sampler"}
        (folder / "config.toml").write_text(tomli_w.dumps(told))
        said_by("score", folder, rows, "--out", tmp_path / "scores.jsonl")
        return
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil"}}))
    (model / "evil.py").write_text(f"open({str(fuse)!r}, 'w')\n")
    told["policy"] |= {"trust_remote_code": True, "model": str(model)}
    (folder / "config.toml").write_text(tomli_w.dumps(told))
    refused = r"Python files of .*model' would run with your rights.*set trust_remote_code = true beside the run's name"
    for ask in (
        load_reward("reward_model", run=str(folder)).ready,  # pyright: ignore[reportFunctionMemberAccess]
        load_reward("vlm_judge", template="?", server={"run": str(folder)}).ready,  # pyright: ignore[reportFunctionMemberAccess]
        lambda: load_reward_model(folder),
        lambda: load_judge(folder),
    ):
        with pytest.raises(ValueError, match=refused):
            ask()
    done = CliRunner().invoke(reward, ["score", str(folder), str(rows), "--out", str(tmp_path / "scores.jsonl")])
    assert "is not ready: reward_model.run" in str(done.exception) and "with your rights" in str(done.exception)
    assert not fuse.exists()
    with pytest.raises(ValueError):
        load_reward_model(folder, trust_remote_code=True)
    assert fuse.exists(), "who says so has it run"


def test_pairs_of_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # fitting a run to its card is looked at elsewhere
    monkeypatch.setattr(commands, "fit_task", TrainArguments.resolve)
    for name, color in (("red", "red"), ("blue", "blue")):
        Image.new("RGB", (32, 32), color).save(tmp_path / f"{name}.png")
    rows = [
        {"question": f"A square, {i}.", "images": ["red.png", "blue.png"][:: 1 if i % 2 else -1], "preferred": i % 2 ^ 1}
        for i in range(16)
    ]
    for name in ("train", "test"):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["--data", tmp_path / "train.jsonl", "--held-out", tmp_path / "test.jsonl", "--output", tmp_path / "rm", *USUAL]
    said_by("train", "--task", "picture_scores", *words, "steps=8")
    (kept,) = json.loads((tmp_path / "rm" / "agreement.json").read_text()).values()
    assert kept["share"] == 1.0, "red was always preferred"


TAUGHT = [
    *('stage=[{kind = "sft", steps = 24, optimizer = {lr = 1e-2}}]', "reward=[]", "algorithm={}", "evaluation={seen = 0}"),
    *("evaluate_every=0", "policy.answer_format=none", "policy.sampling.max_new_tokens=4"),
]


def test_a_model_that_was_taught_to_judge_is_asked_in_place_of_a_server(tmp_path: Path):
    """It was taught to answer everything with 7."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"question": f"How good is {i}?", "answer": "7"}) + "\n" for i in range(8)))
    data = f"data={{use = 'qa_jsonl', path = '{rows}'}}"
    train(TrainArguments(["tiny/cold_start", *TAUGHT, data], output=tmp_path / "judge"))
    server = {"run": str(tmp_path / "judge")}
    judge = load_reward("vlm_judge", server=server, template="{prompt} How good is {completion}?")
    assert cast(Any, judge).ready() is None
    group = Group(0, Prompt("p", "Count."), tuple(Sample(text) for text in ("2", "5")))
    assert [one.value for one in judge(group)] == [0.7, 0.7]
    with pytest.raises(RewardUnavailableError, match=r"without probabilities: ask for a number"):
        load_reward("vlm_judge", server=server, scoring="yes", template="{prompt} Is {completion} good?")(group)
    with pytest.raises(RewardUnavailableError, match=r"holds no run"):
        cast(Any, load_reward("vlm_judge", server={"run": str(tmp_path)})).ready()


def test_refused(run: RunDir, tmp_path: Path):
    pairs = run.path.parent / "pairs.jsonl"
    for words, message in (
        (("train", "--task", "score", "--data", pairs), "--task is 'score'"),
        (("train", "--task", "ratings", "--data", pairs, "--held-out", pairs), "--held-out is for pairs"),
        (("train", "--data", tmp_path / "no.jsonl"), "is no file"),
    ):
        done = CliRunner().invoke(reward, [*map(str, words), *USUAL])
        assert done.exit_code and message in repr(done.exception) + done.output
    words = ["policy.scores=['taste']", "data.path=" + str(pairs), f"output={tmp_path / 'other'}"]
    with pytest.raises(ValueError, match=r"trains scores on the axis 'overall', and policy\.scores has taste"):
        train(TrainArguments([str(run.config_file), *words]))
    group = Group(0, Prompt("p", "Write letters."), (Sample("abe"),))
    with pytest.raises(ValueError, match=r"axis is 'taste', and .* scores overall"):
        load_reward("reward_model", run=str(run.path), axis="taste")(group)
    with pytest.raises(FileNotFoundError, match="give the folder that mmrl reward train wrote"):
        load_reward("reward_model", run=str(tmp_path)).ready()  # pyright: ignore[reportFunctionMemberAccess]
    with pytest.raises(FileNotFoundError):
        axes_of(tmp_path / "none")
    plain = tmp_path / "plain"
    shutil.copytree(run.path, plain, ignore=shutil.ignore_patterns("checkpoints"))
    config = plain / "config.toml"
    config.write_text(config.read_text().replace('"overall",', "").replace('preset = "scores"', 'preset = "sft"'))
    with pytest.raises(ValueError, match="trained no reward model: its policy"):
        axes_of(plain)
