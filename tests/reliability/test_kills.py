"""A run that is killed again and again, also inside a checkpoint's write, ends as one that nobody disturbed.

Three kills of one run here, five of each kind in `make evidence`, 50 in `make soak`.
"""

import os
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.reliability.soak import SUITE, moments
from tests.support.forked import run

SOAK, ROOT = Path(__file__).parent / "soak.py", Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kinds", "kills", "inside"), [(SUITE[:1], 3, 1), pytest.param(SUITE, 5, 2, marks=pytest.mark.evidence)], ids=["one", "all"]
)
def test_a_run_that_is_killed_and_resumed_is_the_same_run(kinds: Sequence[str], kills: int, inside: int):
    """Several kinds in one command, which forks: what they import is imported once."""
    done = run(str(SOAK), "--kills", str(kills), "--steps", "6", "--kinds", *kinds)
    assert done.returncode == 0, done.stdout + done.stderr
    for kind in kinds:
        row = re.search(rf"^{kind} +{kills} +(\d+) +\d+ +\d+ +\d+  identical", done.stdout, re.MULTILINE)
        assert row is not None and int(row[1]) >= inside, done.stdout


def test_moments_are_drawn_from_the_seed_and_enough_are_inside_a_write():
    plan = moments(50, 0.4, random.Random("0/text"))
    assert plan == moments(50, 0.4, random.Random("0/text")) != moments(50, 0.4, random.Random("1/text"))
    assert len(plan) == 50 and sum(moment.place == "write" for moment in plan) == 20
    assert {moment.place for moment in plan} == {"write", "clock", "collect", "update", "metrics", "evaluate", "load"}


@pytest.mark.evidence
def test_a_duet_that_is_killed_goes_on_bit_for_bit(tmp_path: Path):
    """A writer and its painter, in either's turn and between."""
    command = [sys.executable, "-m", "tests.reliability.duet", str(tmp_path / "duet")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
