"""Attack mmrl: `python -m tests.attacks [AREA] [--write docs/attacks.md]`. Loopback only, bounded in time and memory.

With an area, only its rows of the page are written anew.
"""

import argparse
import importlib
import pkgutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tests.attacks
from tests.attacks.attack import Attack

BROKEN = "**BROKEN**"
Row = tuple[str, str, str]
"""Area, name and outcome."""


def all_attacks() -> list[Attack]:
    """Gather the `ATTACKS` of all modules of this folder, ordered by area."""
    modules = [module.name for module in pkgutil.iter_modules(tests.attacks.__path__) if not module.name.startswith("_")]
    found = [getattr(importlib.import_module(f"tests.attacks.{name}"), "ATTACKS", []) for name in modules]
    return sorted((attack for attacks in found for attack in attacks), key=lambda attack: attack.area)


def carry_out(attack: Attack) -> tuple[bool, str]:
    """Carry out one attack in an empty folder: whether mmrl held, and the outcome."""
    with tempfile.TemporaryDirectory(prefix="mmrl-attack-", ignore_cleanup_errors=True) as folder:
        try:
            return True, attack.run(Path(folder)).replace(f"{folder}/", "")
        except AssertionError as broken:
            return False, str(broken) or "an assertion failed"
        except Exception as error:  # noqa: BLE001 - one broken attack must not hide the others
            return False, f"the attack itself failed: {type(error).__name__}: {error}"


def table(rows: Sequence[Row]) -> list[str]:
    """The lines of the page, and how many held."""
    held = sum(not outcome.startswith(BROKEN) for _, _, outcome in rows)
    lines = [f"| {' | '.join(row)} |".replace("\n", " ") for row in rows]
    return ["| area | attack | outcome |", "|---|---|---|", *lines, f"\n{held} of {len(rows)} attacks held."]


def read(page: Path) -> list[Row]:
    """The rows of a page that was written before."""
    cells = [line.strip("| ").split(" | ", 2) for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    return [(area, name, outcome) for area, name, outcome in cells[1:]]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("area", nargs="?")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    for ignored in (signal.SIGHUP, signal.SIGINT):
        # Under nohup, or behind a shell's &, every program started here would ignore them as well.
        signal.signal(ignored, signal.SIG_DFL)
    attacks = [attack for attack in all_attacks() if arguments.area in (None, attack.area)]
    if not attacks:
        sys.exit(f"no attacks on {arguments.area}: areas are {', '.join(sorted({a.area for a in all_attacks()}))}")
    with ThreadPoolExecutor(arguments.workers) as pool:
        outcomes = list(pool.map(carry_out, attacks))
    rows = [
        (attack.area, attack.name, outcome if held else f"{BROKEN}: {outcome}")
        for attack, (held, outcome) in zip(attacks, outcomes, strict=True)
    ]
    print("\n".join(table(rows)))
    if arguments.write:
        others = [] if arguments.area is None else [row for row in read(arguments.write) if row[0] != arguments.area]
        head = "# Attacks\n\nWhat was tried against mmrl and what came of it; written by `make attack`.\n\n"
        arguments.write.write_text(head + "\n".join(table(sorted([*others, *rows], key=lambda row: row[0]))) + "\n")
    held = sum(held for held, _ in outcomes)
    sys.exit(held != len(attacks))


if __name__ == "__main__":
    main()
