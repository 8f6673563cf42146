"""The newer families of generators, from a config: they train, are planned without weights, and leave files that load."""

import json
import logging
import math
from pathlib import Path

import diffusers
import pytest

from mmrl.app.commands.plan import draw_up
from mmrl.app.commands.train import run_training
from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved
from mmrl.app.export.export import export
from mmrl.app.plugins.resolve import load
from mmrl.app.run.build import build
from tests.support.flow_runs import FAMILIES, LATE_FAMILIES, Make, of_family, train_steps, with_preset

PRESETS = ("flow_grpo", "mix_grpo", "branch_grpo")
RESULTS = ("z_image", "flux2", "sd15", "sdxl")
"""Of these one that trains on the results, too; of the others in make evidence."""
WAYS = [
    *(pytest.param("diffusion_nft", family, marks=() if family in RESULTS else pytest.mark.evidence) for family in LATE_FAMILIES),
    *(
        pytest.param(preset, family, marks=() if i % len(PRESETS) == j else pytest.mark.evidence)
        for i, family in enumerate(LATE_FAMILIES)
        for j, preset in enumerate(PRESETS)
    ),
]
"""Of each family a preset that trains on the way to its results."""
PLANNED = ("z_image", "sd15")
"""A transformer of flow matching and a U-Net of noise levels, planned in make test; the others in make evidence."""
TABLE = ["algorithm.schedule.spacing.kind=DiffusionTable"]


def late(make: Make, preset: str, family: str, *words: str) -> Resolved:
    """A preset on a tiny model of a family; models of noise levels keep their own."""
    resolved = with_preset(make, preset, *of_family(family), "algorithm.minibatches=2", *words)
    return configs.resolve(resolved.table, TABLE) if family in ("sd15", "sdxl") and preset != "diffusion_nft" else resolved


@pytest.mark.parametrize(("preset", "family"), WAYS)
def test_it_trains_two_steps(make: Make, preset: str, family: str):
    """With guidance and an adapter; the ratio gate (1e-6) passes."""
    job = build(late(make, preset, family, "prompts_per_step=2"))
    for metrics in train_steps(job, 2):
        assert math.isfinite(metrics["reward/total"])


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=() if name in PLANNED else pytest.mark.evidence) for name in LATE_FAMILIES]
)
def test_its_calls_latents_and_bytes_are_planned_without_weights(make: Make, family: str):
    resolved = late(make, "flow_grpo", family, "prompts_per_step=2")
    planned = draw_up(resolved)
    job = build(resolved)
    policy = job.policy
    transformer = policy.net.transformer  # type: ignore[attr-defined]
    assert planned.memory.parameters == sum(weight.numel() for weight in transformer.parameters())
    assert planned.memory.trained == sum(weight.numel() for weight in policy.parameters())
    passes = policy.net.passes()  # type: ignore[attr-defined]
    # 2 prompts of 4 samples, 4 steps, of which the first 3 train
    assert planned.usual.counts["rollout"].rows == 2 * 4 * 4 * passes
    assert planned.usual.counts["update"].rows == 2 * 4 * 3 * passes
    assert planned.memory.stays["vae"] == 4 * sum(weight.numel() for weight in policy.pipeline.vae.parameters())  # type: ignore[attr-defined]


@pytest.mark.parametrize("family", ["z_image", "sdxl"])
def test_what_a_run_exports_loads_in_diffusers(make: Make, tmp_path: Path, family: str):
    run = run_training(late(make, "flow_grpo", family, "steps=1", "output=run", "prompts_per_step=2"))
    merged = export(run.path, tmp_path / "merged", merge=True)
    pipeline = diffusers.DiffusionPipeline.from_pretrained(merged)  # type: ignore[reportPrivateImportUsage]
    assert not [name for name in pipeline.components if "lora" in name]
    card = (export(run.path, tmp_path / "adapter") / "README.md").read_text()
    assert "pipeline_tag: text-to-image" in card and "load_lora_weights" in card


def test_guidance_for_a_model_that_was_made_without_is_said(make: Make, caplog: pytest.LogCaptureFixture, tmp_path: Path):
    """Turbo is known by its name."""
    from mmrl.lab.tiny.flow.pipelines import build as build_tiny

    folder = build_tiny("z_image", tmp_path / "Z-Image-Turbo")
    with caplog.at_level(logging.WARNING):
        build(late(make, "few_step", "z_image", f"policy.model={folder}"))
        assert "was made to be drawn without guidance" in caplog.text and "reads weights" not in caplog.text
        build(late(make, "dgpo", "z_image", f"policy.model={folder}"))
    assert "the objective reads weights with guidance 4.5" in caplog.text


@pytest.mark.parametrize("family", ["z_image", "flux2_klein", "flux"])
def test_noise_that_stays_is_refused_of_a_distilled_model(
    make: Make, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, family: str
):
    """Turbo and schnell are known by their names, klein by its index."""
    from mmrl.app.run import build as building
    from mmrl.lab.tiny.flow.pipelines import build as build_tiny

    folder = build_tiny(family, tmp_path / "of-turbo-and-schnell")
    for file, facts in (("model_index.json", {"is_distilled": True}), ("transformer/config.json", {"guidance_embeds": False})):
        if family in ("flux2_klein", "flux"):
            (folder / file).write_text(json.dumps({**json.loads((folder / file).read_text()), **facts}))
    monkeypatch.setattr(building, "policy_of_run", lambda *_: pytest.fail("the model was loaded"))
    tokens = (FAMILIES | LATE_FAMILIES)[family]
    words = [f"policy.model={folder}", "policy.guidance=1.0", f"policy.max_prompt_tokens={tokens}"]
    with pytest.raises(ValueError, match=r'dynamics is .flow_sde.*distilled to few steps.*preset = "few_step"'):
        build(with_preset(make, "flow_grpo", *words))
    with pytest.raises(pytest.fail.Exception, match="the model was loaded"):
        build(with_preset(make, "few_step", *words))


def test_a_family_of_ones_own_trains_is_planned_and_is_exported(make: Make, tmp_path: Path):
    """The example's AuraFlow, named in a config."""
    example = Path(__file__).parents[3] / "examples/my_generator.py"
    folder = load(f"{example}:tiny_aura_flow", "families")(tmp_path / "aura")
    words = [f"policy.model={folder}", f"policy.family={example}:AuraFlow", "policy.max_prompt_tokens=24", "policy.lora.rank=2"]
    resolved = make(*words, "steps=1", "output=run", "policy.guidance=2.0")
    assert draw_up(resolved).usual.counts["rollout"].rows > 0
    run = run_training(resolved)
    out = export(run.path, tmp_path / "out", merge=True)
    assert (out / "transformer" / "config.json").is_file()
