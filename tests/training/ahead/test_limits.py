"""How far ahead methods may be sampled, what is refused before a model is loaded, and a bandit that learns all the same."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.weights.importance import RolloutCorrection
from mmrl.app.config.run import load
from mmrl.app.run.beforehand import idle_settings, look_at_settings
from mmrl.core.ranks import Ranks
from mmrl.core.readings import OLD_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.policies.shared.workers.remote import Place, SamplerSettings
from mmrl.runtime.repeating import Kernels, deterministic
from mmrl.training.ahead.lag import max_ahead
from tests.support.fakes import FakeAccelerator
from tests.support.refused import refused
from tests.support.rows import counts_of, make_batch

ENGINE = 'policy.engine.url=["http://127.0.0.1:9"]'
AHEAD = {
    **dict.fromkeys(("grpo", "dapo", "gspo", "flow_grpo", "awm"), 1),
    **dict.fromkeys(("remix", "t_grpo", "arpo_gui", "hapo", "diffusion_nft"), 0),
}


def test_presets_know_how_far():
    assert {name: max_ahead(PRESETS[name]) for name in AHEAD} == AHEAD


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((), r"there is no \[policy.engine\] and cluster.samplers is 0, so the network that trains writes"),
        ((ENGINE, "policy.engine.sleep=true"), "policy.engine.sleep has servers rest"),
        ((ENGINE, "policy.engine.sync=broadcast", "ahead=2"), "keeps one version of the weights, so it allows 1"),
        (
            (ENGINE, "algorithm.preset=remix"),
            "allows 0: BetweenReferences changes its reference at the end of a step; set ahead = 0",
        ),
        ((ENGINE, "algorithm.preset=t_grpo"), "allows 0: Probed looks at samples with the network that trains meanwhile"),
        ((ENGINE, "algorithm.preset=hapo"), "allows 0: ByDoubt plans by what the step before trained on"),
        ((ENGINE, "algorithm.importance=[]", "ahead=2"), "allows 1: nothing in it corrects"),
        ((ENGINE, "ahead_drain=true", "save_every=0"), "ahead_drain waits for checkpoints of save_every, which is 0"),
    ],
)
def test_what_cannot_be_sampled_ahead_is_refused(overrides: tuple[str, ...], words: str):
    config = load("tiny/image", ["ahead=1", *overrides]).config
    refused(f"ahead is [12], and .*{words}", look_at_settings, config, Ranks())


@pytest.mark.parametrize(
    ("config", "overrides", "words"),
    [
        ("tiny/flow", ("ahead=1",), "ahead is 1, and cluster.samplers is 0, so the network that trains draws: change that"),
        (
            "tiny/token_image",
            ("cluster.samplers=1",),
            "and policy.kind is 'token_image', and they sample for 'text' and 'flow': set cluster.samplers = 0",
        ),
        ("tiny/image", ("cluster.samplers=1", ENGINE), r"the servers of \[policy.engine\] write: leave one of the two out"),
        ("tiny/flow", ("cluster.samplers=1", "policy.family=./mine.py:Mine"), "policy.family is a file of your own"),
        ("tiny/flow", ("cluster.samplers=1", "algorithm.importance=[]", "ahead=2"), "allows 1: nothing in it corrects"),
        (
            "tiny/flow",
            ("cluster.samplers=1", "algorithm.planner={kind='SampleFrom', model='ref'}", "ahead=1"),
            "allows 0: SampleFrom samples with the weights 'ref', which the network has that trains meanwhile",
        ),
    ],
)
def test_what_samplers_cannot_do_is_refused(config: str, overrides: tuple[str, ...], words: str, tmp_path: Path):
    (tmp_path / "mine.py").write_text("class Mine:\n    pass\n")
    resolved = load(config, [word.replace("./mine.py", f"{tmp_path}/mine.py") for word in overrides])
    refused(words, look_at_settings, resolved.config, Ranks())


def test_samplers_draw_for_one_trainer_on_cards_of_their_own(monkeypatch: pytest.MonkeyPatch):
    config = load("tiny/flow", ["ahead=2", "cluster.samplers=2"]).config
    look_at_settings(config, Ranks())
    assert max_ahead(config.algorithm.algorithm) == 2, "by the correction that comes with a lag"
    look_at_settings(replace(config, ahead=0), Ranks(FakeAccelerator(2)))
    refused("samplers is 2, and FSDP", look_at_settings, replace(config, ahead=0), Ranks(FakeAccelerator(2, "FSDP")))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    refused(r"this process sees 2 card\(s\), of which 1 train: .* cluster.samplers_share = true", SamplerSettings(2).places)
    assert [place.card for place in SamplerSettings(1).places()] == ["6"]
    assert [place.card for place in SamplerSettings(2, shares=True).places()] == ["4", "4"]
    for name, value in {"CUDA_VISIBLE_DEVICES": "7,6,5,4,3,2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    assert [place.card for place in SamplerSettings(2).places()] == ["3", "2"], "after those of all trainers and their samplers"
    assert [place.card for place in SamplerSettings(1, shares=True).places()] == ["6"]
    refused(r"sees 6 card\(s\), of which 2 train", SamplerSettings(3).places)


def test_a_sampler_knows_nothing_of_its_trainers_launcher(monkeypatch: pytest.MonkeyPatch):
    """It would join the trainers' group, and all would wait."""
    said = {"RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "a", "TORCHELASTIC_RUN_ID": "x", "OMPI_COMM_WORLD_SIZE": "2"}
    for name, value in {**said, "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": "kept"}.items():
        monkeypatch.setenv(name, value)
    Place("", Kernels.now()).enter()
    assert not said.keys() & os.environ.keys() and os.environ["PYTHONPATH"] == "kept"


def test_samplers_compute_with_the_kernels_of_the_trainer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    others = replace(Kernels.now(), short=(True, True))
    with others.taken():
        with deterministic():
            (place,) = SamplerSettings(1).places()
        assert Kernels.now() == others and place.kernels.short == (False, False) and place.kernels.strict and place.kernels.fixed
        place.enter()
        assert Kernels.now() == place.kernels


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ahead={steps=2, swap='token'}", "ahead.swap is 'token', and weights never change within an answer: .* ahead = 1 or 2"),
        ("swap='token'", "swap is 'token', and weights never change"),
        ("ahead={steps=2}", "ahead is a table, and must be a number of steps"),
    ],
)
def test_weights_that_change_within_an_answer_are_refused(words: str, said: str):
    refused(f"command line: {said}", load, "tiny/image", ["ahead=1", words])


