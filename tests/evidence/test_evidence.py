"""Methods on tasks made for their claims: every preset has a row or a reason, and what the written results say still holds."""

import json
from pathlib import Path

import pytest

from mmrl.algorithms.presets import PRESETS
from tests.evidence import writers
from tests.evidence.__main__ import ELSEWHERE, FILE, ROWS, SEEDS
from tests.evidence.task import Outcome, Row, verdict
from tests.evidence.teachers import compare
from tests.learning.test_presets_learn import PRESETS as LEARNING
from tests.support.presets import BY_PIXELS, DISTILLED, FEWER_PROMPTS, FLOW, VIDEO, WITH_SOUND

LINES = {(line["method"], line["task"]): line for line in json.loads(FILE.read_text(encoding="utf-8"))}
SHORT = [row for row in ROWS if row.short]
ACTS = 1e-3
"""How far two policies must be from each other, as a share of their size."""
PARTED = 0.05
"""How far the figures of one run may be from each other on two machines."""


def test_every_preset_has_a_row_or_a_reason():
    assert {row.method for row in ROWS} | set(ELSEWHERE) >= set(PRESETS)
    assert not {row.method for row in ROWS} & set(ELSEWHERE)


def test_every_preset_learns_within_make_test():
    """By a short row here, or by its name in a file of short runs."""
    short = {row.method for row in SHORT}
    learn = {*LEARNING, *FEWER_PROMPTS, *VIDEO, *FLOW, *BY_PIXELS, *DISTILLED, *WITH_SOUND}
    assert short | learn >= set(PRESETS)


def test_the_written_results_are_those_of_the_rows():
    """Rows that were never run have no line, and their cards no evidence."""
    ran = [row for row in ROWS if (row.method, row.task.name) in LINES]
    assert list(LINES) == [(row.method, row.task.name) for row in ran]
    for row in ran:
        line = LINES[row.method, row.task.name]
        facts = {"claim": row.task.claim, "measured": row.task.measured, "without": row.without}
        assert {name: line[name] for name in facts} == facts, f"{row.name}: python -m tests.evidence {row.method}"
        assert line["seeds"] == list(range(max(len(SEEDS), len(line["with_it"])))), row.name


@pytest.mark.parametrize(
    ("differences", "told"),
    [((0.1, 0.2, 0.3), "ahead"), ((0.1, 0.2, -0.01), "level"), ((0.01, 0.01, 0.02), "level"), ((-0.1, -0.2, -0.3), "behind")],
)
def test_all_seeds_must_say_so(differences: tuple[float, ...], told: str):
    assert verdict([Outcome(one, 0.0, 1.0) for one in differences], margin=0.02) == told


@pytest.mark.parametrize("row", SHORT, ids=[row.name for row in SHORT])
def test_a_method_is_ahead_of_its_twin_at_one_seed(row: Row):
    """And its line says what it gives, but for paths that part where another machine rounds otherwise."""
    found = row.outcome(0)
    assert found.difference > row.task.margin and found.moved > ACTS
    line = LINES.get((row.method, row.task.name))
    if line is not None:
        assert line["verdict"] == "ahead"
        assert (found.method, found.twin) == pytest.approx((line["with_it"][0], line["twin"][0]), abs=PARTED)


@pytest.mark.evidence
@pytest.mark.parametrize("row", ROWS, ids=[row.name for row in ROWS])
def test_a_method_acts_and_its_verdict_holds(row: Row):
    """On another machine numbers round otherwise and paths part, so a verdict may fade to level, but must not turn."""
    outcomes = [row.outcome(seed) for seed in SEEDS]
    assert all(one.moved > ACTS for one in outcomes)
    told = LINES.get((row.method, row.task.name), {"verdict": "level"})["verdict"]
    assert {told, verdict(outcomes, row.task.margin)} != {"ahead", "behind"}


@pytest.mark.evidence
def test_a_teacher_that_sees_more_is_ahead_of_one_that_sees_the_same_and_of_rewards(tmp_path: Path):
    ends = {way: held_out[max(held_out)] for way, held_out in compare("sees_more", 0, tmp_path)["held-out reward"].items()}
    assert ends["sees more"] > max(ends["sees the same"], ends["grpo"])


@pytest.mark.evidence
def test_a_writer_finds_the_painters_words_before_a_painter_learns_the_users(tmp_path: Path):
    held_out = writers.compare("turns", 0, tmp_path)["held-out reward"]
    ends = {way: values[max(values)] for way, values in held_out.items()}
    assert min(ends["writer alone"], ends["in turns"]) > ends["painter alone"] + 0.2
