"""Pages quote the counts of the tests' own tables, and every attack held."""

from tests.attacks.attack import outcomes
from tests.support.counts import PAGE, counted, named
from tests.support.injected_flow import FLOW
from tests.support.injected_text import CLIPS, PICTURES


def test_reliability_quotes_what_the_tables_hold():
    page = PAGE.read_text(encoding="utf-8")
    assert page == counted(page), "run `python -m tests.support.counts`"


def test_every_attack_held():
    broken = [name for found in outcomes().values() for name, outcome in found.items() if outcome.startswith("**BROKEN**")]
    assert broken == [], "run `make attack`"


def test_enough_faults_are_injected_and_named():
    tables = (PICTURES, CLIPS, FLOW)
    assert sum(map(len, tables)) >= 44 and sum(map(named, tables)) >= 30
