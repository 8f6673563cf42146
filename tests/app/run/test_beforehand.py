"""What config, prompts and rewards show of a run is refused, or said, before its model is loaded."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mmrl.app.commands.check import check
from mmrl.app.commands.options import PlanArguments
from mmrl.app.commands.plan import plan
from mmrl.app.commands.train import fit
from mmrl.app.config.run import load
from mmrl.app.modality.base import warn_of_columns
from mmrl.app.modality.flow_checks import warn_of_guidance
from mmrl.app.modality.on_cards import check_cards
from mmrl.app.planning.fit import fit_to
from mmrl.app.planning.memory import target_device
from mmrl.app.planning.plan import draw_up
from mmrl.app.plugins.resolve import load as rewards_load
from mmrl.app.run.beforehand import check_environment, idle_settings, look_at_scoring, look_at_settings, other_fit
from mmrl.app.run.build import Job, build
from mmrl.app.run.context import idle_terms, refuse_idle_methods
from mmrl.app.run.folder import RunDir
from mmrl.core.ranks import Ranks
from mmrl.core.types import Group, Prompt, Sample, Scored
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.shared.lora import LoraSettings, warn_of_idle_settings
from mmrl.training.evaluate import EvaluationSettings, Evaluator, Variant
from mmrl.training.resources.profile import Profile
from mmrl.training.rewards.runner import NamedReward, RewardError, RewardRunner
from tests.support.fakes import FakeTextPolicy
from tests.support.refused import refused
from tests.support.trainers import make_trainer


class CountedError(Exception):
    """Raised where something is counted or loaded."""


def refuse_to_count(*args: object, **settings: object) -> None:
    raise CountedError


@pytest.mark.parametrize("command", ["plan", "plan of a task", "check", "train"])
@pytest.mark.parametrize("reward", ["iou", "pairwise"])
def test_how_boxes_are_written_is_asked_before_anything_is_counted(
    command: str, reward: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Gemma's makers do not say; the reward may lie inside another one."""
    for place in ("mmrl.app.run.build.load_rewards", "mmrl.app.planning.plan.prompts_of", "mmrl.app.planning.fit.prompts_of"):
        monkeypatch.setattr(place, refuse_to_count)
    inside = 'reward=[{use = "pairwise_win_rate", scorer = {use = "iou"}}]'
    words = ["policy.model=tiny:gemma3", *([inside] if reward == "pairwise" else [])]

    def look(*more: str) -> None:
        resolved = load("tiny/image", [*words, *more])
        match command:
            case "plan":
                draw_up(resolved)
            case "plan of a task":
                fit_to(resolved, target_device("24GB"))
            case "check":
                assert not check("tiny/image", [*words, *more])
                raise ValueError(" ".join(capsys.readouterr().out.split()))
            case _:
                build(resolved)

    refused(r"set policy\.box_space to pixel, resized, norm1000, norm1 or norm1000_yx \(pixels", look)
    with pytest.raises(CountedError):
        look("policy.box_space=norm1000")


def test_negative_rewards_are_spoken_of_where_steps_are_weighed_by_them(caplog: pytest.LogCaptureFixture):
    words = ["algorithm.preset=vgpo", "algorithm.schedule.num_steps=4", "algorithm.group_size=4"]
    look_at_settings(load("tiny/flow", words).config, Ranks())
    said = "schedule.num_steps weighs steps by their total reward, which may not be negative"
    assert "algorithm vgpo" in caplog.text and said in caplog.text
    with pytest.raises(ValueError, match=r"may not be negative: .* The weight of reward 'jpeg_size' is below 0"):
        look_at_settings(load("tiny/flow", [*words, "reward.0.weight=-1.0"]).config, Ranks())
    caplog.clear()
    look_at_settings(load("tiny/flow", [*words, "algorithm.advantage.weigh=false", "reward.0.weight=-1.0"]).config, Ranks())
    assert "negative" not in caplog.text


def ones(group):
    return [1.0 for _ in group.samples]


@pytest.mark.parametrize("name", ["total", "no_spread", "completion_length", "diversity", "iou/std", "iou@blurred", "", "a\nb"])
def test_a_reward_never_takes_the_name_of_a_metric(name):
    refused("which metrics could not tell from their own names", RewardRunner, [NamedReward(name, ones)])


