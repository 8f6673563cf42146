"""A setting that cannot act is refused, or said before a run starts."""

import pytest

from mmrl.app.config.run import load
from mmrl.app.modality.flow_checks import warn_of_guidance
from mmrl.app.modality.idle_columns import warn_of_columns
from mmrl.app.run.build import build
from mmrl.app.run.idle_settings import idle_settings
from mmrl.core.types import Group, Prompt, Sample, Scored
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.shared.lora import LoraSettings, warn_of_idle_settings
from mmrl.training.evaluate import EvaluationSettings, Evaluator, Variant
from mmrl.training.rewards.runner import NamedReward, RewardError, RewardRunner
from tests.support.fakes import FakeTextPolicy


def ones(group):
    return [1.0 for _ in group.samples]


@pytest.mark.parametrize("name", ["total", "no_spread", "completion_length", "diversity", "iou/std", "iou@blurred", "", "a\nb"])
def test_a_reward_never_takes_the_name_of_a_metric(name):
    with pytest.raises(ValueError, match="which metrics could not tell from their own names"):
        RewardRunner([NamedReward(name, ones)])


def test_a_reward_named_total_is_refused_at_build():
    with pytest.raises(ValueError, match="a reward is named 'total'"):
        build(load("tiny/flow", ["reward.0.name=total"]))


@pytest.mark.parametrize("part", ["std", "failed", "na", "retried", "cached"])
def test_a_part_never_takes_the_name_of_a_metric(part):
    runner = RewardRunner([NamedReward("r", lambda group: [Scored(1.0, {part: 2.0}) for _ in group.samples])])
    with pytest.raises(RewardError, match=f"parts named {part}"):
        runner.score([Group(0, Prompt("p", "x"), (Sample("y"),))])


def test_a_way_to_evaluate_never_takes_the_name_of_a_reward():
    runner = RewardRunner([NamedReward("plain", ones)])
    with pytest.raises(ValueError, match=r"evaluation\.also and a reward are both named 'plain'"):
        Evaluator(FakeTextPolicy(), [Prompt("p", "x")], runner, EvaluationSettings(), variants=[Variant("plain")])


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("evaluation.num_samples=4", r"evaluation\.num_samples: nothing is evaluated"),
        ("evaluation.guidance=2", r"evaluation\.guidance: nothing is evaluated"),
        ("evaluate_every=5", "evaluate_every: nothing is evaluated"),
        ("checkpoint.keep_best=eval/total", r"checkpoint\.keep_best: nothing is evaluated"),
        ("trackers.project=mine", r"trackers\.project: no tracker is on"),
    ],
)
def test_settings_that_nothing_reads_are_named(word, said):
    off = ["evaluation={}", "evaluate_every=0"]
    assert list(idle_settings(load("tiny/flow", off).config)) == []
    [sentence] = idle_settings(load("tiny/flow", [*off, word]).config)
    assert said.replace("\\", "") in sentence
    assert list(idle_settings(load("tiny/flow").config)) == []


def test_columns_that_look_like_settings(caplog):
    idle = ("seed", "guidance")
    warn_of_columns([Prompt("p", "x", columns={"width": 64, "height": 32, "animal": "fox"})], idle)
    assert caplog.messages == []
    prompts = [Prompt("p", "x"), Prompt("q", "x", columns={"guidance": 4, "seed": 7})]
    warn_of_columns(prompts, idle)
    assert len(caplog.messages) == 1
    for words in ("columns guidance, seed,", "prompt 'q' says guidance = '4'", "[policy] alone decides"):
        assert words in caplog.text


@pytest.mark.parametrize(
    ("name", "column", "said"),
    [("tiny/flow", "seed", "seed = '9', but [policy] alone"), ("tiny/image", "system", "[policy] alone")],
)
def test_columns_are_looked_at_when_a_run_is_built(caplog, tmp_path, name, column, said):
    (tmp_path / "data.py").write_text(
        f"from mmrl import Prompt\ndef load():\n    return [Prompt(str(i), 'fox', columns={{{column!r}: 9}}) for i in range(8)]\n"
    )
    build(load(name, [f'data={{use = "{tmp_path / "data.py"}"}}', "evaluation={}", "evaluate_every=0"]))
    assert f"columns {column}," in caplog.text and said in caplog.text


def test_guidance_of_a_model_that_was_made_without(caplog):
    warn_of_guidance(FlowPolicyConfig("schnell"), 1.0)
    warn_of_guidance(FlowPolicyConfig("schnell", guidance=1.0), 1.0)
    warn_of_guidance(FlowPolicyConfig("dev", guidance=2.0), 3.5)
    assert caplog.messages == []
    warn_of_guidance(FlowPolicyConfig("schnell", guidance=3.5), 1.0)
    assert "policy.guidance is 3.5, but schnell was made to be drawn without guidance" in caplog.text


def test_settings_beside_an_adapter(caplog):
    class Config:
        r, lora_alpha = 4, 8

    warn_of_idle_settings(LoraSettings(adapter="x"), Config())
    warn_of_idle_settings(LoraSettings(adapter="x", rank=4, alpha=8), Config())
    assert caplog.messages == []
    warn_of_idle_settings(LoraSettings(adapter="x", rank=64, targets=("to_q",)), Config())
    assert "policy.lora.rank, policy.lora.targets cannot act beside policy.lora.adapter, whose own rank (4)" in caplog.text
