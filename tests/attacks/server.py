"""Attacks on the reward server: the real program, spoken to by raw sockets on this machine; its spec and its environment."""

import hashlib
import io
import json
import resource
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from PIL import Image

from mmrl.serving import wire
from tests.attacks._reward_server import REWARDS, TOKEN, a_group, expect_status, head, pour, read_all, running
from tests.attacks.attack import Attack, expect_sentence, run_mmrl


def endless_body(method: str, path: str, token: str | None, codes: tuple[int, ...], chunked: bool, folder: Path) -> str:
    """A body without an end: answered and closed before much of it is read."""
    with running(folder, "max_body_mb = 1") as server:
        return pour(server.address, head(method, path, token=token), codes, chunked)


def raw(data: bytes, codes: tuple[int, ...], folder: Path) -> str:
    """Bytes that get one answer."""
    with running(folder) as server:
        return expect_status(server.say(data), *codes)


def slow_headers(folder: Path) -> str:
    """Silence, and headers that drip: both connections are closed after some seconds, and the server works meanwhile."""
    with running(folder) as server, server.connect() as silent, server.connect() as dripping, server.connect() as second:
        second.sendall(head("GET", "/health") + b"GET /hea")
        dripping.sendall(b"GET /health HTTP/1.1\r\n")

        def drip() -> None:
            with suppress(OSError):
                while True:
                    dripping.sendall(b"x-a: b\r\n")
                    time.sleep(0.2)

        threading.Thread(target=drip, daemon=True).start()
        for connection in (silent, dripping, second):
            started = time.monotonic()
            read_all(connection)
            assert time.monotonic() - started <= 18, "a connection without a request stayed open"
    return "closed"


def aborted(data: bytes, wait_s: float, folder: Path) -> str:
    """A sender that leaves."""
    with running(folder) as server:
        for _ in range(5):
            with server.connect() as connection:
                connection.sendall(data)
                time.sleep(wait_s)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        time.sleep(0.2)
        return "borne"


def many_names(folder: Path) -> str:
    """Labels of metrics are the names of what is served, and no others."""
    with running(folder) as server:
        for i in range(200):
            server.post(f"x{i}%22%7d%201%0afake%7breward=%22", b"x")
            httpx.get(f"{server.url}/y{i}", trust_env=False)
        text = server.get("/metrics").text
    assert len(text.splitlines()) <= 30 and "fake" not in text and "x1" not in text, (
        f"/metrics has {len(text.splitlines())} lines: {text[:300]}"
    )
    return "counted without a name"


