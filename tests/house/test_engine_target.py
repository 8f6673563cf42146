"""`make engine-test` says why it runs nothing, and never takes longer than it may."""

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.engine.__main__ import within

ROOT = Path(__file__).parents[2]


def test_without_packages_it_says_so_and_runs_nothing(tmp_path: Path):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    empty = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    command = [sys.executable, "-m", "tests.engine", "--folder", str(tmp_path / "vllm")]
    done = subprocess.run(command, cwd=ROOT, env=kept | empty, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0
    assert "vLLM was not tested: " in done.stdout
    unfit = "GB of memory are free" in done.stdout or "the load is" in done.stdout
    assert unfit or ("see above" in done.stdout and "where pip looks" in done.stderr)


def test_what_takes_too_long_is_stopped_with_all_that_it_started(tmp_path: Path):
    note = tmp_path / "pid"
    assert within(3.0, ["sh", "-c", f"echo $$ > {note}; sleep 600 & wait"], dict(os.environ)) is None
    until = time.monotonic() + 60
    while members(int(note.read_text())) and time.monotonic() < until:
        time.sleep(0.05)
    assert not members(int(note.read_text()))
    assert within(60.0, [sys.executable, "-c", "raise SystemExit(3)"], dict(os.environ)) == 3


def members(group: int) -> list[str]:
    """The processes of a group that still run."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            # state, parent and group stand behind the name
            state, _, of, *_ = (folder / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        found += [folder.name] if int(of) == group and state != "Z" else []
    return found
