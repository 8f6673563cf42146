"""Servers of raw sockets that do what no HTTP library would: drip, never end, lie about lengths, repeat what they were told."""

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import SimpleNamespace

Script = Callable[[socket.socket, bytes], None]
"""What is done with a connection whose request has arrived as these bytes."""
OK = b"HTTP/1.1 200 OK\r\n"
LIVES_S = 90.0
"""A connection is dropped then, so that nothing outlives its test for long."""


@dataclass
class RudeServer:
    """The address of a rude server, and the requests it has seen."""

    url: str
    requests: list[bytes] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """When each came, in seconds of the monotonic clock."""


@contextmanager
def rude(script: Script, port: int = 0) -> Iterator[RudeServer]:
    """A server that does the same with every connection while the block runs; at a free port for 0."""
    listener = socket.create_server(("127.0.0.1", port), backlog=64)
    server = RudeServer(f"http://127.0.0.1:{listener.getsockname()[1]}")
    open_ones: list[socket.socket] = []

    def attend(connection: socket.socket) -> None:
        connection.settimeout(LIVES_S)
        with connection, suppress(OSError):
            request = read_request(connection)
            server.requests.append(request)
            server.times.append(time.monotonic())
            script(connection, request)

    def accept() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                open_ones.append(connection)
                threading.Thread(target=attend, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield server
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        for connection in open_ones:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)


def read_request(connection: socket.socket) -> bytes:
    """The head of a request and its body, whose length it says."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536) or b"\r\n\r\n"
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
    while lengths and len(body) < lengths[0]:
        body += connection.recv(65536) or b" " * lengths[0]
    return head + b"\r\n\r\n" + body


def without_pauses(noted: Callable[[float], object] = bool) -> SimpleNamespace:
    """In place of `time` in mmrl.runtime.net.fetch: pauses between two requests are noted, not made."""
    return SimpleNamespace(monotonic=time.monotonic, time=time.time, sleep=noted)


def says(answer: bytes) -> Script:
    """Sends these bytes and closes."""
    return lambda connection, _: connection.sendall(answer)


def answers(status: int, body: bytes = b"", *headers: str, reason: str = "Because") -> Script:
    """An honest HTTP answer."""
    head = [f"HTTP/1.1 {status} {reason}", f"Content-Length: {len(body)}", "Connection: close", *headers, "", ""]
    return says("\r\n".join(head).encode() + body)


def drips(start: bytes, again: bytes, pause_s: float = 0.02) -> Script:
    """Sends a start, and then the same few bytes for as long as somebody listens."""

    def script(connection: socket.socket, _: bytes) -> None:
        connection.sendall(start)
        until = time.monotonic() + LIVES_S
        while time.monotonic() < until:
            connection.sendall(again)
            time.sleep(pause_s)

    return script


def floods(start: bytes, again: bytes) -> Script:
    """Like `drips`, as fast as it goes."""
    return drips(start, again * max(1, 65536 // len(again)), 0.0)


def hears_nothing(connection: socket.socket, _: bytes) -> None:
    """Says nothing until the other side goes."""
    while connection.recv(65536):
        pass


def in_turn(*scripts: Script) -> Script:
    """The first script for the first connection, and so on; the last for all that follow."""
    numbers = itertools.count()
    return lambda connection, request: scripts[min(next(numbers), len(scripts) - 1)](connection, request)


def echoes(status: int, escape: bool = False) -> Script:
    """Answers with the request's own Authorization header: in the status line, in headers, and as JSON."""

    def script(connection: socket.socket, request: bytes) -> None:
        lines = request.partition(b"\r\n\r\n")[0].decode().split("\r\n")
        said = " ".join(line for line in lines if line.lower().startswith("authorization"))
        shown = "".join(f"\\u{ord(letter):04x}" for letter in said) if escape else said
        body = f'{{"error": "{shown}", "choices": [{{"message": {{"content": "{shown}"}}}}]}}'.encode()
        answers(status, body, f"Location: http://elsewhere/{said[-40:]}", f"X-Seen: {said}", reason=said)(connection, request)

    return script


CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
RUDE: dict[str, Script] = {
    "headers that drip": drips(OK, b"x-a: b\r\n"),
    "one header that drips": drips(OK + b"x-a: ", b"a"),
    "a status line that drips": drips(b"HTTP/1.1 200 O", b"K"),
    "one byte at a time": drips(b"", b"H"),
    "endless 102s": drips(b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
    "a flood of 102s": floods(b"", b"HTTP/1.1 102 Processing\r\n\r\n"),
    "endless 103s with headers": drips(b"", b"HTTP/1.1 103 Early Hints\r\nLink: <a>\r\n\r\n"),
    "endless 100s": drips(b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "a chunk extension that drips": drips(CHUNKED + b"1;a=", b"b"),
    "chunks of one byte with extensions": drips(CHUNKED, b"1;abcdefgh=ijklmnop\r\n \r\n"),
    "trailers that drip": drips(CHUNKED + b"1\r\n \r\n0\r\n", b"x-a: b\r\n"),
    "a chunk that drips": drips(CHUNKED + b"ffffff\r\n", b" "),
    "a body that drips": drips(OK + b"Content-Length: 1000000\r\n\r\n", b" "),
    "a body without a length that drips": drips(OK + b"\r\n", b" "),
    "an error that drips": drips(b"HTTP/1.1 500 No\r\nContent-Length: 1000000\r\n\r\n", b"x"),
    "a busy answer that drips": drips(b"HTTP/1.1 503 Busy\r\n\r\n", b"x"),
    "a refusal that drips": drips(b"HTTP/1.1 401 No\r\n\r\n", b"x"),
    "a refusal that floods": floods(b"HTTP/1.1 400 No\r\n\r\n", b"x"),
    "a redirect that drips": drips(b"HTTP/1.1 302 Go\r\nLocation: http://127.0.0.1:9/\r\n\r\n", b"x"),
    "silence": hears_nothing,
    "a closed door": says(b""),
    "half a status line": says(b"HTTP/1."),
    "no HTTP": says(b"220 mail.example.org ESMTP\r\n" * 9),
    "another HTTP": says(b"HTTP/9.9 200 OK\r\n\r\n"),
    "a status that is none": says(b"HTTP/1.1 OKAY\r\n\r\n"),
    "a switch to another protocol": says(b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"),
    "a header of a megabyte": says(OK + b"x-a: " + b"a" * 2**20 + b"\r\n\r\n"),
    "a flood of headers": floods(OK, b"x-a: b\r\n"),
    "a body shorter than it says": says(OK + b"Content-Length: 100\r\n\r\n{}"),
    "two lengths": says(OK + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}"),
    "a negative length": says(OK + b"Content-Length: -1\r\n\r\n{}"),
    "a chunk that is no number": says(CHUNKED + b"zz\r\n{}\r\n0\r\n\r\n"),
    "an endless body": floods(OK + b"\r\n", b"\0"),
    "endless chunks": floods(CHUNKED, b"400\r\n" + b"\0" * 1024 + b"\r\n"),
    "an encoding nobody asked for": says(OK + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}"),
    "no content": says(b"HTTP/1.1 204 None\r\n\r\n"),
    "control characters": answers(400, b"\x1b[2J\x1b]0;title\x07 \x9b31m bad\r\n\0"),
}
"""What a server can do wrong, by name."""
