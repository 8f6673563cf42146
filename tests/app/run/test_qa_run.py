"""Two steps of training on questions of four kinds, from a file of messages; and the chat of the first as the model reads it."""

import json
from pathlib import Path

import pytest
from PIL import Image

from mmrl.app.commands.train import TrainArguments, train
from mmrl.app.report.page import write_report
from mmrl.app.report.timing import read_steps
from mmrl.app.run.folder import RunDir

CONFIG = """steps = 2
prompts_per_step = 4
output = "{folder}/run"
[algorithm]
preset = "dr_grpo"
group_size = 2
minibatches = 1
[policy]
kind = "text"
model = "tiny:qwen3_vl"
answer_format = "direct"
system_prompt = "Be [brief]."
sampling = {{ max_new_tokens = 4 }}
[data]
use = "qa_jsonl"
path = "{folder}/rows.jsonl"
[[reward]]
use = "by_type"
limit_s = 60.0
[[reward]]
use = "length"
weight = 0.1
high = 4
slope = 32
"""


def ask(text: str, answer: object, *pictures: str) -> str:
    turns = [{"role": "user", "content": "<image>" * len(pictures) + text}]
    return json.dumps({"messages": turns, "images": list(pictures), "solution": answer, "id": text})


def test_questions_of_every_kind_are_trained_on_and_the_first_is_shown_with_all_that_was_added(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
):
    caplog.set_level("INFO", logger="mmrl.loading")
    for name in ("a.png", "b.png"):
        Image.new("RGB", (64, 64), "red").save(tmp_path / name)
    rows = [
        ask("Which is <b>it</b>?\nA. red\nB. blue", "A", "a.png", "b.png"),
        ask("How many?", 2, "a.png"),
        ask("Solve 2x = 1.", "\\frac{1}{2}"),
        ask("Who?", "nobody at all"),
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    (tmp_path / "run.toml").write_text(CONFIG.format(folder=tmp_path))
    train(TrainArguments([str(tmp_path / "run.toml")]))
    printed, run = "".join(capsys.readouterr()), RunDir(tmp_path / "run")
    steps = read_steps(run.spans_file)
    assert [step.number for step in steps] == [1, 2]
    assert {"rollout", "generate", "reward", "update", "forward", "backward", "optimizer"} <= {one.name for one in steps[1].spans}
    metrics = [json.loads(line) for line in run.metrics_file.read_text().splitlines()]
    named = " ".join(key for line in metrics for key in line)
    assert {line["step"] for line in metrics} >= {1, 2} and "loss" in named
    assert all(f"by_type/{kind}" in named for kind in ("choice", "number", "math", "text")), named
    assert "is read as messages" in caplog.text
    assert "1 choice (guessed), 1 number (guessed), 1 math (guessed), 1 text (guessed)" in caplog.text
    kept = run.prompt_file.read_text()
    assert kept.startswith("prompt template direct: every prompt stands after the system message 'Be [brief].' with ")
    assert "\nfirst prompt, " in kept and "the model reads " in kept
    for part in ("Be [brief].", "<|image_pad|>*", "Which is <b>it</b>?", "Reply with the final answer only, inside <answer> and"):
        assert part in kept
    assert "Be [brief]." in printed and "Reply with the final answer only" in printed
    page = write_report(run.path).read_text()
    assert "prompt template direct" in page and "as the model reads it" in page and "Which is &lt;b&gt;it&lt;/b&gt;?" in page
