import os
import re
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import run
from typing import Any

import pytest

from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.penalties import Entropy
from mmrl.algorithms.objectives.surrogates import Clip, Vespo
from mmrl.algorithms.presets import PRESETS
from mmrl.algorithms.weights.importance import HighEntropy, OffPolicyMask, RolloutCorrection
from mmrl.app.plugins.catalog import preset_documents
from mmrl.core.protocols import Advantage, Mask, Planner, Shaping, Term, Weight
from mmrl.core.readings import ENTROPY, LOGPROBS, OLD_ENTROPY, OLD_LOGPROBS
from mmrl.core.types import Reading
from tests.support.each import for_each
from tests.support.fakes import FakeTextPolicy
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
    with pytest.raises(ValueError, match=r"reads \['entropy'\]; FakeTextPolicy offers \['logprobs'\]"):
        algorithm.check(offering("logprobs"))


def test_check_refuses_weights_that_move():
    @dataclass(frozen=True)
    class Moving(HighEntropy):
        @property
        def reads(self) -> tuple[Reading, ...]:
            return (ENTROPY,)

    with pytest.raises(ValueError, match=r"Moving reads \['entropy'\] under the policy's moving weights.*model='old'"):
        Algorithm(importance=(Moving(),)).check(offering("logprobs", "entropy"))


@for_each("name", sorted(set(TEXT_PRESETS) - ALONE))
def test_check_refuses_a_group_of_one(name):
    with pytest.raises(ValueError, match=r"algorithm.group_size is 1, but .* needs at least \d"):
        replace(PRESETS[name], group_size=1).check(offering("logprobs", "entropy"))


def test_a_lone_sample_is_allowed_where_nothing_is_compared():
    Algorithm(advantage=GroupNorm(scale="batch", singleton="reward"), group_size=1).check(offering("logprobs"))


@pytest.mark.parametrize(
    "changes",
    [
        {"importance": (RolloutCorrection(),)},
        {"importance": (OffPolicyMask(),)},
        {"objective": ((1.0, Vespo(sampler=True)),)},
    ],
    ids=["correction", "mask", "vespo"],
)
def test_check_refuses_to_compare_the_sampler_with_itself(changes):
    algorithm = replace(PRESETS["grpo"], **changes)
    with pytest.raises(ValueError, match=r"set algorithm\.old = 'reread'"):
        algorithm.check(offering("logprobs"))
    replace(algorithm, old="reread").check(offering("logprobs"))


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
