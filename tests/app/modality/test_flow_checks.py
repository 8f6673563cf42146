"""Image generators: what is refused or said before a run costs time, and the ways to evaluate and export one."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.kinds import KINDS
from mmrl.algorithms.presets import PRESETS
from mmrl.app.commands.options import EvalArguments
from mmrl.app.commands.train import run_training
from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved
from mmrl.app.evaluation.command import run_evaluation
from mmrl.app.export.export import export
from mmrl.app.modality.flow_checks import warn_of_clip_ranges, warn_of_half_precision
from mmrl.app.plugins.resolve import load, modalities
from mmrl.app.report.page import write_report
from mmrl.app.run.build import build
from mmrl.app.run.context import updates
from mmrl.policies.flow.policy import FlowPolicy, FlowPolicyConfig
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.evaluate import Weights
from tests.support.flow_runs import Make, with_preset


def test_modalities_are_read_from_the_file(tmp_path: Path):
    (tmp_path / "judge.py").write_text(
        '"""A judge.\n\nModality: image, text. More words.\nRange: 0 to 1\n"""\n\n\ndef judge(group):\n    """1."""\n'
    )
    assert modalities(load(str(tmp_path / "judge.py"), "rewards")) == ("image", "text")
    (tmp_path / "silent.py").write_text('"""Says nothing."""\n\n\ndef silent(group):\n    """1."""\n')
    assert modalities(load(str(tmp_path / "silent.py"), "rewards")) == ()


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
        ("flow_grpo", 65536, False),
        ("flow_grpo", 256, True),
        ("flow_grpo_fast", 65536, False),
        ("flow_grpo_fast", 4096, True),
        ("grpo_guard", 65536, False),
        ("grpo_guard", 4096, True),
        ("diffusion_nft", 64, False),
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


EVALUATION = ["evaluation.num_steps=3", "evaluation.guidance=2.0"]
ALSO = "evaluation.also=[{name = 'plain', guidance = 1.0}, {name = 'average', weights = 'ema', num_steps = 2}]"


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


def test_other_evaluations_survive_in_the_saved_config(make: Make, tmp_path: Path):
    resolved = make(*EVALUATION, ALSO)
    configs.save(resolved.config, tmp_path / "saved.toml")
    assert configs.load(str(tmp_path / "saved.toml")).config == resolved.config


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
    run = run_training(with_run(with_preset(make, "cps")))
    with pytest.raises(ValueError, match=r"kept no average of its weights: .*evaluation.weights = 'ema'"):
        export(run.path, tmp_path / "out", weights="ema")
    with pytest.raises(ValueError, match="kept no weights called 'ema'"):
        run_evaluation(EvalArguments([str(run.path), "evaluation.weights=ema"]))
    mixed = run_evaluation(EvalArguments([str(run.path), "evaluation.base_from=0.5"]))
    assert set(mixed) == set(run_evaluation(EvalArguments([str(run.path)]))), "the model as it was loaded finishes"


def test_a_folder_of_whole_weights_says_that_the_base_finished_its_pictures(make: Make, tmp_path: Path):
    run = run_training(make("steps=1", "output=run", "evaluation.base_from=0.5", "evaluation.num_steps=4"))
    card = (export(run.path, tmp_path / "out") / "README.md").read_text()
    assert "finished with the weights from before training, from step 2 on" in card


def with_run(resolved: Resolved) -> Resolved:
    return configs.resolve(resolved.table, ["steps=1", "output=run"])


def test_gradients_of_rewards_and_groups_take_turns_in_one_run(make: Make, tmp_path: Path):
    """As two stages of a loop, on the same weights, with a step of each in every round."""
    (tmp_path / "blue.py").write_text(
        '"""How blue pictures are.\n\nModality: image\nRange: 0 to 1\n"""\n\nimport numpy as np\n\n\nclass Blue:\n'
        '    """Mean of the blue pixels."""\n\n    def __call__(self, group):\n'
        "        return [float(np.asarray(one.image)[..., 2].mean() / 255) for one in group.samples]\n\n"
        "    def of_pixels(self, pixels, prompts):\n        return pixels[:, 2].flatten(1).mean(1)\n"
    )
    policy = (
        (Path(configs.__file__).parents[3] / "configs/tiny/flow.toml").read_text().partition("[policy]")[2].partition("[data]")[0]
    )
    (tmp_path / "turns.toml").write_text(
        "prompts_per_step = 2\nmicro_batch = 64\n[policy]" + policy + '[data]\nuse = "prompts"\ntexts = ["a fox", "a door"]\n'
        '[[reward]]\nuse = "./blue.py:Blue"\nname = "blue"\n'
        '[[stage]]\nkind = "loop"\nrounds = 2\nstages = ["by gradient", "in groups"]\n'
        '[[stage]]\nkind = "rl"\nname = "by gradient"\nsteps = 1\n[stage.algorithm]\npreset = "draft_k"\n'
        "schedule = {num_steps = 4}\n"
        '[[stage]]\nkind = "rl"\nname = "in groups"\nsteps = 1\n[stage.algorithm]\npreset = "flow_grpo"\ngroup_size = 4\n'
        "schedule = {num_steps = 4}\n"
    )
    run = run_training(configs.load(str(tmp_path / "turns.toml"), ["output=run"]))
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "policy/grad_norm" in line]
    assert ["policy/reward" in line for line in steps] == [True, False] * 2
    assert all(line["policy/grad_norm"] > 0 for line in steps)
