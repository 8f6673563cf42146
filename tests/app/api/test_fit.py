"""`mmrl.fit` and `mmrl.evaluate`: objects of a program train as a config's names do, stop, go on, and are scored."""

import multiprocessing
import os
import signal
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import mmrl
from mmrl.app.api.inputs import Lent, as_prompts, kind_for, kind_of_model, merge, policy_table
from mmrl.app.api.notebook import Html, NotebookProgress, in_notebook
from mmrl.app.commands.train import TrainArguments, train
from mmrl.app.config.algorithm import assemble
from mmrl.app.plugins.catalog import find_config
from mmrl.app.plugins.resolve import find_object, is_of_python, offer
from mmrl.app.run.folder import RunDir
from mmrl.app.toml.tables import Table
from mmrl.core.types import Credit, Rollouts, Scores
from mmrl.policies.text.settings import Sampling
from mmrl.training.callbacks import Examples
from tests.support.chains import lines
from tests.support.each import for_each
from tests.support.refused import refused

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
    shown = whole._repr_html_()
    assert "<svg" in shown and str(whole.folder) in shown and "<td>2 prompts: none</td>" in shown and "nan" not in shown


def test_a_run_that_is_interrupted_returns_and_goes_on_to_the_same_numbers(tmp_path: Path, whole: mmrl.Run):
    cut = run(tmp_path / "cut", steps=3, held_out=PROMPTS[:2], callbacks=[Interrupt(1)])
    assert not cut.is_finished and "resume=True" in cut._repr_html_()
    refused("already holds a run", run, tmp_path / "cut", steps=3, held_out=PROMPTS[:2])
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
    assert lines(command) == lines(RunDir(again.folder))
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
    refused(message, mmrl.fit, POLICY, **given)
    assert not (tmp_path / "run").exists()


def test_functions_of_other_trainers_say_whose_they_are(tmp_path: Path):
    def theirs(prompts: list[str], completions: list[str], **columns: object) -> list[float]:
        return [float(len(text.encode())) for text in completions]

    with pytest.raises(ValueError, match=r"python:theirs takes prompts, completions.*\"style\": \"trl\""):
        mmrl.fit(POLICY, ALGORITHM, rewards=[theirs], prompts=PROMPTS, output=tmp_path / "run")
    found = mmrl.evaluate(POLICY, prompts=PROMPTS[:1], rewards=[{"use": theirs, "style": "trl", "conversational": False}])
    assert found.metrics["eval/theirs"] > 0


def test_plug_ins_as_objects(tmp_path: Path):
    prompts = mmrl.load_data("digits_grounding", size=4)
    reward = mmrl.load_reward("iou", space="pixel")
    first = next(iter(prompts))
    (box,) = first.answer
    text = f"[{box.x1}, {box.y1}, {box.x2}, {box.y2}]"
    [score] = reward(mmrl.Group(0, first, (mmrl.Sample(text),)))
    assert getattr(score, "value", score) == pytest.approx(1.0)
    refused(r"mmrl.load_data: data.sice is unknown.*did you mean 'size'", mmrl.load_data, "digits_grounding", sice=4)
    refused("did you mean 'iou'", mmrl.load_reward, "iuo")


def test_a_program_that_its_own_processes_would_run_again_is_told_to_guard_its_call(tmp_path, monkeypatch):
    # what multiprocessing sets while a spawned process imports the program
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    refused(r"it calls mmrl\.fit outside of `if __name__ == \"__main__\":`", run, tmp_path / "run", error=RuntimeError, steps=1)
    assert not (tmp_path / "run").exists()


def one(group: mmrl.Group) -> list[float]:
    return [1.0 for _ in group.samples]


@dataclass(frozen=True)
class Minus:
    """r - shift: a part that mmrl does not ship."""

    shift: float = 0.5

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        values = (scores.total() - self.shift)[:, None].expand_as(rollouts.action_mask)
        return Credit(values, scores.total().isfinite())


@for_each("name", sorted(mmrl.presets))
def test_every_preset_is_recognised_and_an_altered_one_comes_back_whole(name: str):
    preset = mmrl.presets[name]
    assert "preset" in Lent().algorithm(preset)
    for algorithm in (preset, replace(preset, group_size=40)):
        table = Table.of({"algorithm": Lent().algorithm(algorithm)}, "test")
        assert assemble(table).algorithm == algorithm


