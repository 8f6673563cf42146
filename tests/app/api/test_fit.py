"""`mmrl.fit` and `mmrl.evaluate`: objects of a program train as a config's names do, stop, go on, and are scored."""

import multiprocessing
import os
import signal
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import mmrl
from mmrl.app.commands.train import TrainArguments, train
from mmrl.app.plugins.catalog import find_config

PICTURE = Image.new("RGB", (32, 32), "red")
PROMPTS = [mmrl.Prompt(str(i), f"Where is {i}?", media=(PICTURE,), answer=mmrl.Box(2, 2, 20, 20)) for i in range(4)]
POLICY = {"model": "tiny:qwen3_vl", "sampling": {"max_new_tokens": 4}}
ALGORITHM = replace(mmrl.presets["dr_grpo"], group_size=4)
SETTINGS: dict[str, Any] = {"prompts_per_step": 2, "deterministic": True, "optimizer": {"lr": 1e-3}}


def letters(group: mmrl.Group) -> list[float]:
    """More letters are better."""
    return [float(sum(letter.isalpha() for letter in sample.text or "")) for sample in group.samples]


def run(folder: Path, **more: Any) -> mmrl.Run:
    return mmrl.fit(POLICY, ALGORITHM, rewards=[letters], prompts=PROMPTS, output=folder, **SETTINGS | more)


def rewards_of(one: mmrl.Run) -> list[float]:
    return [line["reward/total"] for line in one.metrics if "reward/total" in line]


