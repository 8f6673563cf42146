"""Pages quote the counts of the tests' own tables, and the table of attacks holds all attacks that there are."""

from pathlib import Path

from tests.attacks.__main__ import all_attacks
from tests.support.counts import PAGE, counted, named
from tests.support.injected_flow import FLOW
from tests.support.injected_text import CLIPS, PICTURES

ATTACKS = Path(__file__).parents[2] / "docs" / "attacks.md"


def test_reliability_quotes_what_the_tables_hold():
    page = PAGE.read_text(encoding="utf-8")
    assert page == counted(page), "run `python -m tests.support.counts`"


def test_the_table_of_attacks_holds_every_attack_once():
    lines = ATTACKS.read_text(encoding="utf-8").splitlines()
    written = [line.split(" | ")[:2] for line in lines if line.startswith("| ") and not line.startswith("| area |")]
    assert written == [[f"| {attack.area}", attack.name] for attack in all_attacks()], "run `make attack`"
    assert lines[-1] == f"{len(written)} of {len(written)} attacks held."


def test_enough_faults_are_injected_and_named():
    tables = (PICTURES, CLIPS, FLOW)
    assert sum(map(len, tables)) >= 44 and sum(map(named, tables)) >= 30
