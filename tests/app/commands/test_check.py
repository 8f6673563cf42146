"""`mmrl check`: what is wrong with a run is said before it starts, and nothing of the look stays; `mmrl train --profile`."""

import gzip
import json
from pathlib import Path

import pytest
import torch
import typer

from mmrl.app.cli import program as cli
from mmrl.app.commands import check
from mmrl.app.commands.train import TrainArguments, train
from mmrl.app.run.beforehand import contents
from mmrl.core.types import Prompt
from tests.support.flow_runs import Make


def said(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_a_sound_config(make: Make, tmp_path: Path, capsys):
    """Image generator: a picture is left to look at, but no run."""
    assert check.check("tiny/flow", card="24GB")
    text = said(capsys)
    for what in (
        "6 prompts to train on",
        "none of which is trained on",
        "|log ratio| 0.0e+00 at most",
        "of 24.00 GiB",
        "fit each",
        "evaluation ok 2 prompts, 4 samples, total -8.",
        "reward test ok every reward answers for pictures",
        "mmrl reward score jpeg_size FOLDER",
    ):
        assert what in text
    file = Path(text.split("sample.png")[0].split()[-1] + "sample.png")
    assert file.is_file() and "FAIL" not in text
    assert not list(tmp_path.iterdir())


def test_prompts_that_have_no_answers_by_nature_are_no_fault(make: Make, capsys):
    words = ['data={use = "prompts", texts = ["tell a tale", "sing"]}', 'evaluation.data={use = "prompts", texts = ["hum"]}']
    words += ["reward=[{use = 'length'}, {use = 'repetition', weight = 0.1}]", "policy.answer_format=none"]
    assert check.check("tiny/image", words, card="24GB")
    text = said(capsys)
    assert "reward test note not for prompts without answers" in text and "FAIL" not in text
    assert not check.check("tiny/image", [*words, "reward=[{use = 'choice'}]"], card="24GB")
    assert "FAIL" in said(capsys), "a reward that needs answers has none"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["evaluation.data.texts=['a red fox', 'an owl']"], "1 of 2 prompts are trained on, too"),
        (["policy.model=./missing"], "there is no folder './missing'"),
        (["algorithm.preset=branch_grpo", "algorithm.group_size=3"], "FAIL"),
    ],
    ids=["overlap", "model", "geometry"],
)
def test_what_is_wrong_is_one_line_and_exit_code_two(words, what, make: Make, capsys):
    with pytest.raises(typer.Exit) as left:
        cli.check("tiny/flow", words)
    assert left.value.exit_code == 2
    text = said(capsys)
    assert what in text and "FAIL" in text and "a sample" not in text


def test_a_card_that_is_too_small(make: Make, capsys):
    assert not check.check("tiny/flow", card="0.5GB")
    text = said(capsys)
    assert "memory FAIL it needs about" in text and "model and rewards" not in text


@pytest.mark.slow
def test_sampling_and_training_that_disagree(make: Make, capsys, monkeypatch):
    rollout = check.build

    def wrong(*args, **kwargs):
        job = rollout(*args, **kwargs)
        inner = job.policy.rollout

        def other(requests, sampling=None):
            rollouts = inner(requests, sampling)
            for noted in rollouts.recorded.values():
                noted += 0.5
            return rollouts

        job.policy.rollout = other
        return job

    monkeypatch.setattr(check, "build", wrong)
    assert not check.check("tiny/flow")
    assert "ratio FAIL before the first update" in said(capsys)


@pytest.mark.parametrize(
    ("answer", "what"),
    [("None", "it applies to none of these prompts"), ("float('nan')", "100% failed: find out why it fails")],
    ids=["never", "fails"],
)
def test_rewards_that_do_not_answer(answer, what, make: Make, tmp_path: Path, capsys):
    (tmp_path / "odd.py").write_text(f"def odd(group, scale=1.0):\n    return [{answer} for _ in group.samples]\n")
    assert not check.check("tiny/flow", ["reward.0.use=./odd.py", "reward.0.max_failed=1.0"])
    text = said(capsys)
    assert "reward odd FAIL mean nan" in text and what in text


def test_groups_without_spread_and_samples_that_were_not_read_are_shares_of_all(make: Make, tmp_path: Path, capsys):
    body = "flat = group.id % 2\n    return [Scored(0.0 if flat else i, {'unparsed': 1.0} if i == 0 else {}) for i in range(4)]\n"
    (tmp_path / "odd.py").write_text(f"from mmrl import Scored\n\ndef odd(group, scale):\n    {body}")
    check.check("tiny/flow", ["reward.0.use=./odd.py", "algorithm.group_size=4", "prompts_per_step=2"])
    text = said(capsys)
    assert "in 50% of the groups all samples have the same total" in text and "25% of the samples unparsed" in text


def test_prompts_are_told_apart_by_what_they_show():
    assert contents(Prompt("a", "hi")) == contents(Prompt("b", "hi"))
    assert contents(Prompt("a", "hi", ("x.png",))) != contents(Prompt("a", "hi", ("y.png",)))


def test_spread_is_taken_inside_groups():
    ids = torch.tensor([0, 0, 1, 1])
    assert check.spread(torch.tensor([0.0, 2.0, 5.0, 5.0]), ids) == 0.5


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
