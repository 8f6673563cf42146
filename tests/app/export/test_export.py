import gc
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.app.config.run import load
from mmrl.app.export.export import export, without_folders
from mmrl.app.modality.text import TextModality
from mmrl.app.run.folder import RunDir
from mmrl.app.run.revive import revive
from mmrl.app.run.trackers import JsonlTracker
from mmrl.core.ranks import Ranks
from mmrl.core.types import Group, Prompt, Sample, Scores
from mmrl.lab.tiny.text.vlms import build as build_tiny
from mmrl.policies.text.policy import TextPolicy
from mmrl.training.callbacks import Examples
from mmrl.training.checkpoints.save import CheckpointError, Checkpoints

CONFIG = """steps = 5
prompts_per_step = 4
[algorithm]
preset = "grpo"
[policy]
kind = "text"
model = "{model}"
{lora}
[data]
use = "grounding_jsonl"
[[reward]]
use = "iou"
weight = 0.5
"""
IDS = torch.tensor([[5, 9, 30, 12]])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_tiny("qwen3_vl", tmp_path_factory.mktemp("base") / "tiny-qwen")


@pytest.fixture
def run_of(base: Path, tmp_path: Path) -> Callable[[bool], tuple[RunDir, dict[int, torch.Tensor]]]:
    """A run with checkpoints 3 and 5 of moved weights, and the logits of each."""

    def make(lora: bool) -> tuple[RunDir, dict[int, torch.Tensor]]:
        run = RunDir.create(tmp_path / "run")
        run.config_file.write_text(CONFIG.format(model=base, lora="[policy.lora]\nrank = 4" if lora else ""))
        policy = revive(load(str(run.config_file)).config, None, None, frozenset({"ref"}))
        assert isinstance(policy, TextPolicy)
        generator = torch.Generator().manual_seed(0)
        logits: dict[int, torch.Tensor] = {}
        for step in (3, 5):
            for weight in policy.parameters():
                weight.data += 0.05 * torch.randn(weight.shape, generator=generator)
            logits[step] = logits_of(policy.net.model)
            Checkpoints(run.checkpoints).save(step, {"index": step, "policy": policy.state_dict()}, Ranks())
        return run, logits

    return make


@torch.no_grad()
def logits_of(model: Any) -> torch.Tensor:
    return model.eval()(input_ids=IDS).logits.float()


def loaded(folder: Path) -> Any:
    from transformers import AutoModelForImageTextToText, AutoProcessor

    assert AutoProcessor.from_pretrained(folder).chat_template
    return AutoModelForImageTextToText.from_pretrained(folder)


def test_fully_trained_weights_load_in_transformers(run_of: Any, tmp_path: Path) -> None:
    run, logits = run_of(lora=False)
    out = export(run.path, tmp_path / "out")
    torch.testing.assert_close(logits_of(loaded(out)), logits[5])
    torch.testing.assert_close(logits_of(loaded(export(run.path, tmp_path / "three", step=3))), logits[3])
    with pytest.raises(ValueError, match="no adapter to merge: leave out --merge"):
        export(run.path, tmp_path / "merged", merge=True)


def test_an_adapter_loads_in_peft_and_in_transformers_and_merged_weights_need_neither(
    run_of: Any, base: Path, tmp_path: Path
) -> None:
    from peft import PeftModel
    from transformers import AutoModelForImageTextToText

    run, logits = run_of(lora=True)
    adapter = export(run.path, tmp_path / "adapter")
    plain = AutoModelForImageTextToText.from_pretrained(base)
    assert not torch.allclose(logits_of(plain), logits[5], atol=1e-2)
    torch.testing.assert_close(logits_of(PeftModel.from_pretrained(plain, str(adapter))), logits[5])
    torch.testing.assert_close(logits_of(loaded(adapter)), logits[5])
    merged = export(run.path, tmp_path / "merged", merge=True)
    assert not list(merged.glob("adapter*"))
    torch.testing.assert_close(logits_of(loaded(merged)), logits[5], rtol=1e-4, atol=1e-5)


def test_the_card_tells_method_reward_base_and_the_figures_of_its_step(run_of: Any, tmp_path: Path) -> None:
    run, _ = run_of(lora=True)
    for step, value in ((0, 0.25), (5, 0.75)):
        scores = Scores(("iou",), torch.tensor([[value]]), torch.zeros(1, 1, dtype=torch.long), torch.ones(1))
        JsonlTracker(run).write(step, Examples([Group(0, Prompt("p", "?"), (Sample(text="a"),))], scores), "eval")
    card = (export(run.path, tmp_path / "out") / "README.md").read_text()
    assert "- method: grpo, step 5 of 5, 4 prompts a step" in card and "- rewards: iou (weight 0.5)" in card
    assert "- base model: tiny-qwen\n" in card and "library_name: peft" in card and str(tmp_path) not in card
    assert "| Reward | 0.250 | 0.750 | too few prompts | +0.500 | too few prompts |" in card
    assert "not evaluated at this step" in (export(run.path, tmp_path / "3", step=3) / "README.md").read_text()
    merged = (export(run.path, tmp_path / "merged", merge=True) / "README.md").read_text()
    assert "library_name: transformers" in merged and "merged LoRA" in merged