@pytest.mark.parametrize("part", ["std", "failed", "na", "retried", "cached"])
def test_a_part_never_takes_the_name_of_a_metric(part):
    runner = RewardRunner([NamedReward("r", lambda group: [Scored(1.0, {part: 2.0}) for _ in group.samples])])
    refused(f"parts named {part}", runner.score, [Group(0, Prompt("p", "x"), (Sample("y"),))], error=RewardError)


def test_a_way_to_evaluate_never_takes_the_name_of_a_reward():
    runner = RewardRunner([NamedReward("plain", ones)])
    with pytest.raises(ValueError, match=r"evaluation\.also and a reward are both named 'plain'"):
        Evaluator(FakeTextPolicy(), [Prompt("p", "x")], runner, EvaluationSettings(), variants=[Variant("plain")])


OFF = ["evaluation={}", "evaluate_every=0"]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("evaluation.num_samples=4", "evaluation.num_samples: nothing is evaluated"),
        ("evaluation.by=['kind']", "evaluation.by: nothing is evaluated"),
        ("evaluate_every=5", "evaluate_every: nothing is evaluated"),
        ("checkpoint.keep_best=eval/total", "checkpoint.keep_best: nothing is evaluated"),
        ("trackers.project=mine", "trackers.project: no tracker is on"),
    ],
)
def test_settings_that_nothing_reads_are_named(word, said):
    [sentence] = idle_settings(load("tiny/flow", [*OFF, word]).config)
    assert said in sentence


def test_prompts_that_are_shown_are_answered_by_settings_of_evaluation():
    words = [*OFF, "evaluation.guidance=2"]
    for idle in ([], OFF, words):
        assert list(idle_settings(load("tiny/flow", idle).config)) == []
    for off in ("evaluation.seen=0", "samples_every=0", "evaluation.num_prompts=0"):
        config = load("tiny/flow", [*words, off]).config
        assert config.num_seen == 0
        assert [sentence.partition(":")[0] for sentence in idle_settings(config)] == ["evaluation.guidance"]


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
        "from mmrl import Box, Prompt\n"
        f"def load():\n    return [Prompt(str(i), 'fox', (), Box(0, 0, 9, 9), {{{column!r}: 9}}) for i in range(8)]\n"
    )
    words = ["reward.0.template=think"] if name == "tiny/image" else []
    build(load(name, [f'data={{use = "{tmp_path / "data.py"}"}}', *OFF, *words]))
    assert ("reward 'iou' has template = 'think', and policy.answer_format asks for 'direct'" in caplog.text) == bool(words)
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


@pytest.mark.parametrize("table", ["reward", "evaluation.reward"])
def test_a_scorer_of_held_out_prompts_takes_the_place_of_its_win_rates(table: str):
    """Of one sample, too, and of a reward that is only watched: the win rates of a group are 1/2 on average."""
    words = ["evaluation.num_samples=1", table + '=[{use="pairwise_win_rate",scorer={use="jpeg_size",scale=0.1}}]']
    job = build(load("tiny/flow", words))
    assert job.evaluator is not None
    plain = build(load("tiny/flow", ["evaluation.num_samples=1"])).evaluator
    assert plain is not None
    metrics = job.evaluator.run(0)[0]
    assert metrics["eval/pairwise_win_rate"] == plain.run(0)[0]["eval/jpeg_size"] != 0.5
    trained = job.trainer.collector.rewards.rewards[0].function
    assert hasattr(trained, "scorer") is (table == "reward")


def test_pairs_need_two_samples_and_a_vote_of_one_says_nothing(caplog):
    class Compares:
        def compare(self, group, pairs):
            return {pair: 0.5 for pair in pairs}

    config = load("tiny/flow", ["evaluation.num_samples=1", 'reward=[{use="pairwise_win_rate"}]']).config
    reward, prompts = rewards_load("pairwise_win_rate", "rewards")(scorer=Compares()), [Prompt("p", "x")]
    refused("num_samples is 1: set it to 2", look_at_scoring, config, [(config.reward[0], reward)], prompts, [Prompt("q", "y")])
    votes = load("tiny/flow", ["evaluation.num_samples=1", 'reward=[{use="majority_vote"},{use="pseudo_span"}]']).config
    vote = [(one, rewards_load(one.use, "rewards")()) for one in votes.reward]
    assert vote[1][1](Group(0, prompts[0], (Sample("1 to 2"),))) == [None]
    look_at_scoring(votes, vote, prompts, [Prompt("q", "y"), prompts[0]])
    assert [record.message for record in caplog.records] == [
        "held-out data: 1 of 2 prompts are trained on, too ('p'): take another split, or mmrl data split",
        "reward 'majority_vote' of one sample is 1 for any answer that can be read: set evaluation.num_samples to 2 or more",
        "reward 'pseudo_span' of one sample is None, with nothing to agree with: set evaluation.num_samples to 2 or more",
    ]


