"""What a run shows of its prompts before it starts: the chat as the model reads it, with everything a template added."""

from pathlib import Path

import pytest
from PIL import Image

from mmrl.app.commands.train import TrainArguments, train
from mmrl.app.report.page import write_report
from mmrl.app.run.folder import RunDir

CONFIG = """steps = 1
prompts_per_step = 2
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
sampling = {{ max_new_tokens = 2 }}
[data]
use = "grounding_jsonl"
path = "{folder}/boxes.jsonl"
[[reward]]
use = "iou"
"""
ROW = '{{"id": "p{0}", "image": "{0}.png", "question": "Where is <b>it</b>?", "boxes": [[1, 2, 30, 40]]}}\n'


def test_a_run_prints_keeps_and_reports_its_first_prompt_with_all_that_was_added(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    for i in range(2):
        Image.new("RGB", (64, 64), "red").save(tmp_path / f"{i}.png")
    (tmp_path / "boxes.jsonl").write_text("".join(ROW.format(i) for i in range(2)))
    (tmp_path / "run.toml").write_text(CONFIG.format(folder=tmp_path))
    train(TrainArguments([str(tmp_path / "run.toml")], None, None, None, [], None, None, None))
    kept = RunDir(tmp_path / "run").prompt_file.read_text()
    assert kept.startswith("prompt template direct: every prompt stands after the system message 'Be [brief].' with ")
    assert "\nfirst prompt, 'p0', the model reads " in kept
    for part in ("Be [brief].", "<|image_pad|>*", "Where is <b>it</b>?", "Reply with the final answer only, inside <answer> and"):
        assert part in kept
    printed = "".join(capsys.readouterr())
    assert "Be [brief]." in printed and "Reply with the final answer only" in printed
    page = write_report(tmp_path / "run").read_text()
    assert "prompt template direct" in page and "as the model reads it" in page and "Where is &lt;b&gt;it&lt;/b&gt;?" in page