def test_every_number_of_a_card_has_its_interval(run_of: Any, tmp_path: Path) -> None:
    run, _ = run_of(lora=False)
    values = torch.tensor([[0.0], [1.0]] * 6)
    ok = torch.zeros(12, 1, dtype=torch.long)
    groups = [Group(i, Prompt(f"p{i}", "?"), (Sample(text="a"),)) for i in range(12)]
    JsonlTracker(run).write(5, Examples(groups, Scores(("iou",), values, ok, torch.ones(1))), "eval")
    first = (export(run.path, tmp_path / "first") / "README.md").read_text()
    row = re.search(r"\| Reward \| 0\.500 \| (0\.\d{3}) to (0\.\d{3}) \|", first)
    assert row is not None and 0.2 < float(row[1]) < 0.3 and 0.7 < float(row[2]) < 0.8
    assert "not evaluated before training" in first
    JsonlTracker(run).write(0, Examples(groups, Scores(("iou",), values - 0.25, ok, torch.ones(1))), "eval")
    both = (export(run.path, tmp_path / "both") / "README.md").read_text()
    assert f"| Reward | 0.250 | 0.500 | {row[1]} to {row[2]} | +0.250 | +0.250 to +0.250 |" in both


def test_an_adapter_says_how_to_measure_it_and_the_config_names_no_folder(run_of: Any, tmp_path: Path) -> None:
    run, _ = run_of(lora=True)
    text = run.config_file.read_text() + f'[evaluation.data]\nuse = "grounding_jsonl"\npath = "{tmp_path}/held_out.jsonl"\n'
    run.config_file.write_text(text)
    for merge, words in ((False, "policy.lora.adapter=THIS_FOLDER"), (True, "policy.model=THIS_FOLDER")):
        folder = export(run.path, tmp_path / f"out-{merge}", merge=merge)
        assert f"mmrl eval run.toml {words}\n" in (folder / "README.md").read_text()
        config = (folder / "run.toml").read_text()
        assert str(tmp_path) not in config and 'path = "held_out.jsonl"' in config
        assert (load(str(folder / "run.toml")).config.policy.lora is None) == merge
    facts = json.loads((folder / "prompt_template.json").read_text())
    assert facts["template"] == "none" and facts["prefix"] == facts["suffix"] == facts["system"] == ""
    assert facts["box_space"] == "norm1000" and facts["generate"]["repetition_penalty"] == 1
    assert "adding the adapter to the weights rounded them" in (folder / "README.md").read_text()


def test_words_for_a_model_that_begin_with_a_slash_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "my data.jsonl").touch()
    words = {"system_prompt": "/no_think", "answer_format": "{question} /think", "stop": ["/end"], "template": "~ {question}"}
    places = {"path": str(tmp_path / "my data.jsonl"), "model": "/models/qwen/base", "adapter": "~/adapters/first"}
    assert without_folders({"policy": words, "data": [places]}) == {
        "policy": words,
        "data": [{"path": "my data.jsonl", "model": "base", "adapter": "first"}],
    }


def test_nothing_is_overwritten_and_nothing_half_written_stays(run_of: Any, tmp_path: Path) -> None:
    run, _ = run_of(lora=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="full is not empty: give a new folder"):
        export(run.path, tmp_path / "full")
    with pytest.raises(CheckpointError, match="step-4"):
        export(run.path, tmp_path / "out", step=4)
    manifest = run.checkpoints / "step-5" / "manifest.json"
    damaged = json.loads(manifest.read_text())
    damaged["sha256"]["policy.pt"] = "0" * 64
    manifest.write_text(json.dumps(damaged))
    card = (export(run.path, tmp_path / "out") / "README.md").read_text()
    assert "step 3 of 5" in card and not list(tmp_path.glob("*.partial"))


def test_the_policy_is_gone_before_weights_are_merged(run_of: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two models at a time are what a machine that trained one has no memory for."""
    run, _ = run_of(lora=True)
    alive: list[int] = []

    def policies() -> int:
        # type(): objects that are looked at by isinstance may import modules
        return sum(type(one) is TextPolicy for one in gc.get_objects())

    gc.collect()
    before = policies()
    monkeypatch.setattr(TextModality, "merge", lambda *_: alive.append(policies()))
    export(run.path, tmp_path / "merged", merge=True)
    assert alive == [before]
