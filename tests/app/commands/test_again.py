"""A model card's own lines, run as they stand: transformers writes the run's held-out answers, diffusers draws its pictures."""

import hashlib
import json
import re
from pathlib import Path
from string import ascii_letters
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw

from mmrl.app.commands.options import EvalArguments
from mmrl.app.commands.train import TrainArguments, train
from mmrl.app.evaluation.command import run_evaluation
from mmrl.app.export.export import export
from mmrl.app.run.evaluation_folder import EvaluationDir
from mmrl.app.run.folder import RunDir, read_lines
from mmrl.lab.models import tiny_model

ONE_STEP = ["steps=1", "prompts_per_step=2", "save_every=1", "algorithm.group_size=2", "algorithm.minibatches=1"]
TEXT = ["tiny/image", *ONE_STEP, "algorithm.preset=dr_grpo", "policy.sampling.max_new_tokens=2", "deterministic=false"]
FLOW = ["tiny/flow", *ONE_STEP, "algorithm.schedule.num_steps=2", "evaluate_every=1", "optimizer.lr=1e-2", "deterministic=false"]
FLOW += ["evaluation.num_steps=5", "evaluation.guidance=3.0", "evaluation.batch_size=1"]
WRITERS = {
    "qwen3_vl": (["policy.answer_format=direct", "policy.system_prompt=Be brief.", "policy.box_space=norm1000"], "norm1000"),
    "qwen2_5_vl": (["policy.answer_format=box", "policy.max_pixels=3136", "policy.lora.rank=4"], "resized"),
    "internvl": (["policy.answer_format=think_box"], "norm1000"),
}
PAINTERS = {"sd3": ["policy.max_prompt_tokens=3"], "flux": ["policy.max_prompt_tokens=24", "policy.lora.rank=4"]}


def code_of(folder: Path, **words: str) -> dict[str, Any]:
    """The names that the last block of a card leaves behind, its words in capitals filled in."""
    text = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)[-1]
    for word, value in {"THIS_FOLDER": str(folder), **words}.items():
        assert word in text
        text = text.replace(word, value)
    names: dict[str, Any] = {}
    exec(compile(text, "README.md", "exec"), names)
    return names


def run_of(folder: Path, model: str, *words: str) -> RunDir:
    return train(TrainArguments([*words, f"policy.model=tiny:{model}", f"output={str(folder / 'run')!r}"]))


def held_out(run: RunDir) -> list[dict[str, Any]]:
    return read_lines(run.samples_file("eval", 1)).lines


@pytest.mark.parametrize("model", sorted(WRITERS))
def test_transformers_writes_what_the_run_wrote_token_by_token(model: str, tmp_path: Path, capsys) -> None:
    for i, colour in enumerate(("red", "green", "blue")):
        picture = Image.new("RGB", (70 + 14 * i, 56), "white")
        ImageDraw.Draw(picture).ellipse((5, 5, 40, 40), fill=colour)
        picture.save(tmp_path / f"{i}.png")
    row = '{{"id": "{0}", "image": "{0}.png", "question": "{1}", "boxes": [[5, 5, 40, 40]]}}\n'
    questions = ("Where is it?", "Now find the large round thing", "box?")
    (tmp_path / "boxes.jsonl").write_text("".join(row.format(i, question) for i, question in enumerate(questions)))
    policy, space = WRITERS[model]
    data = f"{{use='grounding_jsonl', path='{tmp_path}/boxes.jsonl'}}"
    evaluation = f"evaluation={{sampling={{max_new_tokens=12}}, data={data}}}"
    run = run_of(tmp_path, model, *TEXT, *policy, f"data={data}", evaluation, f"reward=[{{use='iou', space='{space}'}}]")
    folder = export(run.path, tmp_path / "out")
    facts = json.loads((folder / "prompt_template.json").read_text())
    assert facts == json.loads(run.template_file.read_text())
    assert facts["box_space"] == space and str(tmp_path) not in (folder / "run.toml").read_text()
    lines = held_out(run)
    if model == "qwen3_vl":
        run_evaluation(EvalArguments([str(run.path)], output=tmp_path / "evaluation"))
        predictions = read_lines(EvaluationDir(tmp_path / "evaluation").predictions).lines
        assert [line["digest"] for line in predictions] == [line["digest"] for line in lines]
    for line in lines:
        names = code_of(folder, PICTURE=str(tmp_path / f"{line['prompt']}.png"), QUESTION=line["text"])
        tokens = names["written"][0, names["inputs"]["input_ids"].shape[1] :].tolist()
        assert hashlib.sha256(repr(tuple(tokens)).encode()).hexdigest()[:20] == line["digest"]
        assert capsys.readouterr().out.rstrip("\n").endswith(line["completion"])
    assert len({line["digest"] for line in lines}) > 1, "answers differ, so that equal ones tell something"


