"""What parts declare of themselves: the fewest samples they compare, the length they need, how far they clip."""

import math
from dataclasses import dataclass, replace

import pytest
import torch

from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.flow import RatioNorm
from mmrl.algorithms.objectives.forward import AdvantageMatching
from mmrl.algorithms.objectives.moving_clip import ClipCov, KlCov
from mmrl.algorithms.objectives.penalties import ReferenceKL
from mmrl.algorithms.objectives.regression import AdvantageRegression
from mmrl.algorithms.objectives.surrogates import Cispo, Clip, Dppo, Gmpo, Reinforce, Vespo
from mmrl.algorithms.planners.base import DynamicSampling, Once
from mmrl.algorithms.planners.flow import SampleFrom
from mmrl.algorithms.planners.video import WithTruth
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.shaping.thinking import OverlongPenalty
from mmrl.algorithms.weights.aggregate import FixedLength, TokenMean
from mmrl.app.config.algorithm import kinds
from mmrl.core.hooks import TermHooks, with_hooks
from mmrl.core.protocols import Planner, Term
from mmrl.core.types import ClipRange, Credit, Rollouts, Scope, Scores
from tests.support.each import for_each
from tests.support.fakes import FakeTextPolicy


@for_each("name", sorted(kinds("advantage")))
def test_every_shipped_advantage_says_how_many_samples_it_compares(name: str):
    part = kinds("advantage")[name]()
    assert part.min_group_size >= 1


@dataclass(frozen=True)
class Plain:
    """A = r: a user's own, which declares nothing."""

    def __call__(self, scores: Scores, rollouts: Rollouts) -> Credit:
        totals = scores.total()
        return Credit(totals[:, None].expand(rollouts.action_mask.shape), torch.ones_like(totals, dtype=torch.bool))


def test_an_advantage_that_declares_nothing_is_content_with_one_sample():
    Algorithm(advantage=Plain(), group_size=1).check(FakeTextPolicy())


def test_too_few_samples_are_refused():
    algorithm = replace(PRESETS["mc_grpo"], group_size=2)
    with pytest.raises(ValueError, match=r"group_size is 2, but MedianNorm compares .* needs at least 3"):
        algorithm.check(FakeTextPolicy())


def test_the_length_goes_to_parts_that_name_none():
    algorithm = Algorithm(aggregation=FixedLength(), shaping=(OverlongPenalty(), OverlongPenalty(length=3))).with_length(9)
    assert algorithm.aggregation == FixedLength(length=9)
    assert algorithm.shaping == (OverlongPenalty(length=9), OverlongPenalty(length=3))
    assert Algorithm(aggregation=TokenMean()).with_length(9).aggregation == TokenMean()


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
    assert expected.narrowest == min(expected.low, expected.high)


def test_a_term_without_a_clip_declares_none():
    assert with_hooks(Reinforce(), TermHooks).clip_range is None


UNCREDITED = {
    "FlowKL",
    "ReferenceKL",
    "Entropy",
    "Perception",
    "Surprise",
    "KeepLikely",
    "OldKL",
    "TrustHinge",
    "BetweenReferences",
    "LooserWhereGood",
    "FollowTeacher",
    "RewardGradient",
    "ValueFit",
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
