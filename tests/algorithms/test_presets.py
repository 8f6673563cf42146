"""Presets, what their parts declare of themselves, and how much of averaged weights stays."""

import math
import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import run
from typing import Any

import pytest
import torch

from mmrl.algorithms.advantages.group import BySign, GroupNorm, Halves
from mmrl.algorithms.advantages.remembered import PromptHistory
from mmrl.algorithms.advantages.segments import BudgetRelative
from mmrl.algorithms.advantages.spread import Bundles
from mmrl.algorithms.advantages.tree import TreeNorm
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.ema_decay import SteadyDecay, WarmDecay
from mmrl.algorithms.miners import Difficulty
from mmrl.algorithms.objectives.flow import RatioNorm
from mmrl.algorithms.objectives.forward import AdvantageMatching
from mmrl.algorithms.objectives.given import Preference
from mmrl.algorithms.objectives.off_policy import Rec, VarianceBound
from mmrl.algorithms.objectives.penalties import Entropy, ReferenceKL, Surprise
from mmrl.algorithms.objectives.regression import AdvantageRegression, ValueFit
from mmrl.algorithms.objectives.surrogates import Cispo, Clip, ClipCov, Dppo, Gmpo, KlCov, Reinforce, Vespo, WithRefinements
from mmrl.algorithms.planners.base import DynamicSampling, Once
from mmrl.algorithms.planners.begun import Budgets
from mmrl.algorithms.planners.flow import SampleFrom
from mmrl.algorithms.planners.video import WithTruth
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.shaping.thinking import LengthBudget, ModePays, OverlongPenalty
from mmrl.algorithms.shaping.video import SoftReward
from mmrl.algorithms.weights.aggregate import FirstApart, FixedLength, TokenMean
from mmrl.algorithms.weights.importance import AttentionRhythm, HighEntropy, OffPolicyMask, RolloutCorrection
from mmrl.app.config.algorithm import kinds
from mmrl.app.plugins.catalog import preset_documents
from mmrl.core.hooks import TermHooks
from mmrl.core.protocols import Advantage, Mask, Planner, Shaping, Term, Weight
from mmrl.core.readings import ENTROPY, GROUP_DIVERGENCE, LOGPROBS, OLD_ENTROPY, OLD_LOGPROBS
from mmrl.core.types import ClipRange, Credit, Reading, Rollouts, Scope, Scores
from mmrl.flow.schedules import OneStep
from mmrl.flow.times import TimeSampler
from tests.support.each import for_each
from tests.support.fakes import FakeTextPolicy
from tests.support.refused import refused
from tests.support.rows import TEXT_PRESETS

ALONE = {"adapt_think", "ngrpo", "nsr", "psr", "reinforce_pp", "riskpo", "spo", "spo_segment", "w_reinforce"}
"""Presets that compare a sample with something else than its group."""


def offering(*quantities: str) -> FakeTextPolicy:
    return FakeTextPolicy(offers=frozenset(quantities))


def test_every_preset_is_documented_and_nothing_else():
    assert set(preset_documents()) == set(PRESETS)
    assert len(PRESETS) >= 88


@for_each("name", PRESETS)
def test_documentation_has_summary_paper_and_gaps(name):
    summary, _, rest = preset_documents()[name].partition("\n\n")
    assert summary.endswith(".")
    assert "\n" not in summary
    assert re.search(r"arXiv:\d{4}\.\d{5}\b", rest), "the paper's arXiv id"
    assert re.search(r"[Nn]ot\s+implemented|[Ll]eft\s+out", rest), "what is not implemented"


def test_documentation_says_how_many_updates():
    documents = preset_documents()
    for name, algorithm in PRESETS.items():
        expected = "one update" if algorithm.updates == 1 else f"{algorithm.updates} updates"
        assert f"{expected} per step" in " ".join(documents[name].split()).lower(), name


