import ast
import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

import mmrl.algorithms.presets.text
import mmrl.algorithms.presets.text_methods
import mmrl.algorithms.presets.text_more
import mmrl.algorithms.presets.text_planners
import mmrl.algorithms.presets.text_state
import mmrl.algorithms.presets.video
from mmrl.algorithms.advantages.group import GroupNorm
from mmrl.algorithms.algorithm import Algorithm
from mmrl.algorithms.objectives.penalties import Entropy
from mmrl.algorithms.objectives.surrogates import Clip, Vespo
from mmrl.algorithms.presets import flow
from mmrl.algorithms.presets.text import PRESETS as TEXT
from mmrl.algorithms.presets.text_methods import PRESETS as METHODS
from mmrl.algorithms.presets.text_more import PRESETS as MORE
from mmrl.algorithms.presets.text_planners import PRESETS as PLANNERS
from mmrl.algorithms.presets.text_state import PRESETS as STATE
from mmrl.algorithms.presets.video import PRESETS as VIDEO
from mmrl.algorithms.weights.importance import HighEntropy, OffPolicyMask, RolloutCorrection
from mmrl.core.protocols import Advantage, Mask, Planner, Shaping, Term, Weight
from mmrl.core.readings import ENTROPY, LOGPROBS, OLD_ENTROPY, OLD_LOGPROBS
from mmrl.core.types import Reading
from tests.support.fakes import FakeTextPolicy
from tests.support.rows import TEXT_PRESETS

PRESETS = TEXT | METHODS | MORE | PLANNERS | STATE | VIDEO
_MODULES = (
    mmrl.algorithms.presets.text,
    mmrl.algorithms.presets.text_methods,
    mmrl.algorithms.presets.text_more,
    mmrl.algorithms.presets.text_planners,
    mmrl.algorithms.presets.text_state,
    mmrl.algorithms.presets.video,
)
FILES = [Path(str(module.__file__)) for module in _MODULES]


def offering(*quantities: str) -> FakeTextPolicy:
    return FakeTextPolicy(offers=frozenset(quantities))


def documented(files: Sequence[Path] = FILES) -> dict[str, str]:
    """Preset -> the string under its assignment, read as `mmrl ls` does."""
    docs = {}
    for statement, below in (pair for file in files for pair in pairwise(ast.parse(file.read_text(encoding="utf-8")).body)):
        if isinstance(statement, ast.Assign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            docs[cast(ast.Name, statement.targets[0]).id] = inspect.cleandoc(str(below.value.value))
    return docs


def test_every_preset_is_documented_and_nothing_else():
    assert set(documented()) == set(PRESETS)
    assert len(PRESETS) == sum(map(len, (TEXT, METHODS, MORE, PLANNERS, STATE, VIDEO))) >= 54


@pytest.mark.parametrize("name", PRESETS)
def test_documentation_has_summary_paper_and_gaps(name):
    summary, _, rest = documented()[name].partition("\n\n")
    assert summary.endswith(".")
    assert "\n" not in summary
    assert re.search(r"arXiv:\d{4}\.\d{5}\b", rest), "the paper's arXiv id"
    assert re.search(r"[Nn]ot\s+implemented|left\s+out", rest), "what is not implemented"


def test_documentation_says_how_many_updates():
    documents = documented([*FILES, Path(str(flow.__file__))])
    for name, algorithm in (PRESETS | flow.PRESETS).items():
        expected = "one update" if algorithm.updates == 1 else f"{algorithm.updates} updates"
        assert f"{expected} per step" in " ".join(documents[name].split()).lower(), name


@pytest.mark.parametrize("name", PRESETS)
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


@pytest.mark.parametrize("name", [name for name in TEXT_PRESETS if name != "reinforce_pp"])
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
