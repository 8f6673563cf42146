"""Run the benchmarks of speed and write their tables into docs/measurements.md, between the marks of each; prose stays as it is.

    python benchmarks/write_tables.py                     all (make bench): some 25 minutes on idle cores
    python benchmarks/write_tables.py --only vlm scaling  some of them
    python benchmarks/write_tables.py --list              what there is, and how long each takes
    python benchmarks/write_tables.py --gpu gpu-results   the table that benchmarks/gpu.py wrote on a machine with a card

A table stands between `<!-- table NAME -->` and `<!-- /table -->`. It is written as soon as its script is done, with the command
above it; a script that fails leaves the old table and makes this one fail at the end. Figures go to build/bench/NAME.json too,
where a script offers that.
"""

import argparse
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from sides import machine

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "measurements.md"
NOT_MEASURED = "not measured: "
"""What a script prints in its table where this machine lacks what it needs."""
MARKS = re.compile(r"<!-- table (?P<name>[\w-]+) -->\n(?P<body>.*?)<!-- /table -->", re.DOTALL)


@dataclass(frozen=True)
class Table:
    """One table of the page."""

    command: str
    """Words behind `python benchmarks/`."""
    minutes: float
    """On idle cores, about."""
    by_default: bool = True
    has_json: bool = False

    @property
    def script(self) -> Path:
        return ROOT / "benchmarks" / self.command.split()[0]


TABLES = {
    "vlm": Table("vlm_step.py --lengths 300 900 --checkpointing off on --rounds 2 --steps 2", 9, has_json=True),
    "scaling": Table("vlm_scaling.py --plot docs/assets/vlm_scaling.svg", 2, has_json=True),
    "decoding": Table("decode_step.py --rounds 1", 1.5, has_json=True),
    "flow": Table("flow_step.py --rounds 1 --steps 2", 1.5),
    "flow-wide": Table("flow_step.py --layers 12 --heads 12 --prompts 4 --group-size 8 --rows 32 --rounds 1 --steps 1", 2),
    "flow-costs": Table("flow_costs.py --steps 1", 2, has_json=True),
    "video-decode": Table("video_step.py --only decode --repeats 2", 0.5),
    "video-group": Table("video_step.py --only group --frames 16 64 --repeats 1", 1),
    "video-step": Table("video_step.py --only step --frames 16 64 --repeats 1", 1.5),
    "video-memory": Table("video_step.py --only leak --leak-steps 96", 1),
    "memory": Table("plan_accuracy.py --runs text pictures --calibrate 1 --steps 2", 1.5),
    "processes": Table("processes.py", 1.5, has_json=True),
    "overhead": Table("overhead.py", 1),
    "engine": Table("engine_step.py", 2, has_json=True),
    "learn": Table("learn_vs_trl.py --seconds 150 --plot docs/assets/learn_vs_trl.svg", 25, by_default=False),
}


def tables_in(text: str) -> str:
    """The tables of markdown in what a script printed, without the rest."""
    blocks: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            blocks[-1].append(line)
        elif blocks[-1]:
            blocks.append([])
    return "\n\n".join("\n".join(block) for block in blocks if block)


def place(page: str, name: str, body: str) -> str:
    """The page with this between the marks of a table.

    Raises:
        ValueError: the page has no such marks, or has them twice.
    """
    found = [match for match in MARKS.finditer(page) if match["name"] == name]
    if len(found) != 1:
        raise ValueError(
            f"the page has {len(found)} places for the table {name!r}: write `<!-- table {name} -->` and "
            "`<!-- /table -->` there once"
        )
    start, end = found[0].span("body")
    return f"{page[:start]}{body.strip()}\n{page[end:]}"


def measure(name: str, table: Table) -> str:
    """The table as it goes into the page: command, machine, seconds, figures.

    Raises:
        RuntimeError: the script failed, or printed no table.
    """
    words = table.command.split()[1:]
    if table.has_json:
        words += ["--json", str(ROOT / "build" / "bench" / f"{name}.json")]
    start = time.monotonic()
    done = subprocess.run([sys.executable, str(table.script), *words], cwd=ROOT, capture_output=True, text=True, check=False)
    found = tables_in(done.stdout)
    if done.returncode or not found:
        raise RuntimeError(f"{table.command}: exit status {done.returncode}\n{done.stderr[-2000:]}")
    return f"`python benchmarks/{table.command}` ({time.monotonic() - start:.0f} s; {machine()})\n\n{found}"


def gpu_table(folder: Path) -> str:
    """The table that a card's run wrote.

    Raises:
        SystemExit: there is none.
    """
    file = folder / "gpu.md"
    if not file.is_file():
        raise SystemExit(f"{folder} holds no gpu.md: run python benchmarks/gpu.py --out {folder} on a machine with a card first")
    return file.read_text()


def write(name: str, body: str) -> None:
    PAGE.write_text(place(PAGE.read_text(), name, body))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=TABLES, help="these tables")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--gpu", type=Path, help="folder with a gpu.md; nothing is run")
    args = parser.parse_args()
    if args.list:
        for name, table in TABLES.items():
            print(f"{name:13} {table.minutes:4g} min  {'' if table.by_default else '(--only) '}{table.command}")
        return
    if args.gpu is not None:
        write("gpu", gpu_table(args.gpu))
        return
    failures = []
    for name in args.only or [name for name, table in TABLES.items() if table.by_default]:
        if not TABLES[name].script.exists():
            print(f"{name}: benchmarks/{TABLES[name].script.name} is not there, its place stays as it is", flush=True)
            continue
        print(f"{name}: python benchmarks/{TABLES[name].command}", flush=True)
        try:
            body = measure(name, TABLES[name])
            if NOT_MEASURED in body:
                print(f"  {body[body.index(NOT_MEASURED) :].splitlines()[0].rstrip(' |')}; its table stays as it is", flush=True)
            else:
                write(name, body)
        except RuntimeError as error:
            failures.append(str(error))
    if failures:
        raise SystemExit("\n\n".join(failures))


if __name__ == "__main__":
    main()
