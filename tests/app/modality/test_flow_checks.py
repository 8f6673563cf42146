"""Image generators: what is refused or said before a run costs time, and the ways to evaluate and export one."""

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.presets import PRESETS
from mmrl.app.commands.train import run_training
from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved
from mmrl.app.evaluation.command import evaluate
from mmrl.app.export.export import export
from mmrl.app.modality.flow_checks import warn_of_clip_ranges, warn_of_half_precision
from mmrl.app.plugins.resolve import load, modalities
from mmrl.app.report.page import write_report
from mmrl.app.run.build import build
from mmrl.app.run.context import updates
from mmrl.policies.flow.policy import FlowPolicy, FlowPolicyConfig
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.evaluate import Weights
from tests.support.flow_runs import Make, of_family, with_preset


def with_algorithm(make: Make, preset: str, *words: str) -> Resolved:
    resolved = make()
    resolved.table.set(("algorithm",), {"preset": preset}, "test")
    return configs.resolve(resolved.table, [f"algorithm.{word}" for word in words])


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("preset", "words", "message"),
    [
        (
            "flow_grpo",
            ["schedule.kind=Forward"],
            r"flow_grpo .*compares densities .*\(it reads .*logprobs.*\), but its schedule Forward has no",
        ),
        ("grpo_guard", ["schedule.kind=Forward"], r"reads dt, logprobs, mean, sampled_mean, std"),
        ("diffusion_nft", ["schedule.kind=Full"], r"noised copies of its samples, but its schedule Full makes none: .*Forward"),
        ("crd", ["schedule.times.shared=false"], r"CenteredReward compares .* different times: set .*times.shared = true"),
        ("dgpo", ["minibatches=40"], r"minibatches is 40, .* groups, which the objective needs whole"),
        ("dgpo", ["schedule.times.shared=false"], r"GroupPreference compares .* different times"),
        ("flow_grpo", ["schedule.kind=Surrogate"], r"compares densities .* its schedule Surrogate has no noisy step"),
        (
            "sol_rl",
            ["schedule.solver=sa", "schedule.level=0.4"],
            r"sol_rl.*Scouts: scouts are samples of few steps",
        ),
        ("flow_grpo", ["planner.kind=Scouts"], r"Scouts: .* draw noise or train: set algorithm.schedule.kind = .Forward"),
        ("refl", ["schedule.kind=Forward"], r"gradient of rewards, but its schedule Forward keeps no path .*Surrogate"),
        ("flow_sft", ["schedule.kind=Surrogate"], r"noised copies of its samples, but its schedule Surrogate makes none"),
        ("refl", [], r"and 'jpeg_size' has none: take rewards that score pixels"),
        (
            "diffusion_opd",
            [],
            r"diffusion_opd follows teachers, and policy.teachers is empty: add a table \[\[policy.teachers\]\]",
        ),
        (
            "vgpo",
            ["schedule.previews=false"],
            r"StepRewards compares rewards of what every step predicts, .*: set .* previews = true",
        ),
        ("flow_grpo", ["schedule.previews=true"], r"decodes what every step predicts, and the advantage GroupNorm does not look"),
        ("flow_grpo_fast", ["schedule.low=7", "schedule.high=9"], "3 steps do not fit between low = 7 and high = 9"),
        (
            "branch_grpo",
            ["schedule.split_steps=[0,1,2,3,4,5]"],
            "multiple of 64 .*group_size is 16: set group_size = 64, or branch at fewer steps",
        ),
        ("branch_mix_grpo", ["schedule.window=[18, 4]"], r"Tree.window is \(18, 4\)"),
        ("temp_flow_grpo", ["group_size=100"], "multiple of 54 samples"),
        ("dance_grpo", ["schedule.num_steps=8"], "trained_per_row is 9, but 7 of the 8 steps may train"),
    ],
)
def test_schedules_that_do_not_fit_are_refused(make: Make, preset: str, words: list[str], message: str):
    with pytest.raises(ValueError, match=message):
        build(with_algorithm(make, preset, *words))


@pytest.mark.usefixtures("no_weights")
@pytest.mark.parametrize(
    ("preset", "columns", "message"),
    [
        ("diffusion_opd", {}, r"prompt '.*' has no column 'teacher' \(2 of 2 prompts .*: give each one of 'ocr', 'taste'"),
        ("diffusion_opd", {"teacher": "art"}, r"prompt '.*' names the teacher 'art' \(2 of 2 prompts"),
        ("flow_grpo", {"teacher": "ocr"}, r"holds 2 adapters, and nothing in algorithm .*flow_grpo.* reads them"),
    ],
)
def test_prompts_name_their_teachers(make: Make, tmp_path: Path, preset: str, columns: dict[str, str], message: str):
    (tmp_path / "drawings.py").write_text(
        '"""Two prompts."""\n\nfrom mmrl import Prompt\n\n\n'
        f"def load() -> list[Prompt]:\n    return [Prompt(x, x, columns={columns!r}) for x in 'ab']\n"
    )
    resolved = make(
        "policy.teachers=[{name='ocr', adapter='x'}, {name='taste', adapter='y', guidance=1.0}]", "policy.lora.rank=2"
    )
    resolved.table.set(("data",), {"use": "./drawings.py"}, "test")
    resolved.table.set(("algorithm",), {"preset": preset}, "test")
    with pytest.raises(ValueError, match=message):
        build(configs.resolve(resolved.table))


