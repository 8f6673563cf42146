"""One process that fails ends all of them, with its own words; the launcher is torchrun, as users start it."""

from pathlib import Path

import pytest

from tests.support.launcher import started

pytestmark = pytest.mark.slow
FILE = "tests/processes/breaks.py"
RUN = ["train", "tiny/image", f"data={{use='{FILE}:load'}}", f"reward=[{{use='{FILE}:Reward'}}]", "evaluation.num_prompts=0"]


@pytest.mark.parametrize(
    ("breaks", "words"),
    [
        pytest.param(
            *("data", ["mmrl, process 1 of 2: command line: data: ", "raised KeyError: 'the column of process 1'"]),
            marks=pytest.mark.evidence,
        ),
        ("reward", ["mmrl, process 1 of 2: step 1", "the judge of process 1 is gone"]),
    ],
)
def test_one_process_fails_and_all_end(tmp_path: Path, breaks: str, words: list[str]):
    done = started("mmrl", *RUN, f"output='{tmp_path / 'run'}'", BREAKS=breaks, MMRL_CACHE=str(tmp_path))
    assert done.returncode != 0
    assert all(word in done.stderr for word in words), done.stderr[-3000:]
    others = [line for line in done.stderr.splitlines() if line.startswith("mmrl, process 0 of 2")]
    assert all("stopped because another process did" in line for line in others), others


@pytest.mark.evidence
def test_two_processes_leave_in_peace(tmp_path: Path):
    done = started("mmrl", *RUN, f"output='{tmp_path / 'run'}'", MMRL_CACHE=str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "run" / "report.html").is_file()
    assert done.stderr.count("report: ") == 1
