"""Counts that docs/reliability.md quotes, made from the tests' own tables: `python -m tests.docs.test_counts` writes them.

Blocks between `<!-- counts: NAME -->` and `<!-- end -->` are these texts and nothing else.
"""

import re
from pathlib import Path

from tests.attacks.attack import outcomes
from tests.policies.flow.check import test_faults as of_flow
from tests.policies.text.check import test_faults as of_text
from tests.reliability.test_injected_faults import TABLE
from tests.support.faults import Fault

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
EARLY = {"Qwen3-VL, pictures": of_text.FAULTS, "Qwen2.5-VL, clips": of_text.FAULTS, "Stable Diffusion 3": of_flow.FAULTS}
LATE = {
    "Qwen3-VL with an adapter, pictures: thought of afterwards": TABLE["pictures"],
    "Qwen2.5-VL, clips: thought of afterwards": TABLE["clips"],
    "Stable Diffusion 3 with an adapter: thought of afterwards": TABLE["generator"],
}


def attacks() -> str:
    counts = {area: len(found) for area, found in outcomes().items()}
    areas = [f"{area} ({count})" for area, count in sorted(counts.items())]
    return (
        f"It does {sum(counts.values())} hostile or careless things to the real program, over loopback only and with bounded "
        f"time and memory, through: {', '.join(areas)}."
    )


def faults() -> str:
    rows = [(name, len(table), named(table)) for name, table in (EARLY | LATE).items()]
    rows.append(("Stable Diffusion 3, a deterministic step under a ratio (the audit)", 3, 3))
    head = ["| policy | faults injected | named correctly | named wrongly | without a name |", "|---|---|---|---|---|"]
    return "\n".join(head + [f"| {name} | {injected} | {right} | 0 | {injected - right} |" for name, injected, right in rows])


def named(table: dict[str, Fault]) -> int:
    return sum(fault.cause is not None for fault in table.values())


def counted(page: str) -> str:
    """The page with its blocks written anew."""
    for name, text in (("faults", faults()), ("attacks", attacks())):
        block = rf"(?<=<!-- counts: {name} -->\n).*?(?=\n<!-- end -->)"
        page, found = re.subn(block, lambda _, text=text: f"\n{text}\n", page, flags=re.DOTALL)
        assert found == 1, f"docs/reliability.md has {found} blocks <!-- counts: {name} -->"
    return page


def test_reliability_quotes_what_the_tables_hold():
    page = PAGE.read_text(encoding="utf-8")
    assert page == counted(page), "run `python -m tests.docs.test_counts`"


def test_every_attack_held():
    broken = [name for found in outcomes().values() for name, outcome in found.items() if outcome.startswith("**BROKEN**")]
    assert broken == [], "run `make attack`"


def test_enough_faults_are_injected_and_named():
    assert sum(map(len, LATE.values())) >= 44 and sum(map(named, LATE.values())) >= 30


if __name__ == "__main__":
    PAGE.write_text(counted(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
