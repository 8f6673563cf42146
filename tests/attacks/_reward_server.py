"""The reward server as a program of its own, for attacks on it, and raw bytes to say to it."""

import re
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from mmrl import Group, Prompt, Sample
from mmrl.serving import wire
from tests.attacks.attack import begin, expect_clean, limit_memory

TOKEN = "tok-0123456789abcdef"
REWARDS = """
import asyncio, os, sys, time

def length(group):
    return [float(len(sample.text or "")) for sample in group.samples]

def slow(group):
    time.sleep(60)
    return length(group)

def leaves(group):
    sys.exit(3)

def cancels(group):
    raise asyncio.CancelledError

def interrupts(group):
    raise KeyboardInterrupt

async def leaves_the_loop(group):
    sys.exit(3)

async def interrupts_the_loop(group):
    raise KeyboardInterrupt

def is_huge(group):
    return [10**400] * len(group.samples)

def looks(group):
    return [float(os.path.getsize(name)) for name in group.prompt.media]
"""
NAMES = ("length", "slow", "leaves", "cancels", "interrupts", "leaves_the_loop", "interrupts_the_loop", "is_huge", "looks")
MANY = 2**26
"""Bytes that no server needs to read from somebody it refuses."""


@dataclass
class Running:
    """A server that runs: its address and its process, whose memory and files can be looked at."""

    address: tuple[str, int]
    process: "subprocess.Popen[str]"
    folder: Path
    token: str = TOKEN

    @property
    def url(self) -> str:
        return f"http://{self.address[0]}:{self.address[1]}"

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=20)

    def say(self, data: bytes) -> bytes:
        """Everything that the server answers to these bytes until it closes the connection, or falls silent for long."""
        with self.connect() as connection:
            connection.sendall(data)
            return read_all(connection)

    def post(self, name: str, body: bytes, **headers: str) -> httpx.Response:
        held = {"Authorization": f"Bearer {self.token}"} | {key.replace("_", "-"): value for key, value in headers.items()}
        return httpx.post(f"{self.url}/v1/score/{name}", content=body, headers=held, timeout=30, trust_env=False)

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.url + path, headers={"Authorization": f"Bearer {self.token}"}, timeout=30, trust_env=False)

    def files(self) -> list[Path]:
        """Folders of requests."""
        return list((self.folder / "tmp").glob("mmrl-reward-*"))

    def said(self) -> str:
        """What the server wrote to its terminal."""
        return (self.folder / "err").read_text(errors="replace")

    def stop(self, number: int = signal.SIGTERM) -> int:
        """End it by a signal and wait for it: its exit code."""
        self.process.send_signal(number)
        try:
            return self.process.wait(15)
        except subprocess.TimeoutExpired:
            raise AssertionError("the server did not stop within 15 s") from None


@contextmanager
def running(folder: Path, limits: str = "", before: Callable[[], None] = limit_memory) -> Iterator[Running]:
    """A server in a process of its own; at the end it must still work, and have written no traceback."""
    (folder / "tmp").mkdir(exist_ok=True)
    (folder / "mine.py").write_text(REWARDS)
    entries = "".join(f'[[reward]]\nuse = "./mine.py:{name}"\n' for name in NAMES)
    (folder / "spec.toml").write_text(f"port = 0\n{limits}\n{entries}")
    with (folder / "err").open("w") as err:
        own = {"MMRL_REWARD_TOKEN": TOKEN, "TMPDIR": str(folder / "tmp")}
        process = begin(["reward", "serve", "spec.toml"], folder, own, before, stderr=err)
    try:
        assert process.stdout is not None
        found = re.search(r"http://([^:]+):(\d+)/", process.stdout.readline())
        assert found is not None, "the server did not say where it listens"
        server = Running((found[1], int(found[2])), process, folder)
        yield server
        if process.poll() is None:
            reply = server.post("length", wire.pack_group(a_group("abc")))
            assert reply.status_code == 200 and wire.unpack_reply(reply.content).values == (3.0,), (
                f"afterwards the server answered {reply.status_code}: {reply.text[:200]}"
            )
        said = server.said()
        assert "Traceback" not in said and TOKEN not in said, f"the server wrote {said[-300:]!r}"
        expect_clean(said)
    finally:
        process.kill()
        process.communicate()


def a_group(text: str, *media: Any) -> Group:
    return Group(0, Prompt("p", media=media), (Sample(text),))


def read_all(connection: socket.socket) -> bytes:
    data = b""
    with suppress(OSError):
        while some := connection.recv(65536):
            data += some
    return data


def head(method: str, path: str, *headers: str, token: str | None = TOKEN) -> bytes:
    own = [f"Authorization: Bearer {token}"] if token else []
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *own, *headers, "", ""]).encode()


def expect_status(answer: bytes, *codes: int) -> str:
    found = re.match(rb"HTTP/1\.1 (\d+)", answer)
    assert found is not None and int(found[1]) in codes, f"answered {answer[:200]!r}"
    return f"answered {int(found[1])}"


def pour(address: tuple[str, int], start: bytes, codes: tuple[int, ...], chunked: bool) -> str:
    """Send a request whose body has no end, in chunks or of a length that it says: answered and closed before much is read."""
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 1000000000000"
    piece = b"10000\r\n" + b"\0" * 2**16 + b"\r\n" if chunked else b"\0" * 2**16
    sent = 0
    with socket.create_connection(address, timeout=20) as connection:
        connection.sendall(start.removesuffix(b"\r\n") + length + b"\r\n\r\n")
        with suppress(OSError):
            while sent < MANY:
                connection.sendall(piece)
                sent += len(piece)
        answer = read_all(connection) if sent < MANY else b""
    assert sent < MANY, f"{sent >> 20} MiB were read"
    # an answer that a reset overtook is lost, which is the sender's fault
    return (expect_status(answer, *codes) if answer else "closed") + f" after {sent >> 20} MiB"
