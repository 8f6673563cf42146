"""What real pipelines, tiny and random, learn: from teachers beside the adapter that trains, and to draw bright pictures."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.ema_decay import RampDecay
from mmrl.algorithms.objectives.flow import FlowKL
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.core.readings import MEAN, VELOCITY
from mmrl.core.types import Batch, Group, Prompt, Reading, Request, Rollouts
from mmrl.flow.schedules import Branching, Forward, Full, OwnPath
from mmrl.flow.times import TimeSampler
from mmrl.policies.flow.dry_run import FlowDryRun
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.settings import TeacherSettings
from mmrl.policies.shared.lora import LoraSettings
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.runner import RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.trainer import Trainer
from tests.support.faults import trainer_of
from tests.support.flow_policies import batch_of, counted, make, prompts, stir, trace_of
from tests.support.refused import refused

Tiny = Callable[[str], str]
STEPS = 4
PLAN = OwnPath(STEPS).at(0)
TEXTS = ("a red cat", "two large dogs", "hi")
GUIDANCE = {"ocr": 1.0, "taste": 3.0}


def of(model: str, reading: Reading = MEAN) -> Reading:
    return reading._replace(model=model)


@pytest.fixture(scope="module")
def taught(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two saved adapters, of which one has another rank."""
    found: dict[str, Path] = {}
    for i, name in enumerate(GUIDANCE):
        policy = make(tiny("sd3"), lora=LoraSettings(rank=2 + 2 * i, alpha=8))
        stir(policy, 0.3 * (i + 1))
        found[name] = tmp_path_factory.mktemp(name)
        policy.save(found[name])
    return found


def student(folder: str, taught: dict[str, Path]) -> FlowPolicy:
    teachers = tuple(TeacherSettings(name, str(path), GUIDANCE[name]) for name, path in taught.items())
    return make(folder, teachers=teachers)


def asked(*names: str | None) -> list[Request]:
    columns = [{} if name is None else {"teacher": name} for name in names]
    return [Request(Prompt(str(i), TEXTS[i], columns=own), 2, i, seed=7 + i) for i, own in enumerate(columns)]


def values(policy: FlowPolicy, rollouts: Rollouts, *readings: Reading) -> list[Tensor]:
    found = policy.read(rollouts.trace, readings, rollouts.action_mask)
    return [found[reading] for reading in readings]


def test_a_teacher_reads_as_it_does_alone(tiny: Tiny, taught: dict[str, Path]):
    policy = student(tiny("sd3"), taught)
    rollouts = policy.rollout(asked("taste", "ocr", "taste"), PLAN)
    policy.audit(rollouts)
    readings = (MEAN, VELOCITY)
    found = values(policy, rollouts, *(of("teacher", reading) for reading in readings))
    assert not found[0].requires_grad and rollouts.action_mask.sum(1).tolist() == [STEPS - 1] * 6
    for i, name in enumerate(("taste", "ocr", "taste")):
        alone = make(tiny("sd3"), lora=LoraSettings(adapter=str(taught[name])), guidance=GUIDANCE[name])
        alone.load_state_dict(FlowPolicy(alone.config).state_dict())
        rows = rollouts.group_ids == i
        for own, wanted in zip(found, values(alone, rollouts, *readings), strict=True):
            torch.testing.assert_close(own[rows], wanted[rows].detach(), atol=1e-3, rtol=1e-3)


def test_teachers_change_nothing_of_the_policy(tiny: Tiny, taught: dict[str, Path], tmp_path: Path):
    policy, plain = student(tiny("sd3"), taught), make(tiny("sd3"))
    one, other = (each.rollout(asked("ocr", "taste"), PLAN) for each in (policy, plain))
    for reads in range(2):
        assert torch.equal(values(policy, one, MEAN)[0], values(plain, other, MEAN)[0]), reads
        values(policy, one, of("teacher"))
    assert policy.state_dict()["weights"].keys() == plain.state_dict()["weights"].keys()
    policy.save(tmp_path / "own")
    plain.save(tmp_path / "plain")
    saved, wanted = (load_file(tmp_path / name / "pytorch_lora_weights.safetensors") for name in ("own", "plain"))
    assert saved.keys() == wanted.keys() and all(torch.equal(saved[key], wanted[key]) for key in saved)


def loss(policy: FlowPolicy, rollouts: Rollouts, term: FlowKL) -> Tensor:
    batch: Batch = batch_of(rollouts)
    found = policy.read(rollouts.trace, term.reads, rollouts.action_mask)
    return term(found, batch)[0]


def test_a_teacher_that_is_the_policy_teaches_nothing(tiny: Tiny, tmp_path: Path):
    own = make(tiny("sd3"))
    own.save(tmp_path)
    policy = make(tiny("sd3"), lora=LoraSettings(adapter=str(tmp_path)), teachers=(TeacherSettings("me", str(tmp_path)),))
    policy.load_state_dict(FlowPolicy(policy.config).state_dict())
    for plan, form in ((PLAN, "mean_mse"), (Full(STEPS).at(0), "true"), (PLAN, "velocity_mse")):
        found = loss(policy, policy.rollout(asked("me"), plan), FlowKL(form, "teacher"))  # type: ignore[arg-type]
        found.sum().backward()
        assert not found.any() and all(weight.grad is None or not weight.grad.any() for weight in policy.parameters())


def test_on_its_own_path_it_is_the_distance_of_velocities(tiny: Tiny, taught: dict[str, Path]):
    """dt^2 times it, which 0.5 makes OPD's."""
    policy = student(tiny("sd3"), taught)
    rollouts = policy.rollout(asked("ocr", "taste"), PLAN)
    sigmas = trace_of(rollouts).sigma_tables[0].sigmas
    means, velocities = (loss(policy, rollouts, FlowKL(form, "teacher")) for form in ("mean_mse", "velocity_mse"))
    torch.testing.assert_close(means, (sigmas[:-1] - sigmas[1:]) ** 2 * velocities, atol=1e-8, rtol=1e-3)
    assert float(means.detach()[:, : STEPS - 1].min()) > 0


