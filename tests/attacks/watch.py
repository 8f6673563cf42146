"""Attacks on the page of `mmrl watch`: other hosts, no token, hostile files, and files that change under it."""

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlsplit

from tests.attacks.attack import Attack, begin, refused
from tests.attacks.disks import append

LIMIT_S = 60.0
EVIL = "</title></style><script>alert(1)</script><img src=x onerror=alert(1)>\u202e\x00"


@dataclass(frozen=True)
class Site:
    """A page that is served."""

    port: int
    token: str
    run: Path

    def ask(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        """Status and text; `{}` in the path is the token."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path.replace("{}", self.token), headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(errors="replace")
        finally:
            connection.close()


@contextmanager
def watched(folder: Path) -> Iterator[Site]:
    """`mmrl watch` on a run whose texts are hostile."""
    run = folder / "run"
    (run / "samples").mkdir(parents=True)
    (run / "config.toml").write_text(f"steps = 3\n[policy]\nmodel = {json.dumps(EVIL.replace(chr(0), ''))}\n")
    (run / "metrics.jsonl").write_text(json.dumps({"step": 1, EVIL: 1.0, "reward/total": 0.5}) + "\n")
    (run / "warnings.jsonl").write_text(json.dumps({"step": 1, "level": "error", "text": EVIL}) + "\n")
    process = begin(["watch", "run", "--port", "0"], folder, env={"PYTHONUNBUFFERED": "1"}, stderr=None)
    try:
        assert process.stdout is not None
        address = urlsplit(process.stdout.readline().rpartition(" ")[2].strip())
        yield Site(int(address.port or 0), address.path.strip("/"), run)
        assert process.poll() is None, f"the page ended with {process.returncode}"
    finally:
        process.kill()
        process.communicate()


def turned_away(status: int, path: str, method: str, headers: dict[str, str], folder: Path) -> str:
    """One request: this status and one sentence without the token; the page is there afterwards."""
    with watched(folder) as site:
        found, text = site.ask(path, method, **headers)
        assert found == status and text.count("\n") == 1 and site.token not in text, f"{found}: {text[:300]!r}"
        assert site.ask("/{}/")[0] == 200, "the page is gone"
        assert not list(site.run.glob("*.request")), "the run was asked for something"
    return f"{status} {text.strip()[:60]}"


def hostile_texts(folder: Path) -> str:
    with watched(folder) as site:
        _, text = site.ask("/{}/")
        assert text.count("<script") == 1 and "<img" not in text, "a text of the run became markup"
    return "shown as text"


def many_connections(folder: Path) -> str:
    """200 connections that send nothing, or a byte now and then."""
    with watched(folder) as site:
        idle = [socket.create_connection(("127.0.0.1", site.port)) for _ in range(200)]
        end = time.monotonic() + LIMIT_S
        while True:
            with suppress(OSError):
                for one in idle[::2]:
                    one.send(b"G")
            with suppress(OSError):
                if site.ask("/{}/")[0] == 200:
                    break
            assert time.monotonic() <= end, "the page did not come back"
            time.sleep(0.2)
        for one in idle:
            one.close()
    return "the page came back"


def changed(change: Callable[[Path], object], folder: Path) -> str:
    """The run's files change while the page is open."""
    with watched(folder) as site:
        site.ask("/{}/")
        change(site.run)
        status, text = site.ask("/{}/feed")
        assert status == 200, f"{status}: {text[:300]}"
    return "still shown"


NONSENSE = "[" * 100_000 + "\n" + '{"step": 1e999}\n{"step": 2, "a": {}}\n'


def another(name: str, path: str, status: int = 403, method: str = "GET", **headers: str) -> Attack:
    return Attack("watch", name, partial(turned_away, status, path, method, headers))


ATTACKS = [
    another("a page of another site, by DNS rebinding", "/{}/", Host="evil.example"),
    another("a name that begins like this machine's", "/{}/", Host="127.0.0.1.evil.example"),
    another("no token", "/"),
    another("another token", "/AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA/feed"),
    another("another method", "/{}/", 405, "DELETE"),
    another("a path of 100,000 characters", "/{}/" + "a" * 100_000, 414),
    another("a button pressed by another site", "/{}/stop", method="POST", Origin="http://evil.example"),
    another("a button pressed by no page", "/{}/stop", method="POST"),
    another("a picture that is a file of the run", "/{}/media/../../config.toml", 404),
    another("a picture that is a file of the machine", "/{}/media/%2e%2e/%2e%2e/%2e%2e/etc/passwd", 404),
    Attack("watch", "hostile captions, metrics and warnings", hostile_texts),
    Attack("watch", "200 connections that send nothing", many_connections),
    Attack("watch", "lines of nonsense while it looks", partial(changed, partial(append, "metrics.jsonl", NONSENSE))),
    Attack(
        "watch",
        "a samples file without an end",
        partial(changed, lambda run: (run / "samples/train-000001.jsonl").symlink_to("/dev/zero")),
    ),
    Attack("watch", "a folder without a run", partial(refused, ["watch", "."], ["holds neither"])),
]
