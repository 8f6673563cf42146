"""Sides of a comparison in processes of their own that take turns, and the tables and files of what they found.

A benchmark that compares calls `take_turns`: it runs itself once per side and round, so that a machine which slows down slows
all sides alike and every process has a peak of memory of its own. A side prints one line of JSON at its end.
"""

import json
import math
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

Found = dict[str, Any]


def take_turns(script: str, sides: Sequence[str], words: Sequence[str], rounds: int) -> dict[str, list[Found]]:
    """What every process of every side found, in the order of the rounds.

    Raises:
        SystemExit: a side failed; the end of what it said is the message.
    """
    found: dict[str, list[Found]] = {side: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            done = subprocess.run([sys.executable, script, "--side", side, *words], capture_output=True, text=True, check=False)
            if done.returncode:
                raise SystemExit(f"{side} failed:\n{done.stderr[-3000:]}")
            found[side].append(json.loads(done.stdout.strip().splitlines()[-1]))
    return found


def report_found(found: Found) -> None:
    """Print the line that `take_turns` reads, with the peak of this process in MiB added."""
    print(json.dumps({"peak_mib": peak_mib(), **found}))


def peak_mib() -> float:
    """MiB that this process had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table of markdown; the first column is text, the others are figures."""
    lines = [f"| {' | '.join(head)} |", "|---|" + "--:|" * (len(head) - 1)]
    return "\n".join(lines + [f"| {' | '.join(map(str, row))} |" for row in rows])


def median_of(runs: Iterable[Found], *keys: str) -> float:
    """The median over all processes of the numbers, or lists of numbers, under these keys."""
    values: list[float] = []
    for run in runs:
        value: Any = run
        for key in keys:
            value = value[key]
        values += value if isinstance(value, list) else [value]
    return statistics.median(values)


def slope(xs: Sequence[float], ys: Sequence[float]) -> float:
    """d log y / d log x, by least squares: 0 where y does not depend on x, 1 where it is proportional."""
    logs = [(math.log(x), math.log(y)) for x, y in zip(xs, ys, strict=True)]
    mean_x, mean_y = (statistics.mean(values) for values in zip(*logs, strict=True))
    return sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)


def machine() -> str:
    """What ran: processors, Python and the libraries whose versions decide."""
    from importlib.metadata import version
    from os import cpu_count

    libraries = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers"))
    return f"{platform.machine()}, {cpu_count()} cores, Python {platform.python_version()}, {libraries}"


def write_json(file: Path | None, found: Mapping[str, Any]) -> None:
    """Keep what was measured, where a file was named."""
    if file is not None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"machine": machine(), **found}, indent=1) + "\n")


def side_by_side(script: str, sides: Sequence[str], words: Sequence[str]) -> dict[str, Found]:
    """What each side found, all of them running at the same time: what slows one down slows the others too.

    Raises:
        SystemExit: a side failed; the end of what it said is the message.
    """
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = {side: subprocess.Popen([sys.executable, script, "--side", side, *words], **pipes) for side in sides}
    found: dict[str, Found] = {}
    for side, process in running.items():
        said, complaint = process.communicate()
        if process.returncode:
            raise SystemExit(f"{side} failed:\n{complaint[-3000:]}")
        found[side] = json.loads(said.strip().splitlines()[-1])
    return found


def in_turns(ways: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """CPU seconds of each way, which take turns in this process, after one of each that is not counted."""
    for work in ways.values():
        work()
    found: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, work in ways.items():
            start = time.process_time()
            work()
            found[name].append(time.process_time() - start)
    return found


def over(found: Mapping[str, Sequence[float]], name: str, base: str) -> float:
    """The median of what one way took over what another one took in the same round."""
    return statistics.median(a / b for a, b in zip(found[name], found[base], strict=True))