def test_a_run_comes_near_its_teachers(tiny: Tiny, taught: dict[str, Path]):
    policy = student(tiny("sd3"), taught)
    algorithm: Algorithm = replace(PRESETS["diffusion_opd"], schedule=OwnPath(STEPS))
    prompts = [one.prompt for one in asked("ocr", "taste")]
    settings = TrainSettings(steps=8, prompts_per_step=2, micro_batch=4, optimizer=OptimizerSettings(lr=1e-2))
    algorithm = replace(algorithm, advantage=replace(algorithm.advantage, unscored=True))  # type: ignore[type-var]
    trainer = Trainer(policy, algorithm, Shuffled(prompts, seed=0), RewardRunner([], unscored=True), settings)
    losses = [trainer.step()["loss"] for _ in range(8)]
    assert losses[-1] < 0.7 * losses[0]


def test_their_bytes_are_planned(tiny: Tiny, taught: dict[str, Path], tmp_path: Path):
    policy = student(tiny("sd3"), taught)
    held = sum(weight.nbytes for name, weight in policy.net.named_parameters() if "teacher_" in name)
    dry_run, alone = (FlowDryRun(replace(policy.config, teachers=teachers)) for teachers in (policy.config.teachers, ()))
    assert dry_run.beside() == {**alone.beside(), "adapters of teachers": held} and held > 0
    lost = replace(policy.config, teachers=(TeacherSettings("a", str(tmp_path / "gone")),))
    refused(r"policy\.teachers\.0\.adapter: there is no folder", FlowDryRun(lost).beside, error=FileNotFoundError)


def test_what_is_refused(tiny: Tiny, taught: dict[str, Path], tmp_path: Path):
    policy = student(tiny("sd3"), taught)
    rollouts = policy.rollout(asked("ocr", None), PLAN)
    refused(r"rows are read under the model 'teacher', and prompts of theirs name none", values, policy, rollouts, of("teacher"))
    refused(r"model 'teacher' cannot be read from this flow policy", values, make(tiny("sd3")), rollouts, of("teacher"))
    for family, folders, said in (
        ("sd3", [tmp_path / "gone"], r"policy\.teachers\.0\.adapter: there is no folder"),
        ("flux", [taught["ocr"]], r"policy\.teachers\.0\.adapter .* of this model"),
        ("sd3", ["x", "y"], "has 'a' twice"),
    ):
        teachers = tuple(TeacherSettings("a", str(folder)) for folder in folders)
        refused(said, make, tiny(family), error=(ValueError, FileNotFoundError), teachers=teachers)
    refused(r"all of its weights train: set policy\.lora", make, tiny("sd3"), lora=None, teachers=(TeacherSettings("a", "x"),))


def test_a_step_reads_each_action_under_one_teacher(tiny: Tiny, taught: dict[str, Path]):
    """With both passes of guidance where it has them: ocr none, taste its own."""
    policy = student(tiny("sd3"), taught)
    rollouts = policy.rollout(asked("ocr", "taste", "taste"), PLAN)
    with counted(policy) as seen, torch.no_grad():
        values(policy, rollouts, of("teacher"))
    assert sum(seen) == 2 * (STEPS - 1) * (1 + 2 + 2)


SMALL: dict[str, Any] = {
    "flow_grpo": Full(num_steps=4, initial_noise="group"),
    "temp_flow_grpo": Branching(num_steps=4, branches=4, at_steps=(0, 1)),
    "diffusion_nft": Forward(num_steps=4, times=TimeSampler("rollout", count=3)),
}


def brightness(group: Group) -> list[float]:
    return [float(np.asarray(sample.image).mean()) / 255 for sample in group.samples]


def small(name: str) -> Algorithm:
    """The preset with few steps, groups of 16, and clip ranges for latents of 256 elements."""
    algorithm = PRESETS[name]
    terms: list[tuple[float, Any]] = list(algorithm.objective)
    objective = tuple((coef, replace(term, low=1e-2, high=1e-2) if hasattr(term, "low") else term) for coef, term in terms)
    return replace(algorithm, objective=objective, schedule=SMALL[name], group_size=16)


def trained(policy: FlowPolicy, algorithm: Algorithm, steps: int) -> list[dict[str, float]]:
    """Metrics of every step."""
    trainer = trainer_of(policy, algorithm, prompts(), brightness, steps=steps, optimizer=OptimizerSettings(lr=2e-2))
    return [trainer.step() for _ in range(steps)]


def gain(steps: list[dict[str, float]]) -> float:
    """From the first three steps to the last three, in deviations of the first step's rewards."""
    assert all(math.isfinite(step["loss"]) for step in steps)
    found = [step["reward/total"] for step in steps]
    return (sum(found[-3:]) - sum(found[:3])) / 3 / steps[0]["reward/brightness/std"]


@pytest.mark.parametrize("name", SMALL)
def test_presets_raise_the_reward(tiny, name):
    algorithm = small(name)
    policy = make(tiny("sd3"), sorted(algorithm.shadows), ema_decay=RampDecay(slope=0.05), guidance=1.0, forward_rows=64)
    assert gain(trained(policy, algorithm, 14)) > 2


@pytest.mark.parametrize("family", ["flux", pytest.param("qwen_image", marks=pytest.mark.evidence)])
def test_every_family_learns(tiny, family):
    assert gain(trained(make(tiny(family), ["ref"], forward_rows=64), small("flow_grpo"), 16)) > 1
