"""A whole cluster on this machine: two trainers, two fake engines over a real tiny model, one reward server; for killing them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mmrl.app.cluster.supervise import descendants
from tests.support.fake_engines import make_environment
from tests.support.ports import free_ports

REWARD = """
import time
from pathlib import Path

FOLDER = Path(__file__).parent
groups = []

def letters(group):
    groups.append(group.id)
    if len(groups) > 8 and not (FOLDER / "go").exists():
        (FOLDER / "held").touch()
        while not (FOLDER / "go").exists():
            time.sleep(0.02)
    return [len(set(sample.text)) / 100 for sample in group.samples]
"""
"""Scores eight groups, two steps, and then holds the run until the file `go` is there."""
CONFIG = """# two trainers, two engines and a reward server on one machine without cards
steps = 4
prompts_per_step = 4
micro_batch = 4096
save_every = 1

[algorithm]
preset = "grpo"
group_size = 2

[policy]
model = "tiny:qwen3_vl"
[policy.sampling]
max_new_tokens = 6
[policy.engine]
kind = "vllm"
environment = "{environment}"
timeout_s = 120.0

[data]
use = "digits_grounding"
size = 4

[[reward]]
use = "http://127.0.0.1:{reward_port}/letters"
deadline_s = {deadline_s}

[optimizer]
lr = 1e-3

[cluster]
trainers = 2
engines = {engines}
engine_port = {engine_port}
rewards = ["{spec}"]
port = {port}
restarts = {restarts}
"""


@dataclass
class Loopback:
    """A launch that runs, and its folder."""

    folder: Path
    port: int
    process: "subprocess.Popen[bytes]"

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def output(self) -> str:
        return (self.folder / "output.txt").read_text(errors="replace")

    def engine(self, number: int) -> int:
        """The pid of an engine."""
        return self.pid_of(lambda words, _: f"--port {self.port + number} " in words and "-m tests.support.fake_vllm" in words)

    def reward_server(self) -> int:
        return self.pid_of(lambda words, _: "-m mmrl reward serve" in words and "watchdog" not in words)

    def trainer(self, rank: int) -> int:
        return self.pid_of(lambda words, variables: "-m mmrl train" in words and f"LOCAL_RANK={rank}" in variables)

    def pids(self, fits: Callable[[str, list[str]], bool]) -> list[int]:
        """The processes of the launch whose command line and variables are like this."""
        found = list[int]()
        for pid in descendants(self.process.pid):
            with suppress(FileNotFoundError, ProcessLookupError):
                words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").replace("\0", " ")
                variables = Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace").split("\0")
                found += [pid] if fits(words, variables) else []
        return found

    def pid_of(self, fits: Callable[[str, list[str]], bool]) -> int:
        [found, *_] = self.pids(fits) or pytest.fail(f"no such process: {self.output[-3000:]}")
        return found

    def wait_until_held(self) -> None:
        """Wait until two steps are done and the third one's rewards are asked for."""
        while not (self.folder / "held").exists():
            assert self.process.poll() is None, self.output[-5000:]
            time.sleep(0.05)

    def go(self) -> None:
        """Let the run go on to its end."""
        (self.folder / "go").touch()

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)

    def end(self) -> int:
        """The exit code, once it has one."""
        return self.process.wait()

    def rewards(self) -> list[float]:
        """The total of every step."""
        lines = [json.loads(line) for line in (self.run / "metrics.jsonl").read_text().splitlines()]
        return [line["reward/total"] for line in lines if "reward/total" in line]


def lay_out(folder: Path, restarts: int = 3, deadline_s: float = 120.0, engines: int = 2) -> dict[str, Any]:
    """The files of a launch: config.toml, a reward and its spec, an environment of vLLM; returns the ports."""
    folder.mkdir(parents=True, exist_ok=True)
    ports = {"engine_port": free_ports(4)}
    ports |= {"reward_port": ports["engine_port"] + 2, "port": ports["engine_port"] + 3}
    (folder / "letters.py").write_text(REWARD)
    spec = folder / "spec.toml"
    spec.write_text(f'port = {ports["reward_port"]}\n[[reward]]\nuse = "./letters.py"\n')
    settings = {"spec": spec, "restarts": restarts, "deadline_s": deadline_s, "engines": engines}
    text = CONFIG.format(environment=make_environment(folder / "engine"), **ports, **settings)
    (folder / "config.toml").write_text(text)
    return ports


@contextmanager
def launched(folder: Path, port: int, *words: str, **variables: str) -> Iterator[Loopback]:
    """`mmrl launch` with these words, in the folder; killed with all it started when the block ends."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **variables}
    command = [sys.executable, "-m", "mmrl", "launch", *words]
    with (folder / "output.txt").open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield Loopback(folder, port, process)
    finally:
        process.kill()
        process.wait()
