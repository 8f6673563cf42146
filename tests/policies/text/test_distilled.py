"""Runs that follow a teacher on tiny real models: they come nearer to it, whatever else a run may have."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from mmrl.algorithms.advantages.experts import TowardsTeacher
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.given import FollowTeacher
from mmrl.algorithms.objectives.surrogates import Reinforce
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.app.modality.taught import measured_apart
from mmrl.core.types import Group, Prompt
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.settings import TextTeacher
from mmrl.training.checkpoints.state import copy_state
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.trainer import Trainer
from tests.support.chains import same
from tests.support.presets import DISTILLED
from tests.support.text_policies import picture

Tiny = Callable[[str], str]
SHOWN = [
    Prompt(str(i), "what is it?", (picture(i),), columns={"solution": f"it is {i}", "crop": picture(i + 7, 90, 60)})
    for i in range(2)
]
KINDS = {
    **DISTILLED,
    "sampled": replace(PRESETS["opd"], objective=((1.0, FollowTeacher(form="sampled", beta=1.0)),), group_size=8),
    "credit": replace(PRESETS["opd"], objective=((1.0, Reinforce()),), advantage=TowardsTeacher(bound=5.0), group_size=8),
}
"""What may follow a teacher."""


def odd_ones(group: Group) -> list[float]:
    """The second sample of every prompt is right."""
    return [float(i == 1) for i in range(len(group.samples))]


def run(folder: str, algorithm: Algorithm, teachers: Sequence[TextTeacher] = (), **more: Any) -> Trainer:
    reward, micro_batch = more.pop("reward", odd_ones), more.pop("micro_batch", 100_000)
    config = TextPolicyConfig(folder, sampling=Sampling(max_new_tokens=6), teachers=tuple(teachers), **more)
    torch.manual_seed(0)
    policy = TextPolicy(config, algorithm.shadows, algorithm.ema_decay or 0.99, algorithm.views)
    settings = TrainSettings(steps=6, prompts_per_step=2, micro_batch=micro_batch, optimizer=OptimizerSettings(lr=3e-3))
    runner = RewardRunner([] if algorithm.unscored else [NamedReward("odd", reward)], algorithm.unscored)
    return Trainer(policy, algorithm, Shuffled(SHOWN, seed=0), runner, settings)


def teachers_of(algorithm: Algorithm, folder: str) -> list[TextTeacher]:
    models = {(reading.target or reading).model for reading in algorithm.all_reads}
    return [TextTeacher("big", model=folder, dtype="float32")] if "teacher" in models else []


@pytest.mark.parametrize("name", sorted(KINDS))
def test_a_run_comes_nearer_to_its_teacher(name: str, tiny: Tiny, other: str):
    algorithm = replace(KINDS[name], group_size=max(4, KINDS[name].group_size))
    trainer = run(tiny("qwen3_vl"), algorithm, teachers_of(algorithm, other), lora=LoraSettings(rank=4))
    steps = [trainer.step() for _ in range(6)]
    if name == "credit":
        assert all(step["policy/grad_norm"] > 0 for step in steps)
        return
    assert all(0 < step["teacher/agreement"] <= 1 and step["teacher/taught"] > 0 for step in steps)
    if name == "sampled":
        return
    assert sum(step["teacher/kl"] for step in steps[-2:]) < sum(step["teacher/kl"] for step in steps[:2])


def test_rows_of_sdpo_and_srpo_go_where_their_rewards_say(tiny: Tiny):
    found = {name: run(tiny("qwen3_vl"), replace(PRESETS[name], group_size=4)).step() for name in ("sdpo", "srpo")}
    # of sdpo the right row is told nothing and leaves; of srpo it keeps its reward
    assert found["sdpo"]["teacher/taught"] == pytest.approx(1.0) and 0.5 < found["srpo"]["teacher/taught"] < 1.0
    assert "policy/clip_frac" in found["srpo"]


def test_a_step_that_leaves_a_teacher_no_row_says_so(tiny: Tiny, caplog: pytest.LogCaptureFixture):
    sdpo = replace(PRESETS["sdpo"], group_size=4)
    trainer = run(tiny("qwen3_vl"), sdpo, reward=lambda group: [0.0] * len(group.samples))
    before = [weight.detach().clone() for weight in trainer.policy.parameters()]
    metrics = trainer.step()
    assert metrics["teacher/taught"] == 0.0 and metrics["loss"] != metrics["loss"]
    assert "does not train: its rewards leave no row to a teacher" in caplog.text
    assert all(map(torch.equal, before, trainer.policy.parameters()))
    with pytest.raises(ValueError, match=r"no reward .* answered for any sample"):
        run(tiny("qwen3_vl"), sdpo, reward=lambda group: [None] * len(group.samples)).step()


def test_a_run_is_resumed_to_the_bit_and_does_not_depend_on_how_it_is_cut(tiny: Tiny, other: str):
    algorithm = replace(PRESETS["opd"], group_size=4)
    teachers = teachers_of(algorithm, other)
    whole, cut, resumed = (
        run(tiny("qwen3_vl"), algorithm, teachers, lora=LoraSettings(rank=4), micro_batch=size) for size in (100_000, 1, 100_000)
    )
    first, apart = whole.step(), cut.step()
    state = copy_state(whole.state_dict())
    assert not any("teacher" in name for name in state["policy"]["weights"])
    for name in ("loss", "teacher/kl", "teacher/agreement", "policy/grad_norm"):
        assert apart[name] == pytest.approx(first[name], rel=1e-4), name
    resumed.load_state_dict(state)
    steps = [{k: v for k, v in one.step().items() if not k.startswith("time/")} for one in (whole, resumed)]
    assert steps[0] == steps[1] and same(*(copy_state(one.policy.state_dict()) for one in (whole, resumed)))


def test_each_of_several_terms_has_figures_of_its_own(tiny: Tiny, other: str):
    terms = tuple((1.0, FollowTeacher(model=model)) for model in ("teacher", "ref"))
    algorithm = measured_apart(replace(PRESETS["opd"], objective=terms, group_size=2), "two")
    trainer = run(tiny("qwen3_vl"), algorithm, teachers_of(algorithm, other), lora=LoraSettings(rank=4))
    found = trainer.step()
    assert found["teacher/kl/ref"] == 0.0 and found["teacher/agreement/ref"] == pytest.approx(1.0)
    assert found["teacher/kl/teacher"] > 0.01 and found["teacher/agreement/teacher"] < 0.99 and "teacher/kl" not in found
    again = measured_apart(replace(algorithm, objective=(terms[1], *terms)), "three")
    assert [getattr(term, "label", None) for _, term in again.objective] == ["ref-0", "teacher", "ref-2"]


def test_each_of_several_teachers_has_figures_of_its_own(tiny: Tiny, other: str, monkeypatch: pytest.MonkeyPatch):
    shown = [replace(one, columns={"teacher": ("a", 2)[i % 2]}) for i, one in enumerate(SHOWN)]
    monkeypatch.setattr("tests.policies.text.test_distilled.SHOWN", shown)
    teachers = [TextTeacher("a", model=other, dtype="float32"), TextTeacher("2", model=tiny("qwen3_vl"), dtype="float32")]
    algorithm = replace(PRESETS["opd"], objective=((1.0, FollowTeacher(names=("a", "2"))),), group_size=3)
    found = run(tiny("qwen3_vl"), algorithm, teachers).step()
    assert found["teacher/agreement/2"] == pytest.approx(1.0) and found["teacher/kl/2"] == 0.0
    assert found["teacher/agreement/a"] < 0.99 and found["teacher/kl/a"] > 0.01
    assert found["teacher/taught/a"] + found["teacher/taught/2"] == pytest.approx(1.0)
