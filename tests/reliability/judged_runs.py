"""Runs of `mmrl launch` with a judge and a reward server, sampled two steps ahead by a process beside the trainer."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mmrl.app.cluster.supervise import descendants
from tests.support.fake_engines import make_environment
from tests.support.ports import free_ports

ROOT = Path(__file__).parents[2]
HELPERS = {"judge": "tests.support.fake_judge serve", "rewards": "mmrl reward serve"}
"""What the command line of each says."""
SETTINGS = ["ahead=2", "cluster.samplers=1", 'cluster.judges=["fake"]', "policy.lora.rank=2", "save_every=1", "samples_every=1"]
UNHURRIED = "health.max_trainer_idle=1"
"""Waiting for a server that starts is no finding of health, whose state is compared."""


def words(folder: Path, steps: int, restarts: int = 1000, loads_s: float = 0.0) -> list[str]:
    """The words of `mmrl launch` for a run whose servers have ports of their own; writes the files they name.

    Args:
        loads_s: seconds until a judge answers that was started.
    """
    port = free_ports(3)
    (folder / "spec.toml").write_text(f'port = {port + 1}\n[[reward]]\nuse = "{ROOT}/tests/support/even_letters.py"\n')
    judge, served = f"http://127.0.0.1:{port}/v1", f"http://127.0.0.1:{port + 1}/even_letters"
    rewards = f'reward=[{{use="vlm_judge",server={{url="{judge}"}}}}, {{use="{served}"}}]'
    own = [f"cluster.judge_port={port}", f"cluster.port={port + 2}", f'cluster.judge_options=["--loads-s", "{loads_s}"]']
    more = [f"cluster.restarts={restarts}", f'cluster.rewards=["{folder}/spec.toml"]', f"steps={steps}", f"output={folder}/run"]
    return ["tiny/image", *SETTINGS, UNHURRIED, rewards, *own, *more]


@contextmanager
def launched(folder: Path, *words: str) -> Iterator["subprocess.Popen[bytes]"]:
    """`mmrl launch` of this tree with these words, what it says in output.txt; ends when the block ends."""
    cache = folder.parent / "cache"
    if not cache.exists():
        make_environment(cache / "engines" / "vllm-0.32.0", server="tests.support.fake_judge")
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "MMRL_CACHE": str(cache)}
    with (folder / "output.txt").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "mmrl", "launch", *words], cwd=ROOT, env=environment, stdout=output, stderr=output
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def helpers(launch: int, kind: str) -> list[int]:
    """The processes of a launch that answer as this kind."""
    return [pid for pid in descendants(launch) if HELPERS[kind] in said(pid) and "watchdog" not in said(pid)]


def said(pid: int) -> str:
    """A process's command line; empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
    except (FileNotFoundError, ProcessLookupError):
        return ""
