"""Image generators through the commands: their part of a config, what is refused, and a run from training to export."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.algorithms.ema_decay import RampDecay, WarmDecay
from mmrl.app.commands.options import EvalArguments
from mmrl.app.commands.train import TrainArguments, run_training
from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved
from mmrl.app.evaluation.command import run_evaluation
from mmrl.app.export.export import export
from mmrl.app.inspect.show import description
from mmrl.app.plugins.catalog import preset_documents
from mmrl.app.run.build import build
from mmrl.app.run.folder import RunDir
from mmrl.flow.plan import evaluation_plan
from mmrl.lab.models import tiny_model
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.training.checkpoints.save import Checkpoints
from tests.support.flow_runs import ALONE, FAMILIES, SMALL, Make, of_family, train_steps, with_preset
from tests.support.presets import FLOW as PRESETS
from tests.support.presets import TEXT as TEXT_PRESETS


def test_defaults_of_the_kind(make: Make):
    rows = {key: (value, origin) for key, value, origin in make().rows()}
    assert rows["ratio_bound"] == rows["mean_ratio_bound"] == ("auto", "default")
    assert rows["policy.kind"][0] == "flow"
    assert "evaluation.sampling" not in rows
    resolved = make("ratio_bound=1e-5")
    assert resolved.config.ratio_bound == 1e-5
    del resolved.table.values["evaluation"]["num_steps"]
    assert configs.resolve(resolved.table).config.evaluation.num_steps == 28
    assert configs.load("tiny/image").config.ratio_bound == "auto"
    assert configs.load("tiny/image").config.evaluation.num_steps is None


def test_presets_of_both_kinds_are_known():
    assert set(preset_documents()) >= set(PRESETS) | set(TEXT_PRESETS)
    text = description("diffusion_nft", ["algorithm.schedule.times.count=4"])
    rows = [line.split() for line in text.splitlines()]
    assert ["algorithm.schedule.times.count", "4", "1", "to", "1048576", "command", "line"] in rows
    assert ["algorithm.ema_decay.kind", "RampDecay", "preset", "diffusion_nft"] in rows
    assert "arXiv:2509.16117" in text


def test_settings_inside_a_part_keep_the_others(make: Make):
    awm: Any = with_preset(make, "awm").config.algorithm.algorithm.schedule
    times = awm.times
    assert (times.kind, times.count, times.reach) == ("discrete_wo_init", 2, 0.9)
    words = ["algorithm.schedule.spacing.kind=StaticShift"]
    mix_grpo: Any = configs.resolve(with_preset(make, "mix_grpo").table, words).config.algorithm.algorithm.schedule
    spacing = mix_grpo.spacing
    assert (type(spacing).__name__, spacing.shift, spacing.train_steps) == ("StaticShift", 3.0, 1000)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_is_saved_and_read_again(make: Make, tmp_path: Path, name: str):
    assert set(SMALL) == set(PRESETS)
    resolved = with_preset(make, name)
    configs.save(resolved.config, tmp_path / "saved.toml")
    assert configs.load(str(tmp_path / "saved.toml")).config == resolved.config


IN_TURN = {(name, list(FAMILIES)[i % len(FAMILIES)]) for i, name in enumerate(ALONE)}
IN_TURN |= {(name, family) for name in ("flow_grpo", "diffusion_nft") for family in FAMILIES}
PAIRS = [
    pytest.param(name, family, marks=() if (name, family) in IN_TURN else pytest.mark.evidence)
    for name in ALONE
    for family in FAMILIES
]


@pytest.mark.parametrize(("name", "family"), PAIRS)
def test_every_preset_takes_a_step_on_every_family(make: Make, name: str, family: str):
    """With guidance and an adapter; the ratio gate (1e-6) passes. What makes the loss and what makes the latents are apart."""
    job = build(with_preset(make, name, *of_family(family)))
    (metrics,) = train_steps(job)
    assert math.isfinite(metrics["reward/total"]) and math.isfinite(metrics["rollout/length"])
    assert 0 < metrics["train/diversity"] < 1


def test_the_average_follows_as_the_algorithm_says(make: Make):
    def decay(resolved: Resolved) -> Any:
        policy = build(resolved).policy
        assert isinstance(policy, FlowPolicy)
        return policy.ema_decay

    assert decay(with_preset(make, "awm")) == RampDecay(most=0.3)
    changed = with_preset(make, "awm")
    assert decay(configs.resolve(changed.table, ["algorithm.ema_decay.kind=WarmDecay"])) == WarmDecay()


def test_the_average_of_a_text_policy_follows_as_the_algorithm_says():
    words = [
        "algorithm.ema_decay.kind=RampDecay",
        "algorithm.ema_decay.slope=0.25",
        "evaluation.weights=ema",
        "mean_ratio_bound=1.0",
    ]
    words += ["algorithm.group_size=2", "prompts_per_step=2", "policy.sampling.max_new_tokens=4", "optimizer.lr=1e-2"]
    job = build(configs.load("tiny/image", words))
    policy: Any = job.policy
    assert policy.ema_decay == RampDecay(slope=0.25)
    average = [weight.detach().clone() for weight in policy.parameters()]
    for update in range(3):
        job.trainer.step()
        d = min(0.25 * update, 0.5)
        average = [d * a + (1 - d) * b.detach() for a, b in zip(average, policy.parameters(), strict=True)]
        for found, expected in zip(policy.weights.shadows["ema"].weights, average, strict=True):
            torch.testing.assert_close(found, expected)


def numbers(run: RunDir) -> list[dict[str, float]]:
    lines = run.read_metrics().lines
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines if "loss" in line]


def test_a_run_leaves_pictures_goes_on_where_it_stopped_and_is_evaluated_again(make: Make):
    words = ["save_every=1", "steps=3"]
    whole = run_training(make(*words, "output=whole"))
    cut = run_training(make(*words, "steps=2", "output=cut"))
    run_training(TrainArguments(["steps=3"], resume=cut.path).resolve(), cut.path)
    for a, b in zip(numbers(whole), numbers(cut), strict=True):
        assert a == pytest.approx(b, abs=1e-6, nan_ok=True)
    assert [line["rollout/length"] for line in numbers(whole)] == [3.0] * 3
    [last_file] = (whole.path / "samples").glob("eval-*3.jsonl")
    samples = [json.loads(line) for line in last_file.read_text().splitlines()]
    assert all((whole.path / "samples" / line["image"]["file"]).is_file() for line in samples)
    assert whole.report_file.read_text().count("data:image/png") >= 4
    found = run_evaluation(EvalArguments([str(whole.path)]))
    last = [line for line in whole.read_metrics().lines if "eval/total" in line][-1]
    assert found == pytest.approx({name: value for name, value in last.items() if name in found})
    assert set(found) == {"eval/jpeg_size", "eval/jpeg_size/kb", "eval/total", "eval/diversity"}


def weights_in(folder: Path, adapter: Path | None = None) -> dict[str, torch.Tensor]:
    """Of the transformer in a folder with an adapter added, by diffusers alone."""
    from diffusers.pipelines.pipeline_utils import DiffusionPipeline

    pipeline: Any = DiffusionPipeline.from_pretrained(folder, text_encoder_3=None, tokenizer_3=None)
    if adapter is not None:
        pipeline.load_lora_weights(adapter)
        pipeline.fuse_lora()
        pipeline.unload_lora_weights()
    return pipeline.transformer.state_dict()


def pipeline_of(card: str, folder: Path) -> Any:
    """What the code of a model card loads."""
    code = card.split("```python\n")[1].split("```")[0]
    names: dict[str, Any] = {}
    exec(code.replace("THIS_FOLDER", str(folder)), names)
    return names["pipeline"]


def test_exported_weights_load_in_diffusers(make: Make, tmp_path: Path):
    run = run_training(make("steps=1", "output=run"))
    out = export(run.path, tmp_path / "out")
    trained = Checkpoints(run.checkpoints).load()["policy"]["weights"]
    found = weights_in(out)
    assert len(trained) > 10
    for name, weight in trained.items():
        assert torch.equal(found[name.removeprefix("transformer.")], weight)
    card = (out / "README.md").read_text()
    assert "library_name: diffusers" in card and "pipeline_tag: text-to-image" in card
    assert "AutoModel" not in card
    assert pipeline_of(card, out).text_encoder_3 is None
    with pytest.raises(ValueError, match="no adapter to merge"):
        export(run.path, tmp_path / "merged", merge=True)


def test_an_exported_adapter_and_the_merged_model_are_the_same(make: Make, tmp_path: Path):
    run = run_training(make("steps=1", "output=run", "policy.lora.rank=2"))
    base = tiny_model("tiny:sd3", "flow")
    adapter = export(run.path, tmp_path / "adapter")
    merged = export(run.path, tmp_path / "merged", merge=True)
    assert not list(merged.glob("*.safetensors"))
    found, plain = weights_in(merged), weights_in(base)
    torch.testing.assert_close(found, weights_in(base, adapter))
    assert any(not torch.equal(found[name], plain[name]) for name in plain)
    card = (adapter / "README.md").read_text()
    assert pipeline_of(card.replace("tiny:sd3", str(base)), adapter).get_active_adapters()
    assert "merged LoRA" in (merged / "README.md").read_text()


def test_evaluation_takes_deterministic_steps(make: Make):
    job = build(make("evaluation.num_steps=3"))
    assert job.evaluator is not None
    assert job.evaluator.sampling == evaluation_plan(3)
