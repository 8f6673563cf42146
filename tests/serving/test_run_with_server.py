"""A run whose reward lives on a server: killed and restarted it is waited for; gone for good it stops with a checkpoint."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mmrl.app.commands import train as jobs
from mmrl.app.config import run as configs
from mmrl.app.run.folder import RunDir
from mmrl.training.checkpoints.save import Checkpoints
from mmrl.training.trainer import TrainingStoppedError
from tests.support.ports import free_ports

pytestmark = pytest.mark.slow

SLOW_LENGTH = """
import time
import numpy as np

def brightness(group):
    time.sleep(0.05)
    return [float(np.asarray(sample.image).mean() / 255) for sample in group.samples]
"""


class Server:
    """`mmrl reward serve` in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self.port = free_ports(1)
        (folder / "brightness.py").write_text(SLOW_LENGTH)
        self.spec = folder / "spec.toml"
        self.spec.write_text(f'port = {self.port}\n[[reward]]\nuse = "./brightness.py"\n')
        self.url = f"http://127.0.0.1:{self.port}/brightness"
        self.start()

    def start(self) -> None:
        command = [sys.executable, "-m", "mmrl", "reward", "serve", str(self.spec)]
        self.process = subprocess.Popen(command, cwd=self.spec.parent, env={**os.environ, "OMP_NUM_THREADS": "1"})

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path / "cache"))
    running = Server(tmp_path)
    yield running
    running.kill()


def resolve_run(server: Server, output: Path, deadline_s: float = 120.0, steps: int = 4) -> configs.Resolved:
    table = configs.load("tiny/flow").table
    table.set(("reward",), [{"use": server.url, "deadline_s": deadline_s}], "test")
    return configs.resolve(table, [f"output={str(output)!r}", f"steps={steps}", "evaluate_every=0", "evaluation.num_prompts=0"])


def rewards(run: Path) -> list[float]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["reward/total"] for line in lines if "reward/total" in line]


def weights(run: Path) -> dict[str, Any]:
    return Checkpoints(RunDir(run).checkpoints).load()["policy"]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool((a == b).all()) if hasattr(a, "shape") else a == b


def wait_for(run: Path, lines: int) -> None:
    while not (run / "metrics.jsonl").exists() or len((run / "metrics.jsonl").read_text().splitlines()) < lines:
        time.sleep(0.02)


def test_a_server_that_dies_and_returns_changes_nothing(server: Server, tmp_path: Path):
    jobs.run_training(resolve_run(server, tmp_path / "whole"))

    def disturb() -> None:
        wait_for(tmp_path / "broken", 1)
        server.kill()
        time.sleep(0.5)
        server.start()

    thread = threading.Thread(target=disturb)
    thread.start()
    jobs.run_training(resolve_run(server, tmp_path / "broken"))
    thread.join()
    assert rewards(tmp_path / "broken") == rewards(tmp_path / "whole") and len(rewards(tmp_path / "whole")) == 4
    assert same(weights(tmp_path / "broken"), weights(tmp_path / "whole"))


def test_gone_for_good_stops_with_a_checkpoint_that_resumes_exactly(server: Server, tmp_path: Path):
    jobs.run_training(resolve_run(server, tmp_path / "whole"))

    def remove() -> None:
        wait_for(tmp_path / "broken", 1)
        server.kill()

    thread = threading.Thread(target=remove)
    thread.start()
    with pytest.raises(TrainingStoppedError, match=r"step \d: reward server .* does not answer .*saved after step \d") as stopped:
        jobs.run_training(resolve_run(server, tmp_path / "broken", deadline_s=1.0))
    thread.join()
    at = int(re.findall(r"saved after step (\d)", str(stopped.value))[0])
    assert 1 <= at < 4
    server.start()
    jobs.run_training(resolve_run(server, tmp_path / "broken"), resume=tmp_path / "broken")
    assert rewards(tmp_path / "broken") == rewards(tmp_path / "whole")
    assert same(weights(tmp_path / "broken"), weights(tmp_path / "whole"))
