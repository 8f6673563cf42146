"""No two presets are one method under two names: as shipped, on one task, they leave different weights."""

from dataclasses import replace
from itertools import combinations

from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.core.types import Group
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.trainer import Trainer
from tests.flow.test_learning import small
from tests.support.presets import DISTILLED, FLOW
from tests.support.trainers import make_trainer, weights
from tests.training.run_ranks import COLUMNS, Hinting
from tests.training.test_golden import blinded, fitted, float64, prepared, seeing
from tests.training.test_video_methods import CLIPS

STEPS = 2
"""riskpo learns nothing from the first step."""
ALIKE = 1e-2
"""Of the way that the weights went: presets that differ by nothing but their eps are 1e-4 to 1e-3 apart."""
SAME = {frozenset({"gspo", "gspo_token"}): "the same gradient as long as the actions of a rollout have one advantage"}
"""Pairs that are equal by what they are, and why."""
ELSEWHERE = {
    "gui_g1": "it weighs true boxes",
    "rlpr": "it reads how likely a written answer is",
    **dict.fromkeys(("hgpo", "ui_s1", "openthinkimg", "vr_thinker", "geometry_zero", "arpo"), "it looks at turns"),
    **dict.fromkeys(("refl", "draft_k", "flow_bp"), "its gradient passes a decoder"),
    "omninft": "it needs a sound beside the clip",
    "mobile_agent_v3": "what is its own are its turns",
    **dict.fromkeys(DISTILLED, "it compares distributions of real models"),
}
"""Presets that this task cannot ask for what makes them: each has a task of its own in tests/evidence."""
TASK = [replace(clip, columns={**clip.columns, **COLUMNS}) for clip in CLIPS]
"""Clips with hints and solutions: what any of the other presets looks at."""


def right(group: Group) -> list[float]:
    """0.6 for the answer's letter first."""
    return [0.6 * (sample.text or "").startswith(group.prompt.answer) for sample in group.samples]


def various(group: Group) -> list[float]:
    """Up to 0.4, for stopping and for different letters: a second, graded reward, and totals of 1 at most."""
    return [0.3 * (not sample.truncated) + 0.02 * len(set(sample.text or "")) for sample in group.samples]


def as_shipped(name: str) -> Algorithm:
    """The preset with its own updates; calls of tools are the letter d."""
    preset = PRESETS[name]
    algorithm = prepared(replace(preset, advantage=fitted(preset.advantage, pattern="d")))
    return replace(algorithm, minibatches=preset.minibatches)


def trainer_of(name: str) -> Trainer:
    if name in FLOW:
        return make_trainer(replace(small(name), minibatches=PRESETS[name].minibatches), lr=1e-2)
    blind = name == "papo"  # it hides pictures, of which the fake has none, and refuses clips
    views = PRESETS[name].views
    policy = seeing(Hinting(views=dict.fromkeys(views, blinded) if blind else views))
    algorithm = as_shipped(name).with_length(policy.length)
    prompts = [replace(prompt, media=()) for prompt in TASK] if blind else TASK
    enough = next(number for number in range(4, 64) if algorithm.units(number) >= algorithm.minibatches)
    settings = TrainSettings(steps=STEPS, prompts_per_step=enough, micro_batch=1000, optimizer=OptimizerSettings(lr=2e-2))
    rewards = RewardRunner([NamedReward("right", right), NamedReward("various", various)])
    return Trainer(policy, algorithm, Shuffled(prompts, seed=0), rewards, settings)


def way(name: str) -> Tensor:
    """How far a run of this preset moved every weight."""
    with float64():
        trainer = trainer_of(name)
        start = weights(trainer).clone()
        for _ in range(STEPS):
            trainer.step()
        return weights(trainer) - start


def test_no_two_presets_leave_the_same_weights():
    ways = {name: way(name) for name in PRESETS if name not in ELSEWHERE}
    assert [name for name, x in ways.items() if not x.any()] == [], "they did not train"
    modalities = [sorted(ways.keys() & FLOW.keys()), sorted(ways.keys() - FLOW.keys())]
    pairs = [frozenset(pair) for names in modalities for pair in combinations(names, 2)]
    alike = {pair for pair in pairs if apart(*(ways[name] for name in pair)) < ALIKE}
    assert alike == SAME.keys(), "equal under their own settings: give one a setting that acts, or take it out"


def apart(one: Tensor, other: Tensor) -> float:
    """The distance of two ways, as a share of the longer one."""
    return float((one - other).norm() / max(one.norm(), other.norm()))
