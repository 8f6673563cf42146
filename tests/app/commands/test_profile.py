"""`mmrl train --profile`: the trace of a real tiny model's step, and refusals before anything is loaded."""

import gzip
import json
from pathlib import Path

import pytest

from mmrl.app.commands.train import TrainArguments, train


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