def tokens(folder: Path) -> str:
    """Words that are not the token."""
    wrong = ["", "Bearer", "Bearer ", "Bearer x", f"Basic {TOKEN}", TOKEN]
    wrong += [f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer \xe9"]
    with running(folder) as server:
        for value in wrong:
            for method, path in (("GET", "/metrics"), ("GET", "/v1/rewards"), ("POST", "/v1/score/length")):
                answer = server.say(head(method, path, f"Authorization: {value}", "Connection: close", token=None))
                expect_status(answer, 401)
                assert TOKEN.encode() not in answer, "the answer shows the token"
    return f"{3 * len(wrong)} times 401"


def request_ids(folder: Path) -> str:
    """One request id for different bodies."""
    with running(folder) as server:
        for text in ("a", "bbb", "a", "cc"):
            reply = wire.unpack_reply(server.post("length", wire.pack_group(a_group(text)), x_request_id="7").content)
            assert reply.values == (float(len(text)),), f"{text!r} scored {reply.values}"
    return "each got its own answer"


def long_ids(folder: Path) -> str:
    """Request ids of 50 kB."""
    with running(folder) as server:
        for i in range(40):
            server.post("length", wire.pack_group(a_group("a")), x_request_id=f"{i}" * 25_000)
        return "borne"


def body(change: Callable[[bytes], bytes], codes: tuple[int, ...], folder: Path) -> str:
    """A message that is none, or too much."""
    with running(folder, "max_pixels = 1000000") as server:
        answer = server.post("length", change(wire.pack_group(a_group("abc"))))
        assert answer.status_code in codes and "\n" not in answer.text and len(answer.text) <= 1000, (
            f"answered {answer.status_code}: {answer.text[:200]}"
        )
        assert not server.files(), "files are left"
    return f"answered {answer.status_code}"


def message(value: Any, arrays: Mapping[str, object] | None = None, data: bytes = b"") -> Callable[[bytes], bytes]:
    """A message with this value, and array entries that may lie."""

    def build(_: bytes) -> bytes:
        told = value if isinstance(value, str) else json.dumps({"protocol": wire.PROTOCOL, "value": value})
        encoded = json.dumps({"__metadata__": {"mmrl": told}, **(arrays or {})}).encode()
        return len(encoded).to_bytes(8, "little") + encoded + data

    return build


def picture_bomb(folder: Path) -> str:
    """A PNG of some kilobytes that unfolds to 400 million pixels."""
    buffer = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(buffer, "PNG")
    (folder / "bomb.png").write_bytes(buffer.getvalue())
    return body(lambda _: wire.pack_group(a_group("a", str(folder / "bomb.png"))), (413,), folder)


def stop_while(number: int, folder: Path) -> str:
    """A signal while one request is scored, one waits, and one body stands still."""
    with running(folder) as server:
        found: list[int] = []
        packed = wire.pack_group(a_group("a", str(folder / "mine.py")))
        posts = [threading.Thread(target=lambda: found.append(server.post("slow", packed).status_code)) for _ in range(2)]
        for post in posts:
            post.start()
        while not server.files() or "mmrl_waiting 2" not in server.get("/metrics").text:
            time.sleep(0.05)
        with server.connect() as dripping:
            dripping.sendall(head("POST", "/v1/score/length", "Content-Length: 1000") + b"abc")
            server.get("/health")  # a later request: the server has read the one above
            code = server.stop(number)
            for post in posts:
                post.join()
            expect_status(read_all(dripping), 503)
        assert found == [503, 503] and code == 0 and not server.files(), (
            f"answers {found}, exit code {code}, files {server.files()}"
        )
    return "503, exit code 0, no files left"


def bad_reward(name: str, folder: Path) -> str:
    """A reward that ends everything it can."""
    raised = set[str | None]()
    with running(folder) as server:
        for _ in range(3):
            reply = wire.unpack_reply(server.post(name, wire.pack_group(a_group("a"))).content)
            raised.add(reply.raised)
    assert None not in raised, "it was not told that the reward failed"
    return f"told: {raised.pop()}"


def full_disk(folder: Path) -> str:
    """No room for the files of a request: the client is told to come back."""
    (folder / "large.bin").write_bytes(b"\0" * 100_000)
    with running(folder, before=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))) as server:
        answer = server.post("looks", wire.pack_group(a_group("a", str(folder / "large.bin"))))
        assert answer.status_code == 503 and "retry-after" in answer.headers and not server.files(), (
            f"answered {answer.status_code}: {answer.text[:200]}, files {server.files()}"
        )
    return "answered 503"


def odd_suffix(folder: Path) -> str:
    """A file whose ending is a path stays in the request's folder."""

    with running(folder) as server:
        packed = wire.pack_group(a_group("a", str(folder / "mine.py")))
        changed = packed.replace(b'\\".py\\"', b'\\"/x\\"')
        changed = (len(changed) - len(packed) + int.from_bytes(packed[:8], "little")).to_bytes(8, "little") + changed[8:]
        answer = server.post("looks", changed)
        assert answer.status_code in (200, 400) and not server.files(), f"answered {answer.status_code}: {answer.text[:200]}"
    return f"answered {answer.status_code}"


def connections(folder: Path) -> str:
    """700 connections at once."""
    with running(folder) as server:
        crowd = [server.connect() for _ in range(700)]
        for connection in crowd:
            connection.close()
        for _ in range(50):
            if server.get("/health").status_code == 200:
                return "borne"
            time.sleep(0.2)
    raise AssertionError("the server did not recover")


def expect_continue(folder: Path) -> str:
    """A client that asks before it sends is refused without being asked for the body."""
    with running(folder) as server:
        answer = server.say(head("POST", "/v1/score/length", "Content-Length: 100000", "Expect: 100-continue", token=None))
    assert b"100 Continue" not in answer, "it was asked for the body"
    return expect_status(answer, 401)


def array(shape: list[Any], end: int = 0, dtype: str = "U8") -> dict[str, object]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}


