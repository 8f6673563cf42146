"""Image generators through the commands: their part of a config, what is said of it, evaluations, and a run up to its export."""

import json
import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.ema_decay import RampDecay, WarmDecay
from mmrl.algorithms.kinds import KINDS
from mmrl.algorithms.presets import PRESETS
from mmrl.app.commands.options import EvalArguments
from mmrl.app.commands.train import TrainArguments, run_training
from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved
from mmrl.app.evaluation.command import run_evaluation
from mmrl.app.export.export import export
from mmrl.app.inspect.show import description
from mmrl.app.modality.flow_checks import warn_of_clip_ranges, warn_of_half_precision
from mmrl.app.plugins.catalog import preset_documents
from mmrl.app.plugins.resolve import load, modalities
from mmrl.app.report.page import write_report
from mmrl.app.run.build import build
from mmrl.app.run.context import updates
from mmrl.flow.plan import evaluation_plan
from mmrl.lab.models import tiny_model
from mmrl.policies.flow.policy import FlowPolicy, FlowPolicyConfig
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.evaluate import Weights
from tests.support.flow_runs import ALONE, FAMILIES, SMALL, Make, loaded_by_card, of_family, train_steps, with_preset
from tests.support.presets import FLOW, TEXT
from tests.support.refused import refused
from tests.support.runs import assert_same_numbers, numbers

EVALUATION = ["evaluation.num_steps=3", "evaluation.guidance=2.0"]
ALSO = "evaluation.also=[{name = 'plain', guidance = 1.0}, {name = 'average', weights = 'ema', num_steps = 2}]"


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
    assert set(preset_documents()) >= {*FLOW, *TEXT}
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


@pytest.mark.parametrize("name", sorted(FLOW))
def test_every_preset_is_saved_and_read_again(make: Make, tmp_path: Path, name: str):
    """With other evaluations beside the usual one."""
    assert set(SMALL) == set(FLOW)
    resolved = with_preset(make, name, *EVALUATION, ALSO)
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
    words = ["algorithm.ema_decay={kind = 'RampDecay', slope = 0.25}", "evaluation.weights=ema", "mean_ratio_bound=1.0"]
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


def test_a_run_leaves_pictures_goes_on_where_it_stopped_and_is_evaluated_again(make: Make):
    words = ["save_every=1", "steps=3"]
    whole = run_training(make(*words, "output=whole"))
    cut = run_training(make(*words, "steps=2", "output=cut"))
    run_training(TrainArguments(["steps=3"], resume=cut.path).resolve(), cut.path)
    assert_same_numbers(cut, whole, [1, 2, 3])
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


def test_exported_weights_load_in_diffusers(make: Make, tmp_path: Path):
    """The card says that the base finished the pictures."""
    run = run_training(make("steps=1", "output=run", "evaluation.base_from=0.5", "evaluation.num_steps=4"))
    out = export(run.path, tmp_path / "out")
    trained = Checkpoints(run.checkpoints).load()["policy"]["weights"]
    found = weights_in(out)
    assert len(trained) > 10
    for name, weight in trained.items():
        assert torch.equal(found[name.removeprefix("transformer.")], weight)
    card = (out / "README.md").read_text()
    assert "library_name: diffusers" in card and "pipeline_tag: text-to-image" in card
    assert "AutoModel" not in card and "finished with the weights from before training, from step 2 on" in card
    assert loaded_by_card(out).text_encoder_3 is None
    refused("no adapter to merge", export, run.path, tmp_path / "merged", merge=True)


def test_an_exported_adapter_and_the_merged_model_are_the_same(make: Make, tmp_path: Path):
    run = run_training(make("steps=1", "output=run", "policy.lora.rank=2"))
    base = tiny_model("tiny:sd3", "flow")
    adapter = export(run.path, tmp_path / "adapter")
    merged = export(run.path, tmp_path / "merged", merge=True)
    assert not list(merged.glob("*.safetensors"))
    found, plain = weights_in(merged), weights_in(base)
    torch.testing.assert_close(found, weights_in(base, adapter))
    assert any(not torch.equal(found[name], plain[name]) for name in plain)
    assert loaded_by_card(adapter, "tiny:sd3").get_active_adapters()
    assert "merged LoRA" in (merged / "README.md").read_text()