@pytest.mark.usefixtures("no_weights")
def test_prompts_with_pictures_are_refused(make: Make, tmp_path: Path):
    (tmp_path / "pictures.py").write_text(
        '"""One prompt with a picture."""\n\nfrom PIL import Image\n\nfrom mmrl import Prompt\n\n\n'
        "def load() -> list[Prompt]:\n    picture = Image.new('RGB', (8, 8))\n"
        "    return [Prompt('a', 'a cat'), Prompt('b', 'like this <image>', (picture,))]\n"
    )
    resolved = make()
    resolved.table.set(("data",), {"use": "./pictures.py"}, "test")
    with pytest.raises(
        ValueError, match=r"prompt 'b' holds 1 picture, but policy\.model .* draws from text alone: remove the pictures"
    ):
        build(configs.resolve(resolved.table))


@pytest.mark.usefixtures("no_weights")
def test_rewards_of_the_other_modality_are_refused(make: Make):
    resolved = make()
    resolved.table.set(("reward",), [{"use": "length"}], "test")
    with pytest.raises(ValueError, match=r"reward 'length' scores text, but policy\.kind is 'flow', whose samples are image"):
        build(configs.resolve(resolved.table))
    text = configs.load("tiny/image")
    text.table.set(("reward",), [{"use": "jpeg_size"}], "test")
    with pytest.raises(ValueError, match=r"reward 'jpeg_size' scores image, but policy\.kind is 'text', whose samples are text"):
        build(configs.resolve(text.table))


def test_modalities_are_read_from_the_file(tmp_path: Path):
    (tmp_path / "judge.py").write_text(
        '"""A judge.\n\nModality: image, text\nRange: 0 to 1\n"""\n\n\ndef judge(group):\n    """1."""\n'
    )
    assert modalities(load(str(tmp_path / "judge.py"), "rewards")) == ("image", "text")
    (tmp_path / "silent.py").write_text('"""Says nothing."""\n\n\ndef silent(group):\n    """1."""\n')
    assert modalities(load(str(tmp_path / "silent.py"), "rewards")) == ()


def test_one_step_of_a_spacing_that_ends_above_zero_is_refused(make: Make):
    with pytest.raises(ValueError, match=r"DynamicShift\.terminal = 0\.02 .* take 2 steps or more"):
        build(make(*of_family("qwen_image"), "evaluation.num_steps=1", "evaluation.also=[{name='x', num_steps=4}]"))


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


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("evaluation.guidance=0.5", r"evaluation\.guidance is 0\.5"),
        ("evaluation.also=[{name='a', num_steps=0}]", r"evaluation\.also\.0\.num_steps is 0: it must be 1 to 4096"),
        ("evaluation.also=[{name='a'}, {name='a'}]", "give each its own"),
        ("evaluation.also=[{name='a/b'}]", "without a slash"),
        ("evaluation.also=[{guidance=1.0}]", "name"),
        ("evaluation.weights=avg", "weights"),
    ],
)
def test_evaluations_that_make_no_sense_are_refused(make: Make, word: str, message: str):
    with pytest.raises(ValueError, match=message):
        make(word)


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
    before = evaluate(str(run.path))
    live = evaluate(str(run.path), ["evaluation.weights=live", "evaluation.also=[]"])
    assert set(live) < set(before) and live["eval/total"] != before["eval/total"]
    page = write_report(run.path).read_text()
    assert "Diversity of a prompt" in page and "plain/total" in page and "updates per step" in page


def test_a_run_without_an_average_has_none_to_export(make: Make, tmp_path: Path):
    run = run_training(with_run(with_preset(make, "cps")))
    with pytest.raises(ValueError, match=r"kept no average of its weights: .*evaluation.weights = 'ema'"):
        export(run.path, tmp_path / "out", weights="ema")
    with pytest.raises(ValueError, match="kept no weights called 'ema'"):
        evaluate(str(run.path), ["evaluation.weights=ema"])
    mixed = evaluate(str(run.path), ["evaluation.base_from=0.5"])
    assert set(mixed) == set(evaluate(str(run.path))), "the model as it was loaded finishes"


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
