"""Counts that pages quote, made from the tables of the tests themselves: `python -m tests.support.counts` writes them.

Blocks of docs/reliability.md between `<!-- counts: NAME -->` and `<!-- end -->` are these texts and nothing else.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from tests.attacks.attack import outcomes
from tests.policies.flow.check import test_faults as of_flow
from tests.policies.text.check import test_faults as of_text
from tests.reliability.test_injected_faults import TABLE
from tests.support.injected import Injected

PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
LATER = {
    "pictures": "Qwen3-VL with an adapter, pictures: thought of afterwards",
    "clips": "Qwen2.5-VL, clips: thought of afterwards",
    "generator": "Stable Diffusion 3 with an adapter: thought of afterwards",
}


def attacks() -> str:
    counts = {area: len(found) for area, found in outcomes().items()}
    areas = [f"{area} ({count})" for area, count in sorted(counts.items())]
    return (
        f"It does {sum(counts.values())} hostile or careless things to the real program, over loopback only and with bounded "
        f"time and memory, through: {', '.join(areas)}."
    )


def faults() -> str:
    early = {"Qwen3-VL, pictures": of_text.FAULTS, "Qwen2.5-VL, clips": of_text.FAULTS, "Stable Diffusion 3": of_flow.FAULTS}
    rows = [(name, len(table), len(table)) for name, table in early.items()]
    rows += [(LATER[kind], len(table), named(table)) for kind, table in TABLE.items()]
    rows.append(("Stable Diffusion 3, a deterministic step under a ratio (the audit)", 3, 3))
    return "\n".join(rows_of(rows))


def rows_of(rows: list[tuple[str, int, int]]) -> Iterator[str]:
    yield "| policy | faults injected | named correctly | named wrongly | without a name |"
    yield "|---|---|---|---|---|"
    for name, injected, right in rows:
        yield f"| {name} | {injected} | {right} | 0 | {injected - right} |"


def named(table: Mapping[str, Injected]) -> int:
    return sum(fault.cause is not None for fault in table.values())


BLOCKS: dict[str, Callable[[], str]] = {"faults": faults, "attacks": attacks}


def counted(page: str) -> str:
    """The page with its blocks written anew."""
    for name, text in BLOCKS.items():
        page, found = re.subn(
            rf"(<!-- counts: {name} -->\n).*?(\n<!-- end -->)",
            lambda at, text=text: f"{at[1]}\n{text()}\n{at[2]}",
            page,
            flags=re.DOTALL,
        )
        assert found == 1, f"docs/reliability.md has {found} blocks <!-- counts: {name} -->"
    return page


if __name__ == "__main__":
    PAGE.write_text(counted(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