@pytest.mark.parametrize("model", ["qwen3", "llama"])
def test_language_models_are_written_with_alike_and_stop_alike(model: str, tmp_path: Path) -> None:
    data = "{use='prompts', texts=['Why is the sky blue?', 'Count to five', 'b']}"
    evaluation = f"evaluation={{sampling={{max_new_tokens=12, stop={list(ascii_letters)}}}, data={data}}}"
    words = ["policy.answer_format=think", "policy.system_prompt='Be [brief].'", "reward=[{use='repetition'}]"]
    run = run_of(tmp_path, model, *TEXT, *words, f"data={data}", evaluation)
    folder = export(run.path, tmp_path / "out")
    assert "tokenizer=tokenizer" in (folder / "README.md").read_text()
    lines = held_out(run)
    for line in lines:
        names = code_of(folder, QUESTION=line["text"])
        tokens = names["written"][0, names["inputs"]["input_ids"].shape[1] :].tolist()
        assert hashlib.sha256(repr(tuple(tokens)).encode()).hexdigest()[:20] == line["digest"]
    assert any(not line["truncated"] for line in lines), "a stop ended an answer"


@pytest.mark.parametrize(("model", "more"), [("flux", []), ("sd3", []), ("flux", ["evaluation.base_from=0.4"])])
def test_diffusers_draws_what_the_run_drew_to_the_last_pixel(model: str, more: list[str], tmp_path: Path) -> None:
    """Also where the base finishes what the adapter began."""
    run = run_of(tmp_path, model, *FLOW, *PAINTERS[model], "evaluation.num_samples=1", *more)
    folder = export(run.path, tmp_path / "out")
    card = (folder / "README.md").read_text()
    assert run.prompt_file.read_text().startswith("prompt template none: nothing is put around a prompt\n")
    assert ("disable_lora" in card) == bool(more)
    assert "again, pixel for pixel" in card and "- prompt template none: nothing is put around a prompt\n" in card
    assert "- evaluated with: 5 Euler steps, guidance 3, 16 x 16 pixels, 1 sample of a prompt, seed 1234, live weights" in card
    base = str(tiny_model(f"tiny:{model}", "flow"))
    (folder / "README.md").write_text(card.replace(f'"tiny:{model}"', f'"{base}"'))
    lines = held_out(run)
    for place, line in enumerate(lines):
        names = code_of(folder, **{"PROMPT": line["text"], '", 0, 0': f'", {place}, 0'})
        with Image.open(run.samples / line["image"]["file"]) as stored:
            np.testing.assert_array_equal(np.asarray(names["picture"]), np.asarray(stored))
    assert lines[0]["digest"] != lines[1]["digest"]


def test_the_exported_config_measures_the_exported_model_as_the_run_did(tmp_path: Path) -> None:
    run = run_of(tmp_path, "sd3", *FLOW, *PAINTERS["sd3"], "evaluation.num_samples=2")
    folder = export(run.path, tmp_path / "out")
    card = (folder / "README.md").read_text()
    assert "mmrl eval run.toml policy.model=THIS_FOLDER" in card
    assert "up to 2 pictures were drawn side by side, and one alone rounds otherwise" in card
    words = [str(folder / "run.toml"), f"policy.model={str(folder)!r}"]
    again = run_evaluation(EvalArguments(words, output=tmp_path / "evaluation"))
    noted = [line for line in run.read_metrics().lines if "eval/total" in line][-1]
    torch.testing.assert_close(again["eval/total"], noted["eval/total"])