@pytest.mark.parametrize(("use", "shown", "own"), [("first_frame", "crop", "resize"), ("keeps_rest", "resize", "pad")])
def test_a_reward_sees_pictures_as_the_policy_does(use: str, shown: str, own: str):
    make = rewards_load(use, "rewards")
    assert other_fit(make(fit=shown), shown) == []
    (said,) = other_fit(make(fit=own), shown)
    assert said == f"has fit = {own!r} for pictures, and policy.source_fit is {shown!r}: set its fit to that"
    assert other_fit(make(fit=own), None) == [], "a policy that writes"


def test_a_reward_that_is_watched_only_and_a_few_bad_prompts_are_warned_of(caplog):
    config = load("tiny/flow", ['reward=[{use="jpeg_size"},{use="ocr",weight=0}]']).config
    signs = [Prompt("a", 'a sign "stop"'), Prompt("b", 'a sign "go"'), Prompt("c", "a sign")]
    rewards = [(one, rewards_load(one.use, "rewards")()) for one in config.reward]
    look_at_scoring(config, rewards, signs, [])
    look_at_scoring(config, rewards, signs[2:], [])
    few, none = (record.message for record in caplog.records)
    assert few.startswith("1 of 3 prompts of [data] lack the column target")
    assert none.startswith("reward 'ocr' cannot score 1 of 1 prompts")


SMALL = ["policy.weights=nf4", "policy.lora.rank=4"]


@pytest.mark.parametrize("name", ["tiny/image", "tiny/flow"])
def test_a_card_without_bfloat16_units_is_named(name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    ranks: Any = Ranks()
    ranks.accelerator = SimpleNamespace(device=torch.device("cuda"))
    monkeypatch.setattr(Ranks, "is_sharded", False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    for can, dtype, warned in ((False, "float32", False), (True, "bfloat16", False), (False, "bfloat16", True)):
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation, can=can: can or including_emulation)
        check_cards(load(name, [f"policy.dtype={dtype}"]).config.policy, ranks)
        said = "Tesla T4 has no bfloat16 units, so bfloat16 is slow there" in caplog.text
        assert said == warned and ("take a card of Ampere or later" in caplog.text) == warned


@pytest.mark.parametrize("name", ["tiny/image", "tiny/flow"])
def test_fast_kernels_bring_corrections_and_need_their_package_and_a_card(name: str, monkeypatch: pytest.MonkeyPatch):
    resolved = load(name, [*SMALL, "policy.quantized.kernels=fast"])
    algorithm = resolved.config.algorithm.algorithm
    assert algorithm.old == "reread" and "RolloutCorrection" in [type(one).__name__ for one in algorithm.importance]
    assert resolved.origin(("algorithm", "importance")) == 'default with policy.quantized.kernels = "fast"'
    equal = load(name, SMALL).config.algorithm.algorithm
    assert "RolloutCorrection" not in [type(one).__name__ for one in equal.importance]
    for package, said in (
        (None, r"it is not installed: pip install .mmrl\[quantized\]"),
        (SimpleNamespace(), "act on a GPU alone, of which this run has none: leave it out"),
    ):
        monkeypatch.setattr("mmrl.app.modality.on_cards.find_spec", lambda name, package=package: package)
        refused(f"kernels is 'fast', .* {said}", build, resolved)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            [*SMALL, "policy.quantized.embeddings=host"],
            "embeddings is 'host', which is for one GPU, and there are 2 processes: start one",
        ),
        *(
            (
                [f"algorithm.preset={name}", "environment.use=zoom"],
                f"{name} trains rows of earlier steps again, .* and the run has 2: start one, take",
            )
            for name in ("arpo_gui", "mobile_agent_v3", "remix", "ssr")
        ),
    ],
)
def test_what_is_for_one_process_is_refused_of_two(words: list[str], said: str):
    """Embeddings on the host, and episodes of earlier steps."""
    config, ranks = load("tiny/image", words).config, Ranks()
    check_cards(config.policy, ranks)
    check_environment(config, ranks)
    ranks.world = 2
    with pytest.raises(ValueError, match=said):
        check_cards(config.policy, ranks)
        check_environment(config, ranks)