def test_evaluation_takes_deterministic_steps(make: Make):
    job = build(make("evaluation.num_steps=3"))
    assert job.evaluator is not None
    assert job.evaluator.sampling == evaluation_plan(3)


def test_modalities_are_read_from_the_file(tmp_path: Path):
    said = {
        "judge": ("A judge.\n\nModality: image, text. More words.\nRange: 0 to 1\n", ("image", "text")),
        "silent": ("None.", ()),
    }
    for name, (text, found) in said.items():
        (tmp_path / f"{name}.py").write_text(f'"""{text}"""\n\n\ndef {name}(group):\n    """1."""\n')
        assert modalities(load(str(tmp_path / f"{name}.py"), "rewards")) == found


def test_prompts_that_are_cut_are_counted_once(make: Make, caplog: pytest.LogCaptureFixture):
    texts = ["x " * 40, "y " * 40, "short"]
    with caplog.at_level(logging.WARNING, "mmrl"):
        job = build(make(f"data.texts={texts}", "prompts_per_step=2"))
        job.trainer.step()
        job.trainer.step()
    said = [record.getMessage() for record in caplog.records if "text encoder" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith("2 of 5 different prompts are longer than the text encoder reads")


@pytest.mark.parametrize(
    ("preset", "elements", "warned"),
    [
        *((preset, 65536, False) for preset in ("flow_grpo", "flow_grpo_fast", "grpo_guard")),
        *(("flow_grpo", 256, True), ("flow_grpo_fast", 4096, True), ("grpo_guard", 4096, True), ("diffusion_nft", 64, False)),
    ],
)
def test_clip_ranges_of_small_latents_are_warned_about(
    preset: str, elements: int, warned: bool, caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING, "mmrl"):
        warn_of_clip_ranges(PRESETS[preset], elements)
    assert bool(caplog.records) == warned
    if elements == 256:
        assert "objective.0: the clip range 0.0001 of Clip is narrow for latents of 256 elements" in caplog.text
        # 1e-4 sqrt(65536 / 256)
        assert "0.0001 at 65536 is 0.002 here" in caplog.text


def test_half_precision_without_equal_forwards_is_warned_about(caplog: pytest.LogCaptureFixture):
    config = FlowPolicyConfig("m", dtype="bfloat16")
    with caplog.at_level(logging.WARNING, "mmrl"):
        warn_of_half_precision(PRESETS["diffusion_nft"], config)
        warn_of_half_precision(PRESETS["cps"], replace(config, equal_forwards=True))
        assert not caplog.records
        warn_of_half_precision(PRESETS["cps"], config)
    assert "set policy.equal_forwards = true" in caplog.text


def test_the_start_of_a_run_says_how_often_it_updates():
    assert updates(Algorithm(epochs=2, minibatches=3)).startswith("6 updates per step (3 minibatches, 2 passes)")
    assert "clipping has nothing to do" in updates(Algorithm())
    assert updates(KINDS["sft"]) == updates(KINDS["sft_of_pictures"]) == "1 update per step"


def test_one_run_is_evaluated_in_several_ways(make: Make):
    job = build(make(*EVALUATION, ALSO))
    assert job.evaluator is not None and isinstance(job.policy, FlowPolicy)
    assert job.policy.shadows == {"ref", "ema"}
    seen: list[int] = []
    job.policy.net.transformer.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(len(kwargs["hidden_states"])), with_kwargs=True
    )
    metrics, examples = job.evaluator.run(0)
    scores = examples.scores
    # four pictures: three steps guided, three plain, two guided
    assert seen == [8] * 3 + [4] * 3 + [8] * 2
    for name in ("jpeg_size", "jpeg_size/kb", "total", "diversity"):
        assert {f"eval/{name}", f"eval/plain/{name}", f"eval/average/{name}"} <= set(metrics)
    assert metrics["eval/total"] == pytest.approx(float(scores.total().mean()))
    with torch.no_grad():
        for weight in job.policy.parameters():
            weight += 0.05 * torch.randn(weight.shape)
    moved = job.evaluator.run(0)[0]
    assert moved["eval/total"] != metrics["eval/total"] and moved["eval/plain/total"] != metrics["eval/plain/total"]
    assert moved["eval/average/total"] == metrics["eval/average/total"]


