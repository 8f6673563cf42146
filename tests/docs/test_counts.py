"""Pages quote the counts of the tests' own tables, and the table of attacks counts its rows."""

from tests.support.counts import ATTACKS, PAGE, attack_rows, counted, named
from tests.support.injected_flow import FLOW
from tests.support.injected_text import CLIPS, PICTURES


def test_reliability_quotes_what_the_tables_hold():
    page = PAGE.read_text(encoding="utf-8")
    assert page == counted(page), "run `python -m tests.support.counts`"


def test_the_table_of_attacks_counts_its_own_rows():
    rows, last = attack_rows(), ATTACKS.read_text(encoding="utf-8").splitlines()[-1]
    assert last == f"{len(rows)} of {len(rows)} attacks held." and len(set(rows)) == len(rows), "run `make attack`"


def test_enough_faults_are_injected_and_named():
    tables = (PICTURES, CLIPS, FLOW)
    assert sum(map(len, tables)) >= 44 and sum(map(named, tables)) >= 30