@for_each("name", PRESETS)
def test_presets_are_made_of_parts(name):
    algorithm = PRESETS[name]
    slots: list[tuple[Any, type]] = [
        (algorithm.advantage, Advantage),
        (algorithm.aggregation, Weight),
        (algorithm.planner, Planner),
    ]
    slots += [(term, Term) for _, term in algorithm.objective]
    slots += [(part, kind) for kind, parts in ((Weight, algorithm.importance), (Mask, algorithm.masks)) for part in parts]
    slots += [(part, Shaping) for part in algorithm.shaping]
    for part, kind in slots:
        assert isinstance(part, kind), part
        assert hash(part) == hash(replace(part)), "a part is a frozen dataclass"
    algorithm.check(offering(*{reading.quantity for reading in algorithm.all_reads}))


def test_check_names_what_the_policy_lacks():
    algorithm = Algorithm(objective=((1.0, Clip()), (0.1, Entropy())))
    refused(r"reads \['entropy'\]; FakeTextPolicy offers \['logprobs'\]", algorithm.check, offering("logprobs"))


def reading(part: type, read: Reading) -> Any:
    """A part like those of this class that reads something else."""
    return type("Moving", (part,), {"reads": property(lambda self: (read,))})()


@pytest.mark.parametrize(
    ("algorithm", "said"),
    [
        (Algorithm(importance=(reading(HighEntropy, ENTROPY),)), "entropy under the policy's moving weights.*model='old'"),
        (Algorithm(advantage=reading(Halves, LOGPROBS)), "Moving reads logprobs under the policy's moving weights"),
        (Algorithm(objective=((1.0, reading(Surprise, GROUP_DIVERGENCE._replace(model="policy"))),)), "under moving weights"),
        (replace(PRESETS["mc_grpo"], group_size=2), r"group_size is 2, but MedianNorm compares .* needs at least 3"),
    ],
    ids=["weight", "advantage", "term of groups", "group of two"],
)
def test_readings_of_moving_weights_and_too_few_samples_are_refused(algorithm: Algorithm, said: str):
    for check, given in ((algorithm.check_step, 8), (algorithm.check, offering("logprobs", "entropy", "group_divergence"))):
        refused(said, check, given)
    Algorithm(advantage=GroupNorm(scale="batch", singleton="reward"), group_size=1).check_step(8)


SETTINGS: list[tuple[Callable[[], Any], str]] = [
    (lambda: BySign(0.0, 0.0), "BySign.right and BySign.wrong are 0"),
    (lambda: Budgets(()), "Budgets.shares are empty"),
    (lambda: BudgetRelative(discount=1e200), r"BudgetRelative.discount is 1e\+200: it must be above 0 and at most 1000"),
    (lambda: ModePays(short=""), "ModePays.short and ModePays.think begin"),
    (lambda: LengthBudget(hard=1.0, medium=2.0), r"LengthBudget.medium is 2, above hard = 1"),
    (lambda: PRESETS["thinkless"].with_length(1), "max_new_tokens is 1: raise it"),
    (lambda: PromptHistory(least=20), r"least is 20, but only 16 rewards of a prompt are remembered: set advantage\.least"),
    (lambda: Difficulty(low=0.6, high=0.4), r"low is 0\.6 and high is 0\.4: no share of right samples lies between"),
    (lambda: Clip(token_gradient=True), "token_gradient is True: it counts with level = 'rollout' alone, and level is 'action'"),
    (lambda: Rec(outer_low=0.5), "outer_low is 0.5: it counts with kept = 'ring' alone, and kept is 'one_side': leave it out"),
    (lambda: Rec(outer_high=3.0), "counts with kept = 'ring'"),
    (lambda: Rec(temperature=2.0), "counts with weight = 'advantage'"),
    (lambda: VarianceBound(bound=0.1), r"VarianceBound.bound is 0.1: it counts with rate alone, and rate is 0.0: leave it out"),
    (lambda: AdvantageMatching("t", power=0.5), "power is 0.5: it counts with weighting = 'ghuber' alone"),
    (lambda: AdvantageMatching(clip=0.5), "clip is 0.5: it counts with off_policy alone"),
    (lambda: Preference(rate=1.0), "rate is 1.0: it counts with margin alone"),
    (lambda: ValueFit(0.9, group=True), "gamma is 0.9: it counts with group = False alone"),
    (lambda: AttentionRhythm("local", back=3), "back is 3: it counts with kind = 'coupled' alone"),
    (lambda: Bundles(share="std", most=2.0), "most is 2.0: it counts with share = 'sum_mean' alone"),
    (lambda: Bundles(quantiles="batch", rate=0.2), "counts with quantiles = 'track' or 'mix' alone"),
    (lambda: TreeNorm(pruning="best_per_branch"), "counts with kept_chains alone"),
    (lambda: TimeSampler(shift=3.0), "counts with kind = 'uniform' or 'logit_normal' alone"),
    (lambda: WithRefinements(high=0.3), "WithRefinements clips nothing: leave low, high, delta and dual out"),
    (lambda: OneStep(cap=0.45), "counts with dynamics = 'flow_sde' alone, and dynamics is 'wan'"),
    (lambda: Clip(delta=1.1), r"set it above 1 \+ high = 1.2"),
    (lambda: Clip(dual=0.5), "must be above 1"),
    (lambda: HighEntropy(20.0), r"HighEntropy.quantile is 20.*must be above 0 and at most 1"),
    (lambda: SoftReward(fall=0.0), "fall"),  # the curve below tau would be 0 / 0
    (lambda: SteadyDecay(-0.1), r"SteadyDecay\.decay is"),
    (lambda: SteadyDecay(1.1), r"SteadyDecay\.decay is"),
]