BODIES: dict[str, tuple[Callable[[bytes], bytes], tuple[int, ...]]] = {
    "no bytes": (lambda _: b"", (400,)),
    "a pickle": (lambda _: b"\x80\x04\x95" + b"x" * 50, (400,)),
    "a header of 2^63 bytes": (lambda _: (2**63).to_bytes(8, "little") + b"{}", (400,)),
    "deep nesting": (message('{"protocol": 1, "value": ' + "[" * 100_000 + "]" * 100_000 + "}"), (400,)),
    "a number of 5,000 digits": (message('{"protocol": 1, "value": ' + "9" * 5000 + "}"), (400,)),
    "another type": (message({"$type": "os.system", "command": "true"}), (400,)),
    "a picture of 10^18 pixels that is not there": (message({}, {"a": array([10**9, 10**9, 3])}), (413,)),
    "a shape of text": (message({}, {"a": array(["x"])}), (400,)),
    "a negative shape": (message({"$image": "a"}, {"a": array([-1, 5])}), (400,)),
    "a picture without sides": (message({"$image": "a"}, {"a": array([0, 0, 3])}), (400,)),
    "a picture of seven channels": (message({"$image": "a"}, {"a": array([1, 1, 7], 7)}, b"\0" * 7), (400,)),
    "20,000 arrays": (message({}, {f"a{i}": array([0]) for i in range(20_000)}), (413,)),
    "an unknown dtype": (message({"$array": "a"}, {"a": array([2], 1, "F4")}, b"\0"), (400,)),
    "control characters": (message({"$type": "\x1b[2J\r\n\0"}), (400,)),
    "half a message": (lambda packed: packed[: len(packed) // 2], (400,)),
    "another protocol": (lambda packed: packed.replace(b'protocol\\": 1', b'protocol\\": 9'), (400,)),
    "ten thousand random bytes": (lambda packed: b"".join(hashlib.sha256(bytes([i])).digest() for i in range(250)) * 2, (400,)),
}
UNWANTED = {
    "without a token": ("POST", "/v1/score/length", None, (401,)),
    "with a wrong token": ("POST", "/v1/score/length", "wrong", (401,)),
    "to another path": ("POST", "/v1/elsewhere", TOKEN, (404,)),
    "to another path without a token": ("POST", "/", None, (404,)),
    "to a reward that is not served": ("POST", "/v1/score/nobody", TOKEN, (404,)),
    "by another method": ("PUT", "/v1/score/length", TOKEN, (405,)),
    "for a page that wants none": ("GET", "/health", None, (200,)),
    "for the metrics without a token": ("GET", "/metrics", None, (401,)),
    "with the token": ("POST", "/v1/score/length", TOKEN, (413,)),
}
CHUNKS = head("POST", "/v1/score/length", "Transfer-Encoding: chunked")
RAW = {
    "a TLS greeting": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 200 + b"\r\n\r\n", (400,)),
    "a line of 200 kB": (b"GET /" + b"a" * 200_000, (400,)),
    "headers of a megabyte": (b"GET / HTTP/1.1\r\n" + b"x-a: b\r\n" * 130_000, (400,)),
    "two lengths": (head("POST", "/v1/score/length", "Content-Length: 1", "Content-Length: 2"), (400,)),
    "a negative length": (head("POST", "/v1/score/length", "Content-Length: -1"), (400,)),
    "a length of 30 digits": (head("POST", "/v1/score/length", f"Content-Length: {'9' * 30}"), (400, 413)),
    "a chunk that is no number": (CHUNKS + b"zz\r\n", (400,)),
    "a chunk extension without an end": (CHUNKS + b"1;a=" + b"b" * 200_000, (400,)),
    "trailers without an end": (CHUNKS + b"1\r\n \r\n0\r\n" + b"x-a: b\r\n" * 30_000, (400,)),
    "a websocket": (head("GET", "/health", "Connection: upgrade, close", "Upgrade: websocket", "Sec-WebSocket-Key: x"), (200,)),
    "an unknown method": (head("BREW", "/v1/rewards", "Connection: close"), (405,)),
    "a path with control characters": (head("GET", "/%00%1b%5b2J%0d%0aX:%20y", "Connection: close"), (404,)),
    "a path that climbs": (head("GET", "/v1/score/../../../etc/passwd", "Connection: close"), (404,)),
}
HALF = head("POST", "/v1/score/length", "Content-Length: 100000")


def spec(text: str, words: tuple[str, ...], folder: Path, token: str = TOKEN) -> str:
    """A spec that cannot be meant: refused with the key, before anything says that it listens."""
    (folder / "mine.py").write_text(REWARDS)
    (folder / "spec.toml").write_text(text)
    ended = run_mmrl(["reward", "serve", "spec.toml"], folder, env={"MMRL_REWARD_TOKEN": token})
    assert "use =" not in ended.out and "tok-" not in ended.err, f"it said {ended.out + ended.err!r}"
    return expect_sentence(ended, *words)


def port_in_use(folder: Path) -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        return spec(f'port = {port}\n[[reward]]\nuse = "./mine.py:length"', (str(port), "another port"), folder)


ONE = '[[reward]]\nuse = "./mine.py:length"\n'
SPECS = {
    "port -1": (f"port = -1\n{ONE}", ("port", "-1")),
    "port 70000": (f"port = 70000\n{ONE}", ("port", "70000")),
    "a port that is true": (f"port = true\n{ONE}", ("port",)),
    "a port that is text": (f'port = "8500"\n{ONE}', ("port",)),
    "a port that is a fraction": (f"port = 85.5\n{ONE}", ("port",)),
    "a host that is a number": (f"host = 127\n{ONE}", ("host",)),
    "a host that is a list": (f"host = []\n{ONE}", ("host",)),
    "a host with a line end": (f'host = "127.0.0.1\\n"\n{ONE}', ("host",)),
    "a host of others": (f'host = "192.0.2.1"\nport = 0\n{ONE}', ("192.0.2.1",)),
    "max_body_mb = nan": (f"max_body_mb = nan\n{ONE}", ("max_body_mb",)),
    "max_body_mb = inf": (f"max_body_mb = inf\n{ONE}", ("max_body_mb",)),
    "max_body_mb = -1": (f"max_body_mb = -1\n{ONE}", ("max_body_mb",)),
    "max_body_mb that is text": (f'max_body_mb = "1"\n{ONE}', ("max_body_mb",)),
    "a million workers": (f"workers = 1000000\n{ONE}", ("workers is 1000000", "1 to 256")),
    "a trillion samples": (f"max_samples = 1000000000000\n{ONE}", ("max_samples is 1000000000000", "1 to 65536")),
    "workers = 0": (f"workers = 0\n{ONE}", ("workers",)),
    "max_samples = 1.5": (f"max_samples = 1.5\n{ONE}", ("max_samples",)),
    "a name with a slash": (f'{ONE}name = "a/b"', ("name", "a/b")),
    "a name with a quote": (f"{ONE}name = 'a\"b'", ("name",)),
    "a name that is a number": (f"{ONE}name = 5", ("name",)),
    "an empty name": (f'{ONE}name = ""', ("name",)),
    "a use that is a number": ("[[reward]]\nuse = 5", ("use",)),
    "rewards that are text": ('reward = "length"', ("reward is 'length'",)),
    "rewards that are numbers": ("reward = [1]", ("reward.0 is 1",)),
    "deep nesting": ("a = " + "[" * 5000 + "]" * 5000, ("not TOML",)),
    "a key that is unknown": (f"ports = 1\n{ONE}", ("ports", "port")),
}
ATTACKS = [
    *(
        Attack(
            "server", f"an endless body {name}{'' if chunked else ', of a length it says'}", partial(endless_body, *how, chunked)
        )
        for name, how in UNWANTED.items()
        for chunked in (True, False)
    ),
    *(Attack("server", name, partial(raw, data, codes)) for name, (data, codes) in RAW.items()),
    *(Attack("server", f"a message: {name}", partial(body, change, codes)) for name, (change, codes) in BODIES.items()),
    Attack("server", "silence and headers that drip", slow_headers),
    Attack("server", "senders that leave in the middle of a body", partial(aborted, HALF + b"x" * 500, 0.05)),
    Attack("server", "senders that leave in the middle of a chunk", partial(aborted, CHUNKS + b"ff\r\nabc", 0.05)),
    Attack("server", "senders that leave before the answer", partial(aborted, head("GET", "/v1/rewards"), 0.0)),
    Attack("server", "a flood of names", many_names),
    Attack("server", "words that are not the token", tokens),
    Attack("server", "one request id for different bodies", request_ids),
    Attack("server", "request ids of 50 kB", long_ids),
    Attack("server", "a picture that unfolds", picture_bomb),
    Attack("server", "a file whose ending is a path", odd_suffix),
    Attack("server", "a full disk", full_disk),
    Attack("server", "700 connections", connections),
    Attack("server", "a body that waits to be asked for", expect_continue),
    *(
        Attack("server", f"{signal.Signals(number).name} at work", partial(stop_while, number))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    ),
    *(
        Attack("server", f"a reward that {name.replace('_', ' ')}", partial(bad_reward, name))
        for name in ("leaves", "cancels", "interrupts", "is_huge", "leaves_the_loop", "interrupts_the_loop")
    ),
    *(Attack("server", f"a spec with {name}", partial(spec, *how)) for name, how in SPECS.items()),
    Attack("server", "a port in use", port_in_use),
    Attack("server", "listening to the world without a token", partial(spec, f'host = "0.0.0.0"\n{ONE}', ("token",), token="")),
    Attack("server", "a token of blanks", partial(spec, ONE, ("MMRL_REWARD_TOKEN",), token=" \n")),
    Attack("server", "a token with a line end inside", partial(spec, ONE, ("MMRL_REWARD_TOKEN",), token="tok-1\ntok-2")),
]
