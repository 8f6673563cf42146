"""What updates leave: every preset's own term acts, no two presets are alike, and nothing trains on empty minibatches."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import pytest
import torch
from jaxtyping import Bool
from torch import Tensor

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.flow import RatioNorm
from mmrl.algorithms.objectives.regression import AdvantageRegression
from mmrl.algorithms.objectives.terms import actions_only
from mmrl.algorithms.planners.helped import SerialExits
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.samplers.base import Shuffled
from mmrl.core.hooks import TermHooks, with_hooks
from mmrl.core.readings import LOGPROBS, OLD_LOGPROBS, ROLLOUT_LOGPROBS, STD
from mmrl.core.types import Batch, Group, Reading, Rollouts, Scope
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.trainer import Trainer
from tests.flow.test_learning import small
from tests.support.fakes import FakeTextPolicy, prompts
from tests.support.presets import DISTILLED, FLOW, SILENT_STEPS
from tests.support.trainers import batches_of, make_trainer, weights
from tests.training.run_ranks import COLUMNS, Hinting
from tests.training.test_golden import MODES, WORDS, InDouble, blinded, fitted, float64, prepared, seeing
from tests.training.test_video_methods import CLIPS

EXEMPT = {
    "grpo": "its paper takes one update",
    **dict.fromkeys(("rloo", "gpg", "gtpo", "diffusion_nft", "omninft", "crd", "dgpo"), "no ratio"),
    "opo": "no ratio: exactly on-policy",
    **dict.fromkeys(("pass_at_k", "gdpo", "mc_grpo"), "one update as in grpo: what is its own is the advantage"),
    "tw_grpo": "its authors' script takes one update: what is its own is the importance, see test_video_methods.py",
    "t_grpo": "its authors' code takes one update: what is its own is the bonus",
    "temp_samp_r1": "what is its own is the given sample and the bent reward",
    "grpo_care": "what is its own is the bonus",
    "urpa": "what is its own is the reward",
    **dict.fromkeys(("flow_sft", "sol_rl", "refl", "draft_k", "flow_bp", "diffusion_opd", "flow_dpo"), "no ratio"),
    **dict.fromkeys(("opd", "opsd", "vision_opd"), "no ratio: see tests/policies/text/test_teachers.py"),
    "sdpo": "no ratio moves in its one update: see tests/policies/text/test_teachers.py",
    "srpo": "one update: what is its own is the teacher, see tests/policies/text/test_teachers.py",
    "awm": "its paper takes one update, and its ratio is that of the policy with itself",
    "hart": "no ratio: no clip is printed in its paper",
    "aepo": "no ratio: its paper has none",
    "deepeyes": "one update as in its script: what is its own is the reward",
    "thyme": "what is its own are the rewards",
    "openthinkimg": "what is its own is the reward",
    "vr_thinker": "what is its own is the bonus, see tests/algorithms/test_turns.py",
    "geometry_zero": "what is its own is the bonus, see tests/algorithms/test_turns.py",
    "gui_g1": "its paper takes one update: what is its own is the weight, see tests/algorithms/test_method_parts.py",
}
"""Presets whose objective need not act as itself, and why."""
NO_TWIN = {
    "disco": "what is its own needs no ratio; its hinge: tests/algorithms/test_method_parts.py",
    "drpo": "as disco",
    "psr": "its clip is that of w_reinforce, which is",
    "nft_text": "its first update is GRPO's, not REINFORCE: tests/algorithms/test_method_parts.py",
}
"""Presets whose objective is not told apart from REINFORCE here, and where it is."""
OWN_AT_ONCE = {
    "clip_cov": "it leaves out actions by their covariance",
    "hapo": "it moves advantages between actions by their entropy",
    "critique_grpo": "refinements train by a probability, not by a ratio",
    "adapt_think": "the first token counts as drawn at even odds",
}
"""Presets whose term acts at the first update already, where no ratio has moved, and how."""
ACTING = sorted(set(PRESETS) - set(EXEMPT) - set(NO_TWIN))


@dataclass(frozen=True)
class Twin:
    """What a surrogate's gradient is while policy and old are the same, at every update: REINFORCE, dealt as the surrogate is."""

    term: Any

    @property
    def reads(self) -> tuple[Reading, ...]:
        return (LOGPROBS, STD) if isinstance(self.term, RatioNorm) else (LOGPROBS,)

    @property
    def scope(self) -> Scope:
        return self.term.scope

    @property
    def credited(self) -> bool:
        return True

    def __call__(self, readings: Mapping[Reading, Tensor], batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        mask = batch.rollouts.action_mask
        logprobs = actions_only(readings[LOGPROBS], mask)
        if isinstance(self.term, AdvantageRegression):
            return actions_only((-2 / self.term.eps * batch.advantages * logprobs.sum(1, keepdim=True)), mask), {}
        scale = readings[STD] if isinstance(self.term, RatioNorm) else 1.0
        return -batch.advantages * actions_only(scale * logprobs, mask), {}


def twin(algorithm: Algorithm) -> Algorithm:
    """The algorithm with REINFORCE in place of every term that takes credit and compares with the weights that sampled."""
    terms = ((coef, Twin(term) if term.credited and OLD_LOGPROBS in term.reads else term) for coef, term in algorithm.objective)
    return replace(algorithm, objective=tuple(terms))


def preset(name: str) -> Algorithm:
    """The preset as the fakes can run it, with its own updates and terms, and advantages in float64."""
    algorithm = replace(small(name) if name in FLOW else PRESETS[name], minibatches=PRESETS[name].minibatches)
    planner = fitted(algorithm.planner, template="{answer}", window=16, **WORDS)
    algorithm = replace(algorithm, planner=planner, shaping=tuple(fitted(part, **MODES) for part in algorithm.shaping))
    if isinstance(algorithm.planner, SerialExits):
        algorithm = replace(algorithm, planner=replace(algorithm.planner, mark=".", forced=""))
    if any(reading.quantity not in FakeTextPolicy.offers for part in algorithm.shaping for reading in part.reads):
        algorithm = replace(algorithm, shaping=())
    return replace(algorithm, advantage=InDouble(algorithm.advantage))


def trainer_of(algorithm: Algorithm, **numbers: Any) -> Trainer:
    if algorithm.schedule is not None:
        lr: float = numbers.pop("lr", 1e-2)
        return make_trainer(algorithm, lr=lr, **numbers)
    policy = FakeTextPolicy(views=algorithm.views)
    numbers = dict[str, Any](optimizer=OptimizerSettings(lr=2e-2)) | numbers
    return make_trainer(algorithm, policy=policy, sampler=Shuffled(prompts(), seed=0), **numbers)


def apart(one: Algorithm, other: Algorithm, optimizer: OptimizerSettings, silent: int = 0) -> float:
    """How far two algorithms are from each other after the first step that trains, as a share of how far the second one went."""
    with float64():
        trainers = [trainer_of(algorithm, optimizer=optimizer) for algorithm in (one, other)]
        start = weights(trainers[0]).clone()
        for trainer in trainers:
            for _ in range(silent):
                trainer.step()
                assert torch.equal(weights(trainer), start)
            trainer.step()
        ends = [weights(trainer) for trainer in trainers]
    return float((ends[0] - ends[1]).norm() / (ends[1] - start).norm())


@pytest.mark.parametrize("name", ACTING)
def test_a_presets_own_term_acts(name: str):
    algorithm = preset(name)
    assert algorithm.updates > 1 and not algorithm.idle_terms
    optimizer = OptimizerSettings(lr=1e-2 if algorithm.schedule else 2e-2)
    assert apart(algorithm, twin(algorithm), optimizer, SILENT_STEPS.get(name, 0)) > 0.02


@pytest.mark.parametrize("name", sorted(set(ACTING) - set(OWN_AT_ONCE)))
def test_with_one_update_it_is_its_reinforce_twin(name: str):
    algorithm = replace(preset(name), minibatches=1, epochs=1)
    assert algorithm.idle_terms
    assert apart(algorithm, twin(algorithm), OptimizerSettings("sgd", lr=1e-2, clip_norm=0.0), SILENT_STEPS.get(name, 0)) < 1e-6


@pytest.mark.parametrize("name", sorted(set(OWN_AT_ONCE) - {"clip_cov"}))  # its share of so few actions is none
def test_what_acts_at_once_is_not_its_reinforce_twin(name: str):
    algorithm = replace(preset(name), minibatches=1, epochs=1)
    assert apart(algorithm, twin(algorithm), OptimizerSettings("sgd", lr=1e-2, clip_norm=0.0)) > 0.02


def test_presets_that_need_not_act_have_no_ratio_or_one_update():
    assert set(EXEMPT) <= set(PRESETS)
    for name in EXEMPT:
        algorithm = PRESETS[name]
        compares = [term for _, term in algorithm.objective if with_hooks(term, TermHooks).at_first_update]
        assert algorithm.updates == 1 or not compares, f"{name}: take it out of EXEMPT"
        assert bool(compares) != ("no ratio" in EXEMPT[name] or name == "awm"), name


def regression_error(algorithm: Algorithm) -> float:
    """After one step: mean (A - z)^2, z = the log-ratios of whole rollouts, standardized in their group; 4 for opposites."""
    with float64():
        trainer = trainer_of(algorithm, prompts_per_step=8)
        seen = batches_of(trainer)
        trainer.step()
        rollouts = seen[-1].rollouts
        with torch.no_grad():
            logprobs = trainer.policy.read(rollouts.trace, (LOGPROBS,), rollouts.action_mask)[LOGPROBS]
    moved = (actions_only(logprobs - rollouts.recorded[ROLLOUT_LOGPROBS], rollouts.action_mask)).sum(1)
    errors = []
    for group_id in rollouts.group_ids.unique():
        rows = rollouts.group_ids == group_id
        advantages, rho = seen[-1].advantages[rows, 0], moved[rows]
        if bool(advantages.any()):
            errors.append(float(((advantages - (rho - rho.mean()) / rho.std(correction=0)) ** 2).mean()))
    return sum(errors) / len(errors)


def test_regression_brings_log_ratios_to_the_advantages_where_reinforce_drives_them_apart():
    algorithm = preset("reg_grpo")
    found, reinforce, once = (regression_error(a) for a in (algorithm, twin(algorithm), replace(algorithm, epochs=1)))
    assert found < 0.5 * once < once < reinforce  # 0.24, 0.54, 0.73


@pytest.mark.parametrize(
    ("name", "changes", "prompts", "told"),
    [
        ("grpo", {"minibatches": 33}, 4, "is 33, .* has 32 rollouts .*minibatches = 32 or less, or prompts_per_step = 5"),
        ("kl_cov", {}, 7, r"is 8, .* has 7 groups, which the objective needs whole, .* prompts_per_step = 8 or more"),
        ("reinforce_pp", {}, 4, "is 8, .* has 4 rollouts .*minibatches = 4 or less, or prompts_per_step = 8 or more"),
    ],
)
def test_more_minibatches_than_units_are_refused(name: str, changes: dict[str, int], prompts: int, told: str):
    algorithm = replace(PRESETS[name], **changes)
    with pytest.raises(ValueError, match=f"minibatches {told}"):
        make_trainer(algorithm, prompts_per_step=prompts)
    make_trainer(replace(algorithm, minibatches=algorithm.units(prompts)), prompts_per_step=prompts)


@dataclass(frozen=True)
class OneRow:
    """Only the first rollout trains."""

    def __call__(self, rollouts: Rollouts) -> Bool[Tensor, "n t"]:
        mask = torch.zeros_like(rollouts.action_mask)
        mask[0] = True
        return mask


def test_a_minibatch_with_nothing_to_train_on_is_no_update():
    trainer = make_trainer(replace(PRESETS["grpo"], minibatches=4, masks=(OneRow(),)))
    batches = batches_of(trainer)
    for _ in range(3):
        trainer.step()
    assert [bool(one.rollouts.action_mask.any()) for one in batches] == [True] * 3
    assert {int(state["step"]) for state in trainer.optimizer.state.values()} == {3}


WAY_STEPS = 2
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


def shipped(name: str) -> Trainer:
    """The preset with its own updates; calls of tools are the letter d."""
    preset = PRESETS[name]
    if name in FLOW:
        return make_trainer(replace(small(name), minibatches=preset.minibatches), lr=1e-2)
    blind = name == "papo"  # it hides pictures, of which the fake has none, and refuses clips
    policy = seeing(Hinting(views=dict.fromkeys(preset.views, blinded) if blind else preset.views))
    algorithm = prepared(replace(preset, advantage=fitted(preset.advantage, pattern="d"))).with_length(policy.length)
    algorithm = replace(algorithm, minibatches=preset.minibatches)
    prompts = [replace(prompt, media=()) for prompt in TASK] if blind else TASK
    enough = next(number for number in range(4, 64) if algorithm.units(number) >= algorithm.minibatches)
    settings = TrainSettings(steps=WAY_STEPS, prompts_per_step=enough, micro_batch=1000, optimizer=OptimizerSettings(lr=2e-2))
    rewards = RewardRunner([NamedReward("right", right), NamedReward("various", various)])
    return Trainer(policy, algorithm, Shuffled(prompts, seed=0), rewards, settings)


def way(name: str) -> Tensor:
    """How far a run of this preset moved every weight."""
    with float64():
        trainer = shipped(name)
        start = weights(trainer).clone()
        for _ in range(WAY_STEPS):
            trainer.step()
        return weights(trainer) - start


def test_no_two_presets_leave_the_same_weights():
    ways = {name: way(name) for name in PRESETS if name not in ELSEWHERE}
    assert [name for name, x in ways.items() if not x.any()] == [], "they did not train"
    modalities = [sorted(ways.keys() & FLOW.keys()), sorted(ways.keys() - FLOW.keys())]
    pairs = [frozenset(pair) for names in modalities for pair in combinations(names, 2)]
    alike = {pair for pair in pairs if distance(*(ways[name] for name in pair)) < ALIKE}
    assert alike == SAME.keys(), "equal under their own settings: give one a setting that acts, or take it out"


def distance(one: Tensor, other: Tensor) -> float:
    """The distance of two ways, as a share of the longer one."""
    return float((one - other).norm() / max(one.norm(), other.norm()))