def test_averaged_weights_are_evaluated_and_exported(make: Make, tmp_path: Path):
    words = ["steps=2", "evaluation.weights=ema", "algorithm.ema_decay.kind=WarmDecay", "algorithm.ema_decay.every=1", ALSO]
    run = run_training(make(*words, "output=run"))
    state = Checkpoints(run.checkpoints).load()["policy"]
    from safetensors.torch import load_file

    choices: tuple[Weights, ...] = ("live", "ema")
    for weights, expected in zip(choices, (state["weights"], state["shadows"]["ema"]), strict=True):
        out = export(run.path, tmp_path / weights, weights=weights)
        found = load_file(out / "transformer" / "diffusion_pytorch_model.safetensors")
        for name, weight in expected.items():
            assert torch.equal(found[name.removeprefix("transformer.")], weight)
        card = (out / "README.md").read_text()
        assert ("averaged over training" in card) == (weights == "ema")
        assert ("The ema weights were evaluated." in card) == (weights == "live")
        assert "| Reward |" in card and "| before | after |" in card
    before = run_evaluation(EvalArguments([str(run.path)]))
    live = run_evaluation(EvalArguments([str(run.path), "evaluation.weights=live", "evaluation.also=[]"]))
    assert set(live) < set(before) and live["eval/total"] != before["eval/total"]
    page = write_report(run.path).read_text()
    assert "Diversity of a prompt" in page and "plain/total" in page and "updates per step" in page


def test_a_run_without_an_average_has_none_to_export(make: Make, tmp_path: Path):
    run = run_training(with_preset(make, "cps", "steps=1", "output=run"))
    refused(r"kept no average of its weights: .*evaluation.weights = 'ema'", export, run.path, tmp_path / "out", weights="ema")
    refused("kept no weights called 'ema'", run_evaluation, EvalArguments([str(run.path), "evaluation.weights=ema"]))
    mixed = run_evaluation(EvalArguments([str(run.path), "evaluation.base_from=0.5"]))
    assert set(mixed) == set(run_evaluation(EvalArguments([str(run.path)]))), "the model as it was loaded finishes"


def test_gradients_of_rewards_and_groups_take_turns_in_one_run(make: Make, tmp_path: Path):
    """As two stages of a loop, on the same weights, with a step of each in every round."""
    (tmp_path / "blue.py").write_text(
        '"""How blue pictures are.\n\nModality: image\nRange: 0 to 1\n"""\n\nimport numpy as np\n\n\nclass Blue:\n'
        '    """Mean of the blue pixels."""\n\n    def __call__(self, group):\n'
        "        return [float(np.asarray(one.image)[..., 2].mean() / 255) for one in group.samples]\n\n"
        "    def of_pixels(self, pixels, prompts):\n        return pixels[:, 2].flatten(1).mean(1)\n"
    )
    turns = [
        "{kind = 'loop', rounds = 2, stages = ['by gradient', 'in groups']}",
        "{kind = 'rl', name = 'by gradient', steps = 1, algorithm = {preset = 'draft_k', group_size = 1}}",
        "{kind = 'rl', name = 'in groups', steps = 1}",
    ]
    words = [f"stage=[{', '.join(turns)}]", "reward=[{use = './blue.py:Blue', name = 'blue'}]", "prompts_per_step=2"]
    small = ["data={use = 'prompts', texts = ['a fox', 'a door']}", "evaluation={}", "evaluate_every=0", "policy.guidance=1.0"]
    small += ["algorithm={preset = 'flow_grpo', group_size = 4, schedule = {num_steps = 4}}"]
    run = run_training(configs.load("tiny/taught_drawing", [*words, *small, "output=run"]))
    steps = [line for line in run.read_metrics().lines if "policy/grad_norm" in line]
    assert ["policy/reward" in line for line in steps] == [True, False] * 2
    assert all(line["policy/grad_norm"] > 0 for line in steps)
