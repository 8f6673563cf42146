"""Attack mmrl: `python -m tests.attacks [AREA] [--write docs/attacks.md]`. Loopback only, bounded in time and memory."""

import argparse
import importlib
import pkgutil
import signal
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tests.attacks
from tests.attacks.attack import Attack


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
        (attack.area, attack.name, outcome if held else f"**BROKEN**: {outcome}")
        for attack, (held, outcome) in zip(attacks, outcomes, strict=True)
    ]
    lines = ["| area | attack | outcome |", "|---|---|---|", *(f"| {' | '.join(row)} |".replace("\n", " ") for row in rows)]
    held = sum(held for held, _ in outcomes)
    lines.append(f"\n{held} of {len(attacks)} attacks held.")
    print("\n".join(lines))
    if arguments.write:
        head = "# Attacks\n\nWhat was tried against mmrl and what came of it; written by `make attack`.\n\n"
        arguments.write.write_text(head + "\n".join(lines) + "\n")
    sys.exit(held != len(attacks))


if __name__ == "__main__":
    main()
