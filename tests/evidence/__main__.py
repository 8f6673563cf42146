"""Methods against their plain twins on the tasks made for their claims: `python -m tests.evidence [METHOD ...]`.

Prints a row per method and writes mmrl/algorithms/presets/cards/evidence.json, which the cards of the methods read. Rows that
are not asked for stay as they are in the file. Every row names the commit of the tree that made it, so a tree with changes that
are not committed writes nothing. Where that commit was rebased since, it is the one that brought the row, or its code.
"""

import argparse
import json
import logging
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from tests.evidence import chains, codes, pixels, planner_rows, points, sounds, text_tasks, thinking_rows, turn_tasks, video_rows
from tests.evidence.task import Outcome, Row, verdict

FILES = (text_tasks, planner_rows, video_rows, points, turn_tasks, pixels, chains, codes, thinking_rows, sounds)
ROWS = [row for file in FILES for row in file.ROWS]
ELSEWHERE = {**text_tasks.ELSEWHERE, **video_rows.ELSEWHERE, **points.ELSEWHERE}
SEEDS = (0, 1, 2)
ROOT = Path(__file__).parents[2]
FILE = ROOT / "mmrl" / "algorithms" / "presets" / "cards" / "evidence.json"


def commit() -> str:
    """Of the tree, which has no changes but to the file itself."""
    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{FILE.relative_to(ROOT)}")
    if changed:
        sys.exit(f"the tree has changes that no commit holds: commit them, or add --dry\n{changed}")
    return git("rev-parse", "--short=10", "HEAD").strip()


def git(*words: str) -> str:
    return subprocess.run(("git", *words), cwd=ROOT, capture_output=True, text=True, check=True).stdout


def line_of(row: Row, outcomes: list[Outcome], made_by: str) -> dict[str, Any]:
    """What the cards read of one row."""
    margin = row.changes.get("margin", row.task.margin)
    curves = {"watched_with_it": [one.watched for one in outcomes], "watched_twin": [one.twin_watched for one in outcomes]}
    watched = {name: [[round(x, 3) for x in curve] for curve in found] for name, found in curves.items()}
    return {
        "method": row.method,
        "task": row.task.name,
        "claim": row.task.claim,
        "measured": row.task.measured,
        "without": row.without,
        "seeds": list(range(len(outcomes))),
        "with_it": [round(one.method, 3) for one in outcomes],
        "twin": [round(one.twin, 3) for one in outcomes],
        "margin": margin,
        "verdict": verdict(outcomes, margin),
        "commit": made_by,
        **({"watched": row.task.watched, **watched} if row.task.watched else {}),
    }


def printed(line: dict[str, Any], seconds: float) -> str:
    def figures(name: str) -> str:
        return " ".join(f"{value:.3f}" for value in line[name])

    return f"| {line['method']} | {line['task']} | {figures('with_it')} | {figures('twin')} | {line['verdict']} | {seconds:.0f} |"


def write(lines: list[dict[str, Any]], file: Path = FILE) -> None:
    """Put the lines into the file, in the order of ROWS; those of rows that no longer exist leave it."""
    known = json.loads(file.read_text(encoding="utf-8")) if file.exists() else []
    by_row = {(line["method"], line["task"]): line for line in [*known, *lines]}
    order = [(row.method, row.task.name) for row in ROWS]
    kept = [json.dumps(by_row[key], ensure_ascii=False) for key in order if key in by_row]
    file.parent.mkdir(exist_ok=True)
    file.write_text("[\n  " + ",\n  ".join(kept) + "\n]\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("methods", nargs="*", help="names of methods (default: all)")
    parser.add_argument("--tasks", nargs="*", help="names of tasks (default: all)")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--dry", action="store_true", help="print only")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("mmrl").setLevel(logging.CRITICAL)
    rows = [row for row in ROWS if not chosen.methods or row.method in chosen.methods]
    rows = [row for row in rows if not chosen.tasks or row.task.name in chosen.tasks]
    if not rows:
        sys.exit(
            f"no row is about {chosen.methods or 'these tasks'}: choose of {', '.join(dict.fromkeys(row.method for row in ROWS))}"
        )
    made_by = "" if chosen.dry else commit()
    print("| method | task | with it | twin | verdict | CPU s |\n|---|---|---|---|---|---|")
    for row in rows:
        start = time.process_time()
        line = line_of(row, [row.outcome(seed) for seed in range(chosen.seeds)], made_by)
        print(printed(line, time.process_time() - start), flush=True)
        if not chosen.dry:
            write([line])


if __name__ == "__main__":
    main()
