"""Fake vLLM servers for tests: an environment that mmrl can start one from, and servers that run already."""

import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytest import MonkeyPatch

from mmrl.engine import fleet
from tests.support.forked import Beside, beside
from tests.support.ports import free_ports

ROOT = Path(__file__).resolve().parents[2]
SERVE = ("--logprobs-mode", "processed_logprobs", "--no-mm-device-do-normalize", "--enable-lora")
BROADCAST = ("--weight-transfer-config", '{"backend": "broadcast"}')
FILES = ("--weight-transfer-config", '{"backend": "file"}')


def make_environment(folder: Path, version: str = "0.32.0+cpu", server: str = "tests.support.fake_vllm") -> Path:
    """An environment whose `vllm` is the fake server, a module."""
    (folder / "bin").mkdir(parents=True)
    (folder / "lib" / "python3.11" / "site-packages" / f"vllm-{version}.dist-info").mkdir(parents=True)
    program = folder / "bin" / "vllm"
    program.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m {server} "$@"\n')
    program.chmod(0o755)
    return folder


def ask(url: str, path: str, body: object = None) -> Any:
    """A server's answer as JSON."""
    content = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(urllib.request.Request(url + path, content), timeout=60) as answer:
        return json.loads(answer.read() or b"null")


@dataclass(frozen=True)
class FakeEngine:
    """A fake server that runs."""

    url: str
    process: Beside

    def told(self) -> dict[str, Any]:
        """What it remembers and what it was asked."""
        return ask(self.url, "/fake")

    def order(self, **faults: object) -> None:
        """What is to go wrong from now on; nothing without arguments."""
        ask(self.url, "/fake", faults or {"hold": False})


@contextmanager
def engines(model: str, count: int = 1, more: Sequence[str] = FILES, port: int = 0) -> Iterator[list[FakeEngine]]:
    """Fake servers of a model, each in a process of its own, until the block ends; the port is for one alone."""
    started: list[FakeEngine] = []
    try:
        for _ in range(count):
            port = port or free_ports(1)
            words = ("-m", "tests.support.fake_vllm", "serve", model, "--port", str(port), *SERVE, *more)
            started.append(FakeEngine(f"http://127.0.0.1:{port}", beside(*words, cwd=ROOT)))
            port = 0
        for engine in started:
            wait_for(engine)
        yield started
    finally:
        for engine in started:
            engine.process.kill()


def kill_in_a_request(url: str) -> None:
    """SIGKILL to the server's process, which is not the one that mmrl started but its child, while a request is under way."""
    while not ask(url, "/fake")["waiting"]:
        time.sleep(0.05)
    os.kill(ask(url, "/fake")["pid"], signal.SIGKILL)


def impatient(patch: MonkeyPatch) -> None:
    """Who waits for a server that is away gives up at the first look at the clock, whatever his time limit."""
    patch.setattr(fleet, "time", SimpleNamespace(monotonic=count(0, 10_000).__next__))


def wait_for(engine: FakeEngine) -> None:
    """Wait until a server answers, as long as its process lives."""
    while engine.process.runs:
        try:
            ask(engine.url, "/health")
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("the fake server has ended")
