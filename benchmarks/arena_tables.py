"""Write the tables of finished arenas into docs/how_to/arena.md, between `<!-- table arena-TASK -->` and `<!-- /table -->`.

    mmrl arena --task video --methods grpo,rloo --budget-seconds 15 --output runs/arena-video
    python benchmarks/arena_tables.py runs/arena-video

Methods of one place are tied, best mean first: a place counts those that are clearly better.
"""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from write_tables import ROOT, place

PAGE = ROOT / "docs" / "how_to" / "arena.md"


def table_of(arena: Mapping[str, Any], contest: Mapping[str, Any]) -> str:
    """The command that made an arena, and its rows as markdown.

    Args:
        arena: what `arena.json` holds.
        contest: what `contest.json` holds.
    """
    overrides = "".join(f" {word}" for word in contest["overrides"])
    seeds = ",".join(map(str, arena["seeds"]))
    command = f"mmrl arena --task {arena['task']} --methods ... --budget-seconds {arena['budget_s']:g} --seeds {seeds}{overrides}"
    lines = [
        f"`{command}`, {len(arena['rows'])} methods, start {arena['start']:.3f}:",
        "",
        "| place | methods: mean total reward ± half of the 95 % interval (steps) |",
        "|--:|---|",
    ]
    refused = [row["method"] for row in arena["rows"] if row["mean"] is None]
    places: dict[int, list[str]] = {}
    for row in arena["rows"]:
        if row["mean"] is not None:
            half = "" if row["half_width"] is None else f"±{row['half_width']:.3f}"
            places.setdefault(row["place"], []).append(f"{row['method']} {row['mean']:.3f}{half} ({row['steps']})")
    lines += [f"| {rank} | {', '.join(methods)} |" for rank, methods in sorted(places.items())]
    lines += ["", f"Refused or failed: {', '.join(refused)}."] if refused else []
    return "\n".join(lines)


def write(folder: Path) -> None:
    """Put the table of one arena's folder into the page.

    Raises:
        SystemExit: the folder holds no finished arena.
    """
    files = [folder / name for name in ("arena.json", "contest.json")]
    if missing := [file.name for file in files if not file.is_file()]:
        raise SystemExit(f"{folder} holds no {missing[0]}: run mmrl arena --output {folder} to its end first")
    arena, contest = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    PAGE.write_text(place(PAGE.read_text(encoding="utf-8"), f"arena-{arena['task']}", table_of(arena, contest)), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="folders that mmrl arena wrote")
    for folder in parser.parse_args().folders:
        write(folder)


if __name__ == "__main__":
    main()