@pytest.mark.parametrize(("made", "told"), SETTINGS)
def test_settings_that_would_do_nothing_or_overflow_are_refused(made: Callable[[], Any], told: str):
    refused(told, made)


@for_each("name", sorted(set(TEXT_PRESETS) - ALONE))
def test_check_refuses_a_group_of_one(name):
    refused(r"group_size is 1, but .* needs at least \d", replace(PRESETS[name], group_size=1).check_step, 64)


@pytest.mark.parametrize(
    "changes",
    [{"importance": (RolloutCorrection(),)}, {"importance": (OffPolicyMask(),)}, {"objective": ((1.0, Vespo(sampler=True)),)}],
    ids=["correction", "mask", "vespo"],
)
def test_check_refuses_to_compare_the_sampler_with_itself(changes):
    algorithm = replace(PRESETS["grpo"], **changes)
    refused(r"set algorithm\.old = 'reread'", algorithm.check_step, 8)
    replace(algorithm, old="reread").check_step(8)


def test_an_algorithm_says_what_it_reads():
    algorithm = PRESETS["high_entropy"]
    assert algorithm.live_reads == (LOGPROBS,)
    assert set(algorithm.frozen_reads) == {OLD_LOGPROBS, OLD_ENTROPY}
    assert PRESETS["grpo"].shadows == {"ref"}
    assert algorithm.shadows == frozenset()
    assert PRESETS["gspo"].scope == "rollout"


PROBE = """
from tests.learning import test_presets_learn
from tests.training import test_golden, test_updates
from tests.app.plugins import test_cards
from mmrl.app.plugins.cards import faults

found = [test_presets_learn.PRESETS, test_updates.ACTING, test_cards.PRESETS]
found += [{name.partition("/")[2] for name in test_golden.makers()}]
assert all("fresh" in names for names in found), [("fresh" in names) for names in found]
assert any(fault.startswith("the card of fresh lacks idea") for fault in faults()), faults()
"""


def test_a_preset_in_a_new_file_is_found_by_the_generic_tests(tmp_path: Path):
    root = Path(__file__).parents[2]
    shutil.copytree(root / "mmrl", tmp_path / "mmrl", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "mmrl/algorithms/presets/fresh_idea.py").write_text(
        "from dataclasses import replace\n\nfrom mmrl.algorithms.presets.baselines import grpo\n\n"
        'fresh = replace(grpo, minibatches=2)\n"""A fresh idea."""\n'
    )
    path = os.pathsep.join([str(tmp_path), str(root)])
    run([sys.executable, "-P", "-c", PROBE], check=True, env={**os.environ, "PYTHONPATH": path})


