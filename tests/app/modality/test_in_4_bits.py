"""Runs beside weights in 4 bits, from training to export: they resume exactly, and merged weights need no codes."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.app.commands.train import TrainArguments, run_training
from mmrl.app.config import run as configs
from mmrl.app.export.export import export
from mmrl.app.modality.merge import on_original
from mmrl.app.run.build import build, with_local_model
from mmrl.app.run.folder import RunDir
from mmrl.core.ranks import Ranks
from mmrl.policies.codes.settings import CodePolicyConfig
from mmrl.policies.shared.quantized.stored import tensors_in
from mmrl.policies.shared.quantized.table import round_weight
from mmrl.training.checkpoints.save import Checkpoints

NF4 = [
    "policy.weights=nf4",
    "policy.lora.rank=4",
    "optimizer.lr=0.05",
    "save_every=1",
    "prompts_per_step=2",
    "evaluation.num_prompts=4",
]
KINDS = {
    "text": ["tiny/image", "algorithm.group_size=2", "policy.sampling.max_new_tokens=4"],
    "flow": ["tiny/flow", "policy.quantized.parts=['transformer', 'text_encoders']"],
}


def run(kind: str, *words: str) -> RunDir:
    name, *own = KINDS[kind]
    return run_training(configs.load(name, [*NF4, *own, *words]))


def numbers(of: RunDir) -> list[dict[str, float]]:
    skipped = ("time/", "memory/", "gpu/")
    return [{key: value for key, value in line.items() if not key.startswith(skipped)} for line in of.read_metrics().lines]


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_resumes_exactly_and_its_merged_weights_are_a_model(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    whole, cut = run(kind, "steps=2", "output=whole"), run(kind, "steps=1", "output=cut")
    run_training(TrainArguments(["steps=2"], resume=cut.path).resolve(), cut.path)
    last, again = numbers(whole)[-1], numbers(cut)[-1]
    assert again == pytest.approx({key: last[key] for key in again}, abs=1e-6, nan_ok=True)
    folder = export(whole.path, tmp_path / "merged", merge=True)
    assert not [*folder.glob("adapter_*"), *folder.glob("pytorch_lora_weights*")]
    merged: Any = build(configs.load(KINDS[kind][0], [f"policy.model={folder}", "steps=1", "prompts_per_step=2"])).trainer.policy
    assert merged.config.weights == "float"
    again = configs.load(str(folder / "run.toml"), [f"policy.model={folder}"]).config.policy
    assert not isinstance(again, CodePolicyConfig) and (again.weights, again.lora) == ("float", None)


@pytest.mark.parametrize("kind", KINDS)
def test_an_adapter_is_merged_onto_the_original_weights_where_asked(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.chdir(tmp_path)
    trained = run(kind, "steps=1", "output=run")
    checkpoints = Checkpoints(trained.checkpoints)
    state = checkpoints.load(1)
    for weight in state["policy"]["weights"].values():
        weight += 0.05 * torch.ones_like(weight)
    checkpoints.save(2, {**state, "index": 2}, Ranks())
    rounded, original = export(trained.path, tmp_path / "rounded", merge=True), tmp_path / "original"
    assert "differ from those" not in caplog.text
    export(trained.path, original, merge=True, onto="original")
    assert "answers differ from those of training" in caplog.text
    assert "answers differ from those of training" in (original / "README.md").read_text()
    assert "answers differ" not in (rounded / "README.md").read_text()
    base = Path(with_local_model(configs.load(KINDS[kind][0]).config).policy.model)
    network = "" if kind == "text" else "transformer"
    before, with_codes, plain = (weights_of(folder / network) for folder in (base, rounded, original))
    moved = [name for name, weight in plain.items() if not torch.equal(weight, before[name])]
    assert moved
    for name in moved:
        delta = plain[name] - before[name]
        assert torch.allclose(with_codes[name] - delta, round_weight(before[name], True), atol=1e-5)
        assert not torch.allclose(with_codes[name], plain[name], atol=1e-3)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return {name: read(name).float() for name, read in tensors_in(folder.glob("*.safetensors")).items()}


def test_what_was_trained_beside_stored_weights_has_no_others(tmp_path: Path):
    with pytest.raises(ValueError, match="so there are no others to merge it onto: leave --onto out"):
        on_original(configs.load("tiny/image", ["policy.lora.rank=4"]).config.policy)
