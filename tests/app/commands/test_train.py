"""`mmrl train` on a chain of stages: its steps, its reference, its kills, and what other commands say of it."""

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mmrl.app.commands import check, plan
from mmrl.app.commands.options import PlanArguments
from mmrl.app.commands.train import TrainArguments, run_training, train
from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved
from mmrl.app.run.build import on_the_terminal
from mmrl.app.run.folder import RunDir
from mmrl.lab.models import tiny_model
from mmrl.training.checkpoints.save import Checkpoints
from tests.support.chains import killed, lines, same

WORDS = [
    *("stage.0.steps=2", "stage.1.steps=2", "evaluation.num_prompts=2", "evaluate_every=0", "samples_every=0"),
    *("save_every=1", "checkpoint.keep=0", "policy.lora.rank=2", "data.size=8", "prompts_per_step=2"),
    'stage.1.algorithm.objective=[{kind="Clip"}, {kind="ReferenceKL", coef=0.1}]',
]


def resolved(folder: Path, *words: str) -> Resolved:
    """The chain, whose second stage is rewarded for different letters."""
    return configs.load("tiny/cold_start", [*WORDS, 'stage.1.reward=[{use="./letters.py"}]', f"output={str(folder)!r}", *words])


def test_a_chain_killed_on_both_sides_of_a_border_is_the_chain_that_nobody_disturbed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    Path("letters.py").write_text("def letters(group):\n    return [len(set(sample.text)) for sample in group.samples]\n")
    whole = run_training(resolved(tmp_path / "whole"))
    assert "stage 1 of 2, cold start: step 2 of 2" in (said := capfd.readouterr().err)
    assert "stage 2 of 2, rl: step 2 of 2" in said and "cold start, then rl, " in said
    killed(__name__, tmp_path / "broken", 2)
    assert Checkpoints(RunDir(tmp_path / "broken").checkpoints).newest_whole() == 1
    killed(__name__, tmp_path / "broken", 3, resume=True)
    again = run_training(resolved(tmp_path / "broken"), tmp_path / "broken")
    assert lines(again) == lines(whole)
    steps = [line["step"] for line in lines(whole) if "loss" in line]
    assert steps == [1, 2, 3, 4] and [line["run/stage"] for line in lines(whole) if "loss" in line] == [1, 1, 2, 2]
    states = {name: Checkpoints(run.checkpoints).load(4) for name, run in (("whole", whole), ("broken", again))}
    assert same(states["whole"]["policy"], states["broken"]["policy"])
    assert same(states["whole"]["optimizer"], states["broken"]["optimizer"])
    # the reference of the second stage is what the first one ended with, not the model without its adapter
    border, end = Checkpoints(whole.checkpoints).load(2)["policy"], states["whole"]["policy"]
    assert border["shadows"] == {} and same(end["shadows"]["ref"], border["weights"])
    assert not same(end["weights"], border["weights"])
    with pytest.raises(ValueError, match=r"stage.0.steps is 3, .* hold the place in the chain of that"):
        run_training(resolved(tmp_path / "whole", "stage.0.steps=3"), whole.path)


def test_a_later_stage_whose_data_does_not_fit_is_refused_before_the_model_loads(tmp_path: Path):
    words = ["policy.model=/nowhere", "algorithm={}", 'stage.1={kind="sft", steps=1, column="thought"}']
    with pytest.raises(ValueError, match=r"stage 2 of 2, sft: prompt 'train-0-0' has nothing in the column 'thought', where a"):
        run_training(resolved(tmp_path / "run", *words))