@dataclass(frozen=True)
class Plain:
    """A = r: a user's own, which declares nothing."""

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals = scores.total()
        return Credit(totals[:, None].expand(rollouts.action_mask.shape), torch.ones_like(totals, dtype=torch.bool))


def test_an_advantage_that_declares_nothing_is_content_with_one_sample():
    Algorithm(advantage=Plain(), group_size=1).check(FakeTextPolicy())


def test_the_length_goes_to_parts_that_name_none():
    algorithm = Algorithm(aggregation=FixedLength(), shaping=(OverlongPenalty(), OverlongPenalty(length=3))).with_length(9)
    assert algorithm.aggregation == FixedLength(length=9)
    assert algorithm.shaping == (OverlongPenalty(length=9), OverlongPenalty(length=3))
    assert Algorithm(aggregation=TokenMean()).with_length(9).aggregation == TokenMean()
    assert FirstApart().with_length(2) == FirstApart()


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (Clip(0.1, 0.3), ClipRange(0.1, 0.3)),
        (Clip(3e-4, 4e-4, level="rollout"), ClipRange(3e-4, 4e-4, "rollout")),
        (Cispo(low=0.75, high=1.5), ClipRange(0.25, 0.5)),
        (Cispo(), ClipRange(math.inf, 4.0)),
        (Gmpo(), ClipRange(0.4, 0.4)),
        (ClipCov(), ClipRange(0.2, 0.2)),
        (ClipCov(low=0.1, high=0.3), ClipRange(0.1, 0.3)),
        (Dppo(), ClipRange(0.2, 0.2, of="probability")),
        (Dppo(low=0.1, high=0.3), ClipRange(0.1, 0.3, of="probability")),
        (RatioNorm(), ClipRange(2e-6, 2e-6, of="scaled_ratio")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_terms_declare_how_far_they_clip(term: TermHooks, expected: ClipRange):
    assert term.clip_range == expected
    assert expected.narrowest == min(expected.low, expected.high) and Reinforce().clip_range is None


UNCREDITED = {
    *("FlowKL", "ReferenceKL", "Entropy", "Perception", "Surprise", "KeepLikely", "OldKL", "TrustHinge", "BetweenReferences"),
    *("LooserWhereGood", "FollowTeacher", "RewardGradient", "ValueFit"),
}
"""Penalties and bonuses: importance weights never touch them, for they judge no action by its reward."""


@for_each("name", sorted(kinds("objective")))
def test_terms_say_whether_they_take_credit(name: str):
    assert kinds("objective")[name]().credited == (name not in UNCREDITED)


@pytest.mark.parametrize(
    ("term", "scope"),
    [
        (ClipCov(), "batch"),
        (KlCov(), "batch"),
        (AdvantageRegression(), "group"),
        (Gmpo(), "rollout"),
        (Vespo(), "rollout"),
        (Clip(), "action"),
        (Clip(level="rollout"), "rollout"),
        (Reinforce(), "action"),
        (ReferenceKL(), "action"),
        (ReferenceKL(ratio_correction="rollout"), "rollout"),
        (AdvantageMatching(), "action"),
        (AdvantageMatching(combine="sum_first"), "rollout"),
    ],
    ids=repr,
)
def test_terms_say_how_far_a_batch_may_be_cut(term: Term, scope: Scope):
    assert term.scope == scope


@pytest.mark.parametrize(
    ("planner", "rounds"), [(Once(), 1), (SampleFrom(), 1), (WithTruth(), 1), (DynamicSampling(max_rounds=7), 7)], ids=repr
)
def test_planners_say_how_often_they_sample(planner: Planner, rounds: int):
    assert planner.max_rounds == rounds


def test_a_steady_one_is_a_share_and_a_warm_one_is_at_most_its_most():
    assert SteadyDecay(0.99)(0) == SteadyDecay(0.99)(10_000) == 0.99
    assert WarmDecay(most=0.5, every=4)(11) == 0.5, "not (1 + 11) / (10 + 11)"
