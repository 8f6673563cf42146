"""Every preset makes the fake policy draw its points nearer to where they belong."""

from dataclasses import replace
from typing import Any

import pytest

from mmrl.algorithms.advantages.flow import StepRewards
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.ema_decay import RampDecay
from mmrl.algorithms.objectives.flow import DivergenceMask
from mmrl.algorithms.objectives.forward import DenoisingPreference, GroupPreference
from mmrl.app.modality.flow_checks import USUAL_ELEMENTS
from mmrl.flow.schedules import Branching, Forward, Full, OneStep, RandomSubset, Tree, Window
from mmrl.training.trainer import Trainer
from tests.support.flow_fakes import FakeFlowPolicy
from tests.support.presets import FLOW as PRESETS
from tests.support.trainers import gain_of, make_trainer, rises

CLIP = 2e-2
"""Latents of two elements need a wide clip: the log-ratio spreads as 1 / sqrt(elements)."""
SPREAD = (USUAL_ELEMENTS / 2) ** 0.5
"""How much more means over two elements spread than those that published coefficients are for; differences of errors, too."""


def widened(term: Any) -> Any:
    """The term with a range for latents of two elements."""
    if isinstance(term, DivergenceMask):
        return replace(term, threshold=1e-3)
    if isinstance(term, GroupPreference):
        return replace(term, beta=term.beta / SPREAD, clip=(term.clip or 0.0) * SPREAD)
    if isinstance(term, DenoisingPreference):
        return replace(term, beta=term.beta / SPREAD)
    return replace(term, low=CLIP, high=CLIP) if hasattr(term, "low") else term


def small(name: str) -> Algorithm:
    """The preset with the steps, groups and clip ranges of latents of two elements, and at most four updates per step."""
    algorithm = PRESETS[name]
    terms: list[tuple[float, Any]] = list(algorithm.objective)
    objective = tuple((coef, widened(term)) for coef, term in terms)
    steps: dict[str, Any] = {"num_steps": 6, "spacing": None}
    match algorithm.schedule:
        case Full(trained_per_row=int()):
            steps["trained_per_row"] = 3
        case Tree():
            steps["split_steps"] = (0, 1, 3)
        case Branching():
            steps |= {"at_steps": (0, 2), "branches": 4}
        case OneStep():
            steps |= {"high": 4}
        case RandomSubset():
            steps |= {"candidates": (0, 1, 2, 3, 4)}
        case Window():
            steps |= {"size": 3, "dwell": 5, "high": 5}
        case Forward(times=times):
            steps["times"] = replace(times, count=4)
    own: Any = algorithm.schedule
    schedule = replace(own, **steps)
    trunks = 2 if isinstance(schedule, Branching) else 1
    size, minibatches = trunks * getattr(schedule, "group_size", 12), min(4, algorithm.minibatches)
    advantage = algorithm.advantage
    if isinstance(advantage, StepRewards):  # rewards here are negative
        algorithm = replace(algorithm, advantage=replace(advantage, weigh=False, anchor=0.0))
    return replace(algorithm, objective=objective, schedule=schedule, group_size=size, minibatches=minibatches)


BOUND = 0.5


def trainer_of(name: str, seed: int = 0) -> Trainer:
    policy = FakeFlowPolicy(ema_decay=RampDecay(slope=0.01, most=0.5))
    return make_trainer(small(name), policy=policy, lr=1e-2, seed=seed)


def num_steps(name: str) -> int:
    """Trees share most of a path among their rows: after 40 steps they are 3 deviations above the bound, after 60 seven."""
    return 60 if isinstance(small(name).schedule, Tree) else 40


def gain(name: str, seed: int = 0) -> float:
    return gain_of(trainer_of(name, seed), num_steps(name), 5, "reward/total")


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_learn(name):
    assert rises(trainer_of(name), num_steps(name), BOUND, "reward/total")
