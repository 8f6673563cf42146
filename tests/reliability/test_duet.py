"""A writer and its painter that are killed with SIGKILL in either's turn and between go on as the duet that nobody disturbed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.evidence
def test_a_duet_that_is_killed_goes_on_bit_for_bit(tmp_path: Path):
    command = [sys.executable, "-m", "tests.reliability.duet", str(tmp_path / "duet")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
