"""The page over HTTP: to this machine alone, under a secret address, and to no other page of the browser.

A page of another site can make a browser ask 127.0.0.1, under a name that it lets point here (DNS rebinding). So the Host header
must name this machine, the address must hold the token, and what changes something must come from the page itself.
"""

import getpass
import gzip
import hmac
import json
import platform
import re
import secrets
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import BoundedSemaphore, Timer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from mmrl.app.errors import Terminal
from mmrl.app.report.page import MEDIA_TYPES, script_hash
from mmrl.app.run.folder import REQUESTS, RunDir
from mmrl.app.run.launch import is_locked
from mmrl.app.watch.page import Page
from mmrl.serving.guard import listen

HOSTS = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?", re.IGNORECASE)
"""Names of this machine, at any port: that of an SSH tunnel may be another one."""
MEDIA = re.compile(r"[0-9a-f]{20}\.(png|jpg|mp4|wav)")
REQUEST_S = 20.0
"""A connection ends after this time, whatever is still sent."""
MOST_CONNECTIONS = 32
LONGEST_PATH = 2000
POLICY = (
    "default-src 'none'; connect-src 'self'; img-src 'self'; media-src 'self'; style-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; script-src '{}'"
)
TEXT = "text/plain; charset=utf-8"
HEADERS: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "same-origin",
}
FOREIGN = "this page is for the machine it runs on: open it as 127.0.0.1 or localhost, from elsewhere through an SSH tunnel"
NO_TOKEN = "the address lacks the token of this page, or has another one's: open the address that mmrl watch printed"
NOT_FROM_THE_PAGE = "only the buttons of the page itself ask the run for something"
DONE: Mapping[str, str] = {
    "stop": "asked: the run stops after this step and saves",
    "checkpoint": "asked: a checkpoint is written after this step",
}


class Refused(Exception):  # noqa: N818 - no error of the program: what is answered
    """An answer of one sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Server(ThreadingHTTPServer):
    """Serves one run; ValueError where the port is taken."""

    daemon_threads = True

    def __init__(self, run: RunDir, port: int) -> None:
        listener = listen("127.0.0.1", port)
        super().__init__(("127.0.0.1", port), Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_address = listener.getsockname()
        self.run, self.page, self.token = run, Page(run), secrets.token_urlsafe(24)
        self._room = BoundedSemaphore(MOST_CONNECTIONS)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/{self.token}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        end = Timer(REQUEST_S, self.shutdown_request, [request])
        end.daemon = True
        end.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            end.cancel()
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that left is no news."""


class Handler(BaseHTTPRequestHandler):
    """One request, one answer, and the end of the connection."""

    timeout = 5.0
    server_version, sys_version = "mmrl", ""

    @property
    def site(self) -> Server:
        assert isinstance(self.server, Server)
        return self.server

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, act: Callable[[str], None]) -> None:
        try:
            act(self._path())
        except Refused as refused:
            self._send(refused.status, f"{refused}\n".encode(), TEXT)
        except (ConnectionError, TimeoutError):
            raise
        except Exception as error:  # noqa: BLE001 - whatever a file of the run holds, the page goes on
            self._send(500, f"this cannot be shown: {type(error).__name__}: {error}\n".encode(errors="replace"), TEXT)

    def _path(self) -> str:
        """The path below the token; Refused for what comes from elsewhere."""
        if not HOSTS.fullmatch(self.headers.get("Host", "")):
            raise Refused(403, FOREIGN)
        token, slash, path = self.path[:LONGEST_PATH].removeprefix("/").partition("/")
        if not hmac.compare_digest(token.encode(errors="replace"), self.site.token.encode()):
            raise Refused(403, NO_TOKEN)
        return path if slash else "none"

    def _get(self, path: str) -> None:
        name = urlsplit(path).path
        if name == "":
            policy = {"Content-Security-Policy": POLICY.format(script_hash("watch.js"))}
            self._send(200, self.site.page.html().encode(errors="replace"), "text/html; charset=utf-8", policy)
        elif name == "feed":
            seen = parse_qs(urlsplit(path).query).get("seen", [""])[-1].split(",")
            parts = {name: vars(part) for name, part in self.site.page.parts().items() if part.mark not in seen}
            self._send(200, json.dumps(parts).encode(), "application/json")
        elif name.startswith("media/"):
            self._send_media(name.removeprefix("media/"))
        else:
            raise Refused(404, "there is nothing at this address")

    def _send_media(self, name: str) -> None:
        file: Path = self.site.run.media / name
        if not MEDIA.fullmatch(name) or file.is_symlink() or not file.is_file():
            raise Refused(404, "there is no such picture")
        self._send(200, file.read_bytes(), MEDIA_TYPES[file.suffix], {"Cache-Control": "private, max-age=3600"})

    def _post(self, path: str) -> None:
        if self.headers.get("Origin") != f"http://{self.headers['Host']}":
            raise Refused(403, NOT_FROM_THE_PAGE)
        if path not in REQUESTS:
            raise Refused(404, "a run can be asked for stop or checkpoint")
        if not is_locked(self.site.run.path):
            raise Refused(409, "no process trains into this folder, so there is no one to ask")
        try:
            self.site.run.request_file(path).touch()
        except OSError as error:
            raise Refused(409, f"the request cannot be written into the run's folder ({error.strerror})") from None
        self._send(200, f"{DONE[path]}\n".encode(), TEXT)

    def _send(self, status: int, body: bytes, kind: str, headers: Mapping[str, str] = {}) -> None:
        own = {"Content-Type": kind, "Cache-Control": "no-store", "Content-Security-Policy": "default-src 'none'"}
        own |= {**HEADERS, **headers}
        if "gzip" in self.headers.get("Accept-Encoding", "") and not kind.startswith(("image", "video")):
            body, own["Content-Encoding"] = gzip.compress(body, 1), "gzip"
        self.send_response(status)
        for name, value in {**own, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answers what http.server itself refuses: other methods, and requests that it cannot read."""
        if not hasattr(self, "headers"):
            self.headers = self.MessageClass()
        self.close_connection = True
        text = "this page is asked by GET, and its buttons by POST" if code == 501 else "this is no request that can be read"
        self._send(405 if code == 501 else code, f"{text}\n".encode(), TEXT)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: addresses hold the token."""


def watch(path: Path, port: int) -> None:
    """Serve the page until Ctrl-C.

    Raises FileNotFoundError if the folder holds no run, and ValueError if the port is taken.
    """
    server = Server(RunDir.open(path), port)
    Terminal(soft_wrap=True).print("\n".join(greeting(path, server)))
    try:
        server.serve_forever(poll_interval=0.2)
    except KeyboardInterrupt:
        Terminal().print("closed; the run is as it was")
    finally:
        server.server_close()


def greeting(path: Path, server: Server) -> list[str]:
    """Where the page is, from here and from elsewhere."""
    tunnel = f"ssh -L {server.port}:127.0.0.1:{server.port} {user()}@{platform.node()}"
    return [
        f"watching {path}: {server.address}",
        f"from another machine: {tunnel}, then the same address",
        "Ctrl-C closes the page and does not touch the run",
    ]


def user() -> str:
    """This user's name; a placeholder where the machine knows none."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "USER"