class Interrupt(mmrl.Callback):
    """Presses Ctrl-C after a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def after_step(self, step: int, metrics: Mapping[str, float], examples: mmrl.Examples | None) -> None:
        if step == self.step:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> mmrl.Run:
    return run(tmp_path_factory.mktemp("whole") / "run", steps=3, held_out=PROMPTS[:2])


def test_a_run_leaves_what_a_commands_run_leaves(whole: mmrl.Run):
    assert whole.is_finished and whole.report.is_file()
    assert [line["step"] for line in whole.metrics if "loss" in line] == [1, 2, 3]
    assert (whole.folder / "checkpoints" / "step-3").is_dir()
    assert {change.name for change in whole.changes} >= {"Reward"}
    assert "<svg" in whole._repr_html_() and str(whole.folder) in whole._repr_html_()


def test_a_run_that_is_interrupted_returns_and_goes_on_to_the_same_numbers(tmp_path: Path, whole: mmrl.Run):
    cut = run(tmp_path / "cut", steps=3, held_out=PROMPTS[:2], callbacks=[Interrupt(1)])
    assert not cut.is_finished and "resume=True" in cut._repr_html_()
    with pytest.raises(ValueError, match="already holds a run"):
        run(tmp_path / "cut", steps=3, held_out=PROMPTS[:2])
    more = run(tmp_path / "cut", steps=3, held_out=PROMPTS[:2], resume=True)
    assert more.is_finished and rewards_of(more) == rewards_of(whole)
    shown = run(tmp_path / "cut", steps=3, held_out=PROMPTS[:2], resume=True)
    assert shown.is_finished and rewards_of(shown) == rewards_of(whole), "a finished run is shown, and not trained again"
    weights = [[p.detach().clone() for p in one.policy.parameters()] for one in (more, shown)]
    assert all(map(torch.equal, *weights))


def test_a_run_of_python_objects_says_so_to_the_command(whole: mmrl.Run):
    with pytest.raises(ValueError, match=r"'python:(letters|prompts)' was an object of a Python program.*mmrl\.fit"):
        train(TrainArguments(["steps=4"], resume=whole.folder))


def test_the_same_numbers_as_the_command(tmp_path: Path):
    """Names instead of objects are the config of `mmrl train`, bit for bit."""
    words = ["steps=2", "evaluation.num_prompts=0", "algorithm.preset=dr_grpo", "policy.sampling.max_new_tokens=4"]
    command = train(TrainArguments([str(find_config("tiny/image")), *words], output=tmp_path / "command"))
    again = mmrl.fit(
        POLICY | {"answer_format": "direct"},
        ALGORITHM,
        rewards=["iou", {"use": "length", "weight": 0.1, "high": 4, "slope": 32}],
        prompts={"use": "digits_grounding", "size": 32},
        steps=2,
        prompts_per_step=4,
        deterministic=True,
        optimizer={"lr": 1e-3},
        output=tmp_path / "python",
    )
    timeless = [[{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines] for lines in (
        command.read_metrics().lines, again.metrics)]  # fmt: skip
    assert timeless[0] == timeless[1]
    more = train(TrainArguments(["steps=3"], resume=again.folder))
    assert more.read_metrics().lines[-1]["step"] == 3


def test_evaluate_scores_a_run_a_folder_and_a_model(whole: mmrl.Run):
    found = mmrl.evaluate(whole, prompts=PROMPTS[:2], rewards=[letters])
    last = [line for line in whole.metrics if "eval/total" in line][-1]
    assert found.metrics["eval/letters"] == pytest.approx(last["eval/letters"], abs=1e-6)
    assert len(found.examples.groups) == 2 and found.examples.scores.names == ("letters",)
    assert mmrl.evaluate(str(whole.folder), prompts=PROMPTS[:2], rewards=[letters]).metrics == found.metrics
    model = mmrl.evaluate(POLICY, prompts=PROMPTS, rewards=[letters, "iou"], num_samples=2)
    assert len(model.examples.scores.total()) == 2 * len(PROMPTS) and "eval/iou" in model.metrics
    assert "eval/iou" in model._repr_html_()


def test_pictures_are_drawn_and_shown(tmp_path: Path):
    schedule = replace(mmrl.presets["cps"].schedule, num_steps=2)  # pyright: ignore[reportArgumentType, reportCallIssue]
    policy = {"model": "tiny:sd3", "height": 16, "width": 16, "guidance": 1.0, "max_prompt_tokens": 3}
    texts = ["a red fox", "a blue door"]
    one = mmrl.fit(
        policy,
        replace(mmrl.presets["cps"], schedule=schedule, group_size=2),
        rewards=[lambda group: [float(sample.image.getpixel((0, 0))[0]) for sample in group.samples]],
        prompts=texts,
        held_out=texts,
        evaluation={"num_steps": 2},
        steps=1,
        prompts_per_step=2,
        output=tmp_path / "run",
    )
    page = one._repr_html_()
    assert one.is_finished and page.count('<svg class="drawing"') == 4
    found = mmrl.evaluate(policy | {"kind": "flow"}, prompts=texts, rewards=["jpeg_size"], num_steps=2)
    assert found.examples.groups[0].samples[0].image.size == (16, 16)


def test_stages_that_teach_need_no_rewards(tmp_path: Path):
    prompts = [replace(prompt, columns={"completion": "yes"}) for prompt in PROMPTS]
    stage = [{"kind": "sft", "steps": 1, "column": "completion"}]
    run = mmrl.fit(POLICY, {}, prompts=prompts, rewards=[], stage=stage, prompts_per_step=2, output=tmp_path / "run")
    assert run.is_finished and run.metrics[-1]["policy/imitation"] > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rewards": []}, "mmrl.fit: reward is missing"),
        ({"rewards": "iou"}, "rewards is a list"),
        ({"rewards": ["iuo"]}, "'iuo'.*did you mean 'iou'"),
        ({"prompts": []}, "prompts is empty"),
        ({"algorithm": "dapoo"}, "mmrl.fit: algorithm.preset is 'dapoo'.*did you mean 'dapo'"),
        ({"steps": -1}, "steps is -1"),
        ({"setps": 3}, "mmrl.fit: setps is unknown.*did you mean 'steps'"),
        ({"resume": True, "output": None}, "resume=True needs output"),
        ({"held_out": []}, "held_out is empty"),
    ],
)
def test_what_cannot_train_is_refused_by_name(tmp_path: Path, change: dict[str, Any], message: str):
    given = {"algorithm": ALGORITHM, "rewards": [letters], "prompts": PROMPTS, "output": tmp_path / "run"} | change
    with pytest.raises(ValueError, match=message):
        mmrl.fit(POLICY, **given)
    assert not (tmp_path / "run").exists()


def test_functions_of_other_trainers_say_whose_they_are(tmp_path: Path):
    def theirs(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
        return [float(len(text)) for text in completions]

    with pytest.raises(ValueError, match=r"reward 'theirs' takes completions.*\"style\": \"trl\""):
        mmrl.fit(POLICY, ALGORITHM, rewards=[theirs], prompts=PROMPTS, output=tmp_path / "run")
    found = mmrl.evaluate(POLICY, prompts=PROMPTS[:1], rewards=[{"use": theirs, "style": "trl"}])
    assert found.metrics["eval/theirs"] > 0


def test_plug_ins_as_objects(tmp_path: Path):
    prompts = mmrl.load_data("digits_grounding", size=4)
    reward = mmrl.load_reward("iou", space="pixel")
    first = next(iter(prompts))
    (box,) = first.answer
    text = f"[{box.x1}, {box.y1}, {box.x2}, {box.y2}]"
    [score] = reward(mmrl.Group(0, first, (mmrl.Sample(text),)))
    assert getattr(score, "value", score) == pytest.approx(1.0)
    with pytest.raises(ValueError, match=r"mmrl.load_data: data.sice is unknown.*did you mean 'size'"):
        mmrl.load_data("digits_grounding", sice=4)
    with pytest.raises(ValueError, match="did you mean 'iou'"):
        mmrl.load_reward("iuo")


def test_a_program_that_its_own_processes_would_run_again_is_told_to_guard_its_call(tmp_path, monkeypatch):
    # what multiprocessing sets while a spawned process imports the program
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(RuntimeError, match=r"it calls mmrl\.fit outside of `if __name__ == \"__main__\":`"):
        run(tmp_path / "run", steps=1)
    assert not (tmp_path / "run").exists()