def test_a_part_of_ones_own_is_lent():
    lent = Lent()
    algorithm = replace(mmrl.presets["dr_grpo"], advantage=Minus(0.25))
    table = lent.algorithm(algorithm)
    assert table["advantage"] == {"use": "python:Minus", "shift": 0.25}
    with offer(lent.objects):
        assert assemble(Table.of({"algorithm": table}, "test")).algorithm == algorithm


def test_rewards_have_names_of_their_own():
    lent = Lent()
    tables = [lent.reward(reward) for reward in (one, {"use": one, "weight": 0.5}, lambda group: [], "iou=0.2")]
    assert tables == [
        {"use": "python:one"},
        {"use": "python:one_2", "weight": 0.5},
        {"use": "python:reward"},
        {"use": "iou", "weight": 0.2},
    ]
    with offer(lent.objects):
        assert find_object("python:one") is one
    refused("'python:one' was an object of a Python program", find_object, "python:one")


def test_texts_are_numbered_prompts_and_what_is_neither_prompt_nor_reward_is_named():
    assert as_prompts(["a", "b"], "prompts") == [mmrl.Prompt("0", "a"), mmrl.Prompt("1", "b")]
    refused(r"prompts\[1\] is int: give mmrl.Prompt objects, or texts", as_prompts, ["a", 3], "prompts", error=TypeError)
    refused("a reward is 3: give a function of a group", Lent().reward, 3, error=TypeError)


def test_a_policy_is_a_name_a_table_or_settings_of_the_algorithms_kind_and_tables_are_laid_over_each_other():
    drawn, written = ("flow_grpo", {"preset": "cps"}, {"schedule": {"kind": "Full"}}), ("dapo", {})
    assert [set(map(kind_for, names)) for names in (drawn, written)] == [{"flow"}, {"text"}]
    drawn, written = ("tiny:sd3", "tiny:shapes"), ("tiny:qwen3_vl", "hub/name")
    assert [set(map(kind_of_model, names)) for names in (drawn, written)] == [{"flow"}, {"text"}]
    assert policy_table("m", "text") == {"kind": "text", "model": "m"}
    config = mmrl.TextPolicyConfig("m", sampling=Sampling(max_new_tokens=7))
    assert policy_table(config, "flow")["sampling"]["max_new_tokens"] == 7
    assert policy_table({"model": "m", "kind": "flow"}, "text") == {"kind": "flow", "model": "m"}
    assert merge({"a": {"b": 1, "c": 2}}, {"a": {"b": 3}, "d": (1, 2)}) == {"a": {"b": 3, "c": 2}, "d": [1, 2]}
    assert is_of_python({"reward": [{"use": "python:x"}]}) and not is_of_python({"reward": [{"use": "iou"}]})


NOTHING = Examples([], Scores((), torch.zeros(0, 0), torch.zeros(0, 0, dtype=torch.long), torch.zeros(0)))


class Cell:
    """A cell's output."""

    def __init__(self) -> None:
        self.pages: list[str] = []

    def __call__(self, page: Html) -> "Cell":
        self.update(page)
        return self

    def update(self, shown: object) -> None:
        assert isinstance(shown, Html)
        self.pages.append(shown._repr_html_())


def test_a_cell_is_replaced_now_and_then_and_at_the_end():
    now, cell = [0.0], Cell()
    progress = NotebookProgress(10, cell, every_s=5.0, clock=lambda: now[0])
    progress.after_evaluation(0, {"eval/total": 0.25, "eval/<b>": 0.5, "eval/a/part": 1.0}, NOTHING)
    for step in range(1, 11):
        now[0] += 2.0
        progress.after_step(step, {"reward/total": 0.1 * step}, None)
    progress.close()
    # the beginning, the evaluation, steps 3, 6, 9 and 10, the end
    assert len(cell.pages) == 7
    assert 'max="10" value="0"' in cell.pages[0] and "<svg" not in cell.pages[0]
    assert "step 0, held out: total 0.250, &lt;b&gt; 0.500" in cell.pages[1]
    assert "step 3/10, 14 s left" in cell.pages[2] and "<svg" in cell.pages[2]
    assert 'value="10"' in cell.pages[-1]


def test_a_terminal_and_a_script_are_no_notebook(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "IPython", raising=False)
    assert not in_notebook()
    for shell, expected in (("ZMQInteractiveShell", True), ("TerminalInteractiveShell", False)):
        ipython = types.ModuleType("IPython")
        vars(ipython)["get_ipython"] = type(shell, (), {})
        monkeypatch.setitem(sys.modules, "IPython", ipython)
        assert in_notebook() is expected, shell