def test_check_and_plan_look_at_every_stage(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    assert check.check("tiny/cold_start", WORDS)
    said = capfd.readouterr().out
    assert "stage 1 of 2, cold start" in said and "stage 2 of 2, rl" in said and "no reward, for none" in said
    assert plan.plan(PlanArguments(["tiny/cold_start", *WORDS], card="24GB"))
    assert "stage 2 of 2, rl" in capfd.readouterr().out
    assert on_the_terminal(configs.load("tiny/cold_start").config)


def test_pairs_of_a_file_are_preferred_from_where_the_stage_before_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    Image.new("RGB", (64, 64), "red").save("a.png")
    row = {
        "prompt": "Which colour?",
        "images": ["a.png"],
        "chosen": "red",
        "rejected": [{"role": "assistant", "content": "blue"}],
    }
    Path("pairs.jsonl").write_text("".join(json.dumps({**row, "id": str(i)}) + "\n" for i in range(4)))
    data = 'data={use="qa_jsonl", path="pairs.jsonl"}'
    dpo = 'stage.1={kind="dpo", steps=3, beta=0.5, optimizer={lr=0.01}, ' + data + "}"
    more = ["algorithm={}", 'stage.0.column="chosen"', f"stage.0.{data}", dpo]
    run = run_training(resolved(tmp_path / "run", *more))
    steps = [line for line in lines(run) if "loss" in line]
    assert [line["loss"] for line in steps[2:3]] == [pytest.approx(math.log(2), abs=1e-5)]
    assert steps[2]["policy/margin"] == pytest.approx(0, abs=1e-4) and steps[-1]["policy/margin"] > 0.05
    assert steps[-1]["policy/preferred"] == 1 and steps[-1]["loss"] < math.log(2)
    Path("pairs.jsonl").write_text(json.dumps({**row, "rejected": "red"}))
    with pytest.raises(ValueError, match="stage 2 of 2, dpo: prompt 'pairs-1' has the same text in the columns 'chosen' and"):
        run_training(resolved(tmp_path / "other", "policy.model=/nowhere", *more))


def test_llavas_answers_are_taught_whole_by_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    said = "<think>It is red.</think><answer>red</answer>"
    turns = [{"from": "human", "value": "<image>\nWhich colour?"}, {"from": "gpt", "value": said}]
    Image.new("RGB", (64, 64), "red").save("a.png")
    Path("llava.json").write_text(json.dumps([{"id": str(i), "image": "a.png", "conversations": turns} for i in range(8)]))
    words = ["steps=4", "optimizer.lr=0.01", "save_minutes=0", "samples_every=1", f"output={str(tmp_path / 'run')!r}"]
    run = train(TrainArguments(words, task="sft", model="tiny:qwen3_vl", data="llava.json"))
    unlikely = [line["policy/imitation"] for line in lines(run) if "loss" in line]
    assert unlikely[-1] < 0.8 * unlikely[0] and [line["loss"] for line in lines(run) if "loss" in line] == pytest.approx(unlikely)
    written = [json.loads(line) for line in run.samples_file("train", 1).read_text().splitlines()]
    assert {line["completion"] for line in written} == {said} and written[0]["answer"] == "red"


def test_a_chain_begins_from_the_adapter_of_another_tool_or_from_its_merged_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """peft alone makes both, as the supervised trainers of others do."""
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForImageTextToText, AutoProcessor

    monkeypatch.chdir(tmp_path)
    Path("letters.py").write_text("def letters(group):\n    return [len(set(sample.text)) for sample in group.samples]\n")
    bare = tiny_model("tiny:qwen3_vl")
    loaded, adapters = AutoModelForImageTextToText.from_pretrained(bare), ["q_proj", "up_proj"]
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(0)
        model: Any = get_peft_model(loaded, LoraConfig(r=4, lora_alpha=8, target_modules=adapters))
        for name, weight in model.named_parameters():
            if "lora_B" in name:
                weight.normal_(std=0.5)
    model.save_pretrained("adapter")
    merged = model.merge_and_unload()
    merged.save_pretrained("merged")
    AutoProcessor.from_pretrained(bare).save_pretrained("merged")
    starts = {"bare": [], "adapter": ['policy.lora.adapter="adapter"'], "merged": ['policy.model="merged"']}
    losses = {}
    for name, words in starts.items():
        steps = ["stage.0.steps=1", "stage.1.steps=1", "evaluation.num_prompts=0", f"policy.model={str(bare)!r}", *words]
        run = run_training(resolved(tmp_path / f"run-{name}", *steps))
        losses[name] = [line["loss"] for line in lines(run) if "loss" in line]
        assert len(losses[name]) == 2
    assert losses["adapter"][0] == pytest.approx(losses["merged"][0], abs=1e-4)
    assert abs(losses["adapter"][0] - losses["bare"][0]) > 1e-2
    saved = Checkpoints(RunDir(tmp_path / "run-adapter").checkpoints).load(2)["policy"]["weights"]
    assert {weight.size(0) for name, weight in saved.items() if "lora_A" in name} == {4}, "its own rank, not the run's"


def test_a_real_step_is_recorded_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    run = tmp_path / "run"
    train(TrainArguments(["tiny/flow", "steps=2", "evaluation.num_prompts=0"], output=run, profile="2"))
    file = run / "profile" / "step-2.json.gz"
    assert f"trace of step 2: {file}" in capsys.readouterr().err.replace("\n", "")
    with gzip.open(file, "rt") as lines:
        events = json.load(lines)["traceEvents"]
    spans = {event["name"]: event for event in events if event.get("cat") == "user_annotation"}
    assert {"step", "rollout", "generate", "decode", "reward", "read", "update", "forward", "backward", "optimizer"} <= set(spans)
    inside, around = spans["generate"], spans["rollout"]
    assert around["ts"] <= inside["ts"] and inside["ts"] + inside["dur"] <= around["ts"] + around["dur"]
    with pytest.raises(ValueError, match="the run goes on after step 2: choose steps from 3 on"):
        train(TrainArguments(["steps=4"], resume=run, profile="2"))


@pytest.mark.parametrize(("steps", "message"), [("4", "the run ends after step 3"), ("1..2", "write a step such as 3")])
def test_steps_that_the_run_does_not_take_are_refused_at_once(tmp_path: Path, steps: str, message: str):
    words = ["tiny/flow", "steps=3", "policy.model=nowhere"]
    with pytest.raises(ValueError, match=message):
        train(TrainArguments(words, output=tmp_path / "run", profile=steps))
    assert not (tmp_path / "run").exists()