def test_an_engine_brings_what_a_lag_needs_and_weights_that_are_spread_over_processes_are_refused(
    monkeypatch: pytest.MonkeyPatch,
):
    config = load("tiny/image", ["ahead=2", ENGINE]).config
    assert max_ahead(config.algorithm.algorithm) == 2, "by the correction that comes with an engine"
    look_at_settings(config, Ranks(FakeAccelerator(2)))
    monkeypatch.setattr(Ranks, "is_sharded", True)
    refused("spreads the weights over the run's 2 processes: change that", look_at_settings, config, Ranks(FakeAccelerator(2)))


@pytest.mark.parametrize("sampler", [ENGINE, "cluster.samplers=1"])
def test_a_method_with_weights_of_its_own_keeps_them(sampler: str):
    """One of them has a setting named `kind`, which a config writes as kind_."""
    weights = load("tiny/image", ["ahead=1", sampler, "algorithm.preset=attention_rhythm"]).config.algorithm.algorithm.importance
    assert weights[:-1] == PRESETS["attention_rhythm"].importance and isinstance(weights[-1], RolloutCorrection)


def test_a_drain_of_nothing_is_named():
    config = load("tiny/flow", ["ahead_drain=true"]).config
    assert [sentence for sentence in idle_settings(config) if sentence.startswith("ahead_drain: ahead is 0")]


REWARDS = torch.tensor([1.0, 0.6, 0.0], dtype=torch.float64)
BIAS = torch.tensor([-3.0, 3.0, 0.0], dtype=torch.float64)
LOST = torch.tensor([-2.5, 0.7, 0.0], dtype=torch.float64).log_softmax(0)
MASK = torch.ones(3, 1, dtype=torch.bool)


def reward_after(correction: RolloutCorrection | None, is_lost: bool, steps: int = 500, lr: float = 4.0) -> float:
    """The policy's expected reward after so many steps along expected gradients."""
    logits = torch.zeros(3, dtype=torch.float64)
    for _ in range(steps):
        policy = logits.log_softmax(0)
        sampler = LOST if is_lost else (logits + BIAS).log_softmax(0)
        advantages = REWARDS - (sampler.exp() * REWARDS).sum()
        pull = sampler.exp() * advantages * weights_of(correction, policy, sampler)
        logits = logits + lr * (pull - policy.exp() * pull.sum())
    return float((logits.softmax(0) * REWARDS).sum())


def weights_of(correction: RolloutCorrection | None, policy: Tensor, sampler: Tensor) -> Tensor:
    if correction is None:
        return torch.ones(3, dtype=torch.float64)
    frozen = {OLD_LOGPROBS: policy[:, None].float(), ROLLOUT_LOGPROBS: sampler[:, None].float()}
    batch = make_batch(MASK, torch.zeros(3), frozen)
    return correction(batch, counts_of(batch))[:, 0].double()


def test_truncated_weights_mend_a_bias_masks_do_not_and_nothing_mends_lost_weights():
    """So these are refused by their version; without a correction training ends at the wrong arm."""
    truncated, masked = (RolloutCorrection(mode=mode, high=3.0) for mode in ("token_truncate", "token_mask"))
    assert reward_after(truncated, is_lost=False) > 0.95
    assert max(reward_after(one, is_lost=False) for one in (None, masked)) < 0.7
    assert reward_after(None, is_lost=True) < 0.7 and reward_after(truncated, is_lost=True) < 0.8