@pytest.mark.parametrize("name", ["tiny/image", "tiny/flow"])
@pytest.mark.parametrize("stored", [False, True])
def test_weights_in_4_bits_are_not_cut(name: str, stored: bool, monkeypatch: pytest.MonkeyPatch):
    """By FSDP or ZeRO-3, whether they are made or stored."""
    monkeypatch.setattr("mmrl.app.modality.on_cards.is_stored_in_codes", lambda policy: stored)
    policy = load(name, SMALL[stored:]).config.policy
    check_cards(policy, Ranks())
    monkeypatch.setattr(Ranks, "is_sharded", True)
    said = "is stored in 4 bits" if stored else "policy.weights is 'nf4'"
    refused(rf"{said}, and FSDP and ZeRO-3 cut weights that are numbers: start with .*ddp\.yaml", check_cards, policy, Ranks())


def test_sounds_are_refused_before_weights_that_are_cut_are_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from transformers import Qwen2AudioConfig

    own = "import mmrl\n\ndef load():\n    return [mmrl.Prompt('7', 'What is heard?', (SOUND,))]\n"
    (tmp_path / "own.py").write_text(own.replace("SOUND", repr(str(tmp_path / "a.wav"))))
    (tmp_path / "a.wav").touch()
    Qwen2AudioConfig(text_config={"model_type": "qwen2", "num_hidden_layers": 1}).save_pretrained(tmp_path / "ears")
    words = [f"data={{use='{tmp_path}/own.py'}}", "evaluation.num_prompts=0", f"policy.model='{tmp_path}/ears'"]
    run = load("tiny/image", words)
    monkeypatch.setattr("mmrl.app.run.build.look_before", lambda *given: None)
    monkeypatch.setattr(Ranks, "is_sharded", True)
    refused(r"prompt '7' has a sound, .* spreads the weights: start with .*ddp\.yaml", build, run)


LATER = "acts only from the second update on"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        *(([f"algorithm.preset={name}"], None) for name in ("grpo", "gspo", "rloo")),
        (["algorithm.preset=grpo", "algorithm.objective.0.high=0.28"], None),
        (["algorithm.preset=gspo", "algorithm.minibatches=1", "algorithm.epochs=2"], None),
        (
            ["algorithm.preset=gspo", "algorithm.minibatches=1"],
            "where Clip is plain REINFORCE: take 4 minibatches, 1 pass (preset gspo)",
        ),
        (
            ["algorithm.preset=reg_grpo", "algorithm.epochs=1"],
            "AdvantageRegression is plain REINFORCE of whole rollouts, times 20",
        ),
        (['algorithm.objective=[{kind = "Gmpo"}]'], "where Gmpo is plain REINFORCE: take 2 minibatches or more with"),
        (['algorithm.objective=[{kind = "ClipCov"}]'], None),
    ],
)
def test_an_objective_that_cannot_act_is_known(words: Sequence[str], told: str | None):
    warning = idle_terms(load("tiny/image", words).config.algorithm)
    assert (warning is None) == (told is None)
    if warning is not None and told is not None:
        assert LATER in warning and told in warning and "algorithm.minibatches" in warning


@pytest.mark.parametrize("words", [["dapo", "algorithm.minibatches=1"], ["remix", "algorithm.epochs=1"], ["tw_grpo"], ["gspo"]])
def test_a_method_of_which_something_acts_is_not(words: Sequence[str]):
    refuse_idle_methods(load("tiny/image", [f"algorithm.preset={words[0]}", *words[1:]]).config.algorithm)


def test_plan_says_so(capsys: pytest.CaptureFixture[str]):
    refused(LATER, plan, PlanArguments(["tiny/image", "algorithm.preset=sapo", "algorithm.minibatches=1"]))
    plan(PlanArguments(["tiny/image", "algorithm.preset=dapo", "algorithm.minibatches=1"]))
    assert LATER in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("words", "said"), [(["algorithm.minibatches=1"], True), ([], False)])
def test_the_first_step_of_a_run_says_so(tmp_path: Path, words: Sequence[str], said: bool):
    config = load("tiny/image", ["algorithm.preset=sapo", *words]).config
    trainer, run = make_trainer(config.algorithm.algorithm, steps=1), RunDir.create(tmp_path / "run")
    fit(Job(config, trainer.policy, trainer, None), run, Ranks(), Profile())
    lines = run.warnings_file.read_text().splitlines() if run.warnings_file.exists() else []
    told = [json.loads(line) for line in lines]
    assert [(one["step"], "Sapo is plain REINFORCE" in one["text"]) for one in told if LATER in one["text"]] == [(0, True)] * said
