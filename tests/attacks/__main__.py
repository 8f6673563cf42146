"""Attack mmrl: `python -m tests.attacks [AREA] [--new] [--write]`. Loopback only, bounded in time and memory.

`--write` writes the outcomes into tests/attacks/outcomes.toml; with an area, only those of that area. `--new` carries out those
attacks alone that have no outcome there.
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

import tomli_w

import tests.attacks
from tests.attacks.attack import OUTCOMES, Attack, outcomes

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
    """Lines for a terminal, and how many attacks held."""
    held = sum(not outcome.startswith(BROKEN) for _, _, outcome in rows)
    lines = [f"| {' | '.join(row)} |".replace("\n", " ") for row in rows]
    return ["| area | attack | outcome |", "|---|---|---|", *lines, f"\n{held} of {len(rows)} attacks held."]


def merge(before: dict[str, dict[str, str]], rows: Sequence[Row]) -> dict[str, dict[str, str]]:
    """What is to be written: of the areas that were attacked, these rows and no others."""
    found: dict[str, dict[str, str]] = {}
    for area, name, outcome in rows:
        found.setdefault(area, {})[name] = outcome.replace("\n", " ")
    return dict(sorted((before | found).items()))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("area", nargs="?")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--new", action="store_true")
    parser.add_argument("--workers", type=int, default=2)
    arguments = parser.parse_args()
    for ignored in (signal.SIGHUP, signal.SIGINT):
        # Under nohup, or behind a shell's &, every program started here would ignore them as well.
        signal.signal(ignored, signal.SIG_DFL)
    attacks = [attack for attack in all_attacks() if arguments.area in (None, attack.area)]
    if not attacks:
        sys.exit(f"no attacks on {arguments.area}: areas are {', '.join(sorted({a.area for a in all_attacks()}))}")
    known = outcomes() if arguments.new else {}

    def judge(attack: Attack) -> tuple[bool, str]:
        before = known.get(attack.area, {}).get(attack.name, BROKEN)
        return carry_out(attack) if before.startswith(BROKEN) else (True, before)

    with ThreadPoolExecutor(arguments.workers) as pool:
        results = list(pool.map(judge, attacks))
    rows = [
        (attack.area, attack.name, outcome if held else f"{BROKEN}: {outcome}")
        for attack, (held, outcome) in zip(attacks, results, strict=True)
    ]
    print("\n".join(table(rows)))
    if arguments.write:
        before = {} if arguments.area is None else outcomes()
        OUTCOMES.write_text(tomli_w.dumps(merge(before, rows)), encoding="utf-8")
    held = sum(held for held, _ in results)
    sys.exit(held != len(attacks))


if __name__ == "__main__":
    main()
