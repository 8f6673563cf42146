"""Runs beside weights in 4 bits, from training to export: they resume exactly, and merged weights need no codes."""

from pathlib import Path
from typing import Any

import pytest

from mmrl.app.commands.train import TrainArguments, run_training
from mmrl.app.config import run as configs
from mmrl.app.export.export import export
from mmrl.app.run.build import build
from mmrl.app.run.folder import RunDir

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
