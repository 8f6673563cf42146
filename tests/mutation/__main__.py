"""Mutation tests: `python -m tests.mutation [ROOM ...]` runs the committed mutants and prints the table and the survivors."""

import argparse
import os
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

from tests.mutation.kill import LIMIT_S, Verdict, copy_tree, hunt
from tests.mutation.mutant import ROOMS, Mutant, load

SHARE = 0.97
"""Of the mutants that are not equivalent, at least so many must be killed."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("rooms", nargs="*", help=f"of {', '.join(ROOMS)}; all without")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for one mutant")
    parser.add_argument("--function", help="only mutants of functions whose name holds this")
    parser.add_argument("--equivalent", action="store_true", help="also run those judged equivalent: they must survive")
    words = parser.parse_args()
    os.environ.update({"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"})
    mutants = [m for m in load() if not words.rooms or m.room in words.rooms or m.file in words.rooms]
    mutants = [m for m in mutants if not words.function or words.function in m.function]
    chosen = [mutant for mutant in mutants if words.equivalent or not mutant.equivalent]
    verdicts = hunt_all(chosen, words.workers, words.limit)
    print(table(mutants, verdicts))
    wrong = [verdict for verdict in verdicts if verdict.outcome == "no verdict"]
    wrong += [verdict for verdict in verdicts if verdict.mutant.equivalent and verdict.outcome == "killed"]
    counted = [verdict for verdict in verdicts if not verdict.mutant.equivalent]
    killed = sum(verdict.outcome == "killed" for verdict in counted)
    return 1 if wrong or killed < SHARE * len(counted) else 0


def hunt_all(mutants: list[Mutant], workers: int, limit_s: float) -> list[Verdict]:
    """Run the mutants, each worker in a copy of the tree whose tests pass without them."""
    trees: Queue[Path] = Queue()

    def one(mutant: Mutant) -> Verdict:
        tree = trees.get()
        try:
            verdict = hunt(mutant, tree, limit_s)
        finally:
            trees.put(tree)
        print(f"{verdict.outcome:10} {verdict.seconds:5.1f} s  {mutant.file}, {mutant.function}: {verdict.why}", flush=True)
        if verdict.outcome != "killed":
            print(f"    - {mutant.before}\n    + {mutant.after}", flush=True)
        return verdict

    with tempfile.TemporaryDirectory(prefix="mmrl-mutation-", ignore_cleanup_errors=True) as place:
        for i in range(workers):
            trees.put(copy_tree(Path(place) / str(i)))
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(one, mutants))


def table(mutants: list[Mutant], verdicts: list[Verdict]) -> str:
    """Per room: how many mutants, how many judged equivalent, killed, and alive."""
    lines = ["| room | mutants | equivalent | killed | survived |", "|---|--:|--:|--:|--:|"]
    rows = {room: Counter[str]() for room in ROOMS if any(mutant.room == room for mutant in mutants)}
    for mutant in mutants:
        rows[mutant.room]["mutants"] += 1
        rows[mutant.room]["equivalent"] += bool(mutant.equivalent)
    for verdict in verdicts:
        if not verdict.mutant.equivalent:
            rows[verdict.mutant.room][verdict.outcome] += 1
    rows["all"] = sum(rows.values(), Counter())
    for room, row in rows.items():
        lines.append(f"| {room} | {row['mutants']} | {row['equivalent']} | {row['killed']} | {row['survived']} |")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
