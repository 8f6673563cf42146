"""Parts in the wrong slot are refused with the slot they fit; shipped ones by their folder, the user's own by their signature."""

from itertools import combinations
from pathlib import Path

import pytest

from mmrl.algorithms.algorithm import Algorithm
from mmrl.app.config import run as configs
from mmrl.app.config.run import Resolved
from mmrl.app.config.slots import SLOTS, kinds, place

OWN = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Bonus:
    size: float = 1.0
    reads = ()

    def __call__(self, scores, rollouts, frozen): ...

@dataclass(frozen=True)
class Even:
    reads = ()
    scope = "action"

    def __call__(self, batch, counts): ...

@dataclass(frozen=True)
class Bare:
    def __call__(self, batch, counts): ...

@dataclass(frozen=True)
class OtherNames:
    def __call__(self, points, rows): ...

@dataclass(frozen=True)
class Reward:
    def __call__(self, group): ...

class Plain:
    def __init__(self, size=1.0):
        self.size = size

    def __call__(self, scores, rollouts): ...

class Careful:
    def __init__(self, prompts, seed, ease=1.0): ...
    def draw(self, num_prompts): ...

def advantage(scores, rollouts, size): ...

def mask(rollouts): ...
"""


@pytest.fixture(autouse=True)
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN)


def load(*words: str) -> Resolved:
    return configs.load("tiny/image", words)


def test_every_shipped_part_has_one_slot():
    for one, other in combinations(SLOTS, 2):
        assert not set(kinds(one)) & set(kinds(other)), (one, other)
    assert all(kinds(slot) for slot in SLOTS)
    assert {"TokenMean", "SequenceMean"} <= set(kinds("aggregation"))
    assert {"RolloutCorrection", "HighEntropy"} <= set(kinds("importance"))
    assert set(kinds("sampler")) == {
        "Balanced",
        "Bandit",
        "Curriculum",
        "Mixture",
        "NearestValue",
        "Prioritized",
        "Shuffled",
        "Streamed",
        "Thompson",
        "VarianceAware",
    }


def test_every_slot_is_a_field_or_a_table():
    assert [slot for slot in SLOTS if not hasattr(Algorithm(), slot)] == ["sampler"]
    assert [place(slot) for slot in ("advantage", "shaping", "sampler")] == [
        "[algorithm.advantage]",
        "[[algorithm.shaping]]",
        "[sampler]",
    ]


@pytest.mark.parametrize(
    "words",
    [
        ['algorithm.shaping=[{use="mine.py:Bonus", size=2.0}]'],
        ["algorithm.aggregation.use=mine.py:Even"],
        ['algorithm.importance=[{use="mine.py:Even"}]'],
        ["algorithm.advantage.use=mine.py:OtherNames"],
        ["algorithm.advantage.use=mine.py:Plain", "algorithm.advantage.size=2"],
        ["algorithm.advantage.use=mine.py:advantage", "algorithm.advantage.size=2"],
        ['algorithm.masks=[{use="mine.py:mask"}]'],
    ],
    ids=lambda words: words[0],
)
def test_ones_own_part_in_its_slot(words: list[str]):
    assert "mine.py" in str(load(*words).config.algorithm.uses)
