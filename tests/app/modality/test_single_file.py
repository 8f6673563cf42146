"""A generator in one file through a run: plan, check, training, resuming, and exports that load without mmrl."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from mmrl.app.commands.check import check
from mmrl.app.commands.train import TrainArguments, run_training, train
from mmrl.app.config.run import load
from mmrl.app.export.export import export
from mmrl.app.fit.plan import draw_up
from mmrl.app.modality.registry import modality_of
from mmrl.app.run.folder import RunDir
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.shared.lora import LoraSettings
from tests.support import original_layout
from tests.support.flow_policies import stir


@pytest.fixture(scope="module")
def sd15(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, Path]:
    return original_layout.make("sd15", tmp_path_factory.mktemp("file"))


def words(base: Path, file: Path) -> list[str]:
    tokens = ["policy.max_prompt_tokens=77", "algorithm.group_size=2", "algorithm.schedule.num_steps=2", "evaluation.num_steps=2"]
    spaced = "algorithm.schedule.spacing={kind='DiffusionTable'}"
    return [f"policy.model={file}", f"policy.base={base}", "policy.lora.rank=2", "prompts_per_step=2", spaced, *tokens]


def test_plan_check_train_resume_and_export(
    sd15: tuple[Any, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    _, base, file = sd15
    monkeypatch.chdir(tmp_path)
    given = words(base, file)
    planned = draw_up(load("tiny/flow", given))
    assert planned.memory.parameters == sum(p.numel() for p in sd15[0].unet.parameters()) + planned.memory.trained
    assert check("tiny/flow", given), capsys.readouterr().out
    run_training(TrainArguments(["tiny/flow", *given, "steps=1"], output=tmp_path / "run").resolve())
    train(TrainArguments(["steps=2"], resume=tmp_path / "run"))
    assert [line["step"] for line in RunDir(tmp_path / "run").read_metrics().lines][-1] == 2
    adapter, merged = export(tmp_path / "run", tmp_path / "adapter"), export(tmp_path / "run", tmp_path / "merged", merge=True)
    card = (adapter / "README.md").read_text()
    assert f'diffusers.StableDiffusionPipeline.from_single_file("{file.name}", config="{base.name}")' in card
    assert "- base model: sd15.safetensors" in card and (merged / "unet" / "config.json").is_file()


@pytest.mark.parametrize("family", ["sd15", "z_image"])
def test_the_lines_of_a_card_load_what_was_trained(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Text encoders inside a file are read by the pipeline's own loader, a transformer alone by its class."""
    _, base, file = original_layout.make(family, tmp_path)
    config = FlowPolicyConfig(str(file), base=str(base), height=16, width=16, lora=LoraSettings(rank=2))
    policy = FlowPolicy(config)
    stir(policy)
    policy.save(tmp_path / "THIS_FOLDER")
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    exec("\n".join(modality_of(config).snippet(policy, file.name, True)), found)
    pipeline = found["pipeline"]
    for name, part in policy.pipeline.components.items():
        if isinstance(part, nn.Module):
            own, other = dict(part.named_parameters()), dict(getattr(pipeline, name).named_parameters())
            plain = {key for key in own if "lora" not in key}
            assert plain and all(torch.equal(own[key], other[key]) for key in plain)
    assert any("lora" in key for key, _ in pipeline.components[policy.family.networks[0]].named_parameters())
