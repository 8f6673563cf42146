"""A reward server that may be left running: unwanted bodies, slow senders, odd messages, its end, and what a spec may say."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from mmrl import Group
from mmrl.app.commands import serve
from mmrl.runtime.blame import RewardUnavailableError
from mmrl.runtime.net.loops import wait_for
from mmrl.serving import guard, reward_server, wire
from mmrl.serving.reward_client import RemoteReward
from mmrl.serving.reward_server import RequestCounts, RequestScorer, Served, ServerLimits
from tests.attacks._reward_server import REWARDS, expect_status, head, pour, read_all
from tests.attacks.server import BODIES, CHUNKS, HALF, RAW, TOKEN, UNWANTED
from tests.attacks.server_specs import ONE, SPECS
from tests.serving.test_reward_server import Counting, Pointwise, group_of, length, serving


def place(url: str) -> tuple[str, int]:
    host, port = url.removeprefix("http://").split(":")
    return host, int(port)


def connect(url: str) -> socket.socket:
    return socket.create_connection(place(url), timeout=60)


@pytest.mark.parametrize("chunked", [True, False])
def test_bodies_without_an_end_are_not_read_to_it(chunked: bool):
    with serving(ServerLimits(max_body_mb=1.0), TOKEN, length=length) as url:
        for method, path, token, codes in UNWANTED.values():
            pour(place(url), head(method, path, token=token), codes, chunked)
        assert httpx.get(f"{url}/health").status_code == 200


def test_a_body_that_waits_to_be_asked_for_is_not_asked_for():
    with serving(token=TOKEN, length=length) as url, connect(url) as sender:
        sender.sendall(head("POST", "/v1/score/length", "Content-Length: 100000", "Expect: 100-continue", token=None))
        answer = read_all(sender)
    assert answer.startswith(b"HTTP/1.1 401") and b"100 Continue" not in answer


def test_a_small_body_too_many_does_not_cost_the_answer():
    with serving(ServerLimits(max_body_mb=0.5), TOKEN, length=length) as url:
        for path, code in (("/v1/score/length", 413), ("/v1/score/nobody", 404), ("/elsewhere", 404)):
            found = httpx.post(url + path, content=b"\0" * 2**20, headers={"Authorization": f"Bearer {TOKEN}"})
            assert found.status_code == code, path


def test_headers_and_bodies_that_do_not_come_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guard, "HEADER_S", 0.2)
    monkeypatch.setattr(reward_server, "SILENCE_S", 0.2)
    monkeypatch.setattr(guard, "DRAIN_S", 0.1)
    with serving(token=TOKEN, length=length) as url:
        with connect(url) as silent, connect(url) as half:
            half.sendall(b"GET /health HTTP/1.1\r\nx-a:")
            assert read_all(silent) == b"" and read_all(half) == b""
        with connect(url) as body:
            body.sendall(HALF + b"abc")
            expect_status(read_all(body), 408)


def test_what_is_no_http_gets_one_answer():
    with serving(token=TOKEN, length=length) as url:
        for name, (data, codes) in RAW.items():
            assert expect_status(answer_to(url, data), *codes), name


def answer_to(url: str, data: bytes) -> bytes:
    """What comes back. A server that ends the connection amid a megabyte may reset it and lose the answer: it is sent again."""
    for _ in range(5):
        with connect(url) as sender:
            with suppress(ConnectionError):
                sender.sendall(data)
            if answer := read_all(sender):
                return answer
    raise AssertionError("five times no answer")


def test_a_message_that_is_none_is_the_senders_fault():
    with serving(ServerLimits(max_pixels=1_000_000), length=length) as url:
        for name, (change, codes) in BODIES.items():
            found = httpx.post(f"{url}/v1/score/length", content=change(wire.pack_group(group_of("abc"))))
            assert found.status_code in codes and "\n" not in found.text, (name, found.text[:300])


def test_senders_that_leave_are_one_sentence(caplog: pytest.LogCaptureFixture):
    with serving(token=TOKEN, length=length) as url:
        for data in (HALF + b"x" * 500, CHUNKS + b"ff\r\nabc"):
            with connect(url) as sender:
                sender.sendall(data)
                time.sleep(0.05)
        while caplog.text.count("the client left before its body was whole") < 2:
            time.sleep(0.01)
    assert "Traceback" not in caplog.text and "Exception" not in caplog.text


def test_a_fault_of_the_server_is_one_sentence(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture):
    with serving(length=length) as url:
        body = wire.pack_group(group_of("abc"))
        for error, code in ((OSError(28, "No space left on device"), 503), (AssertionError("odd"), 500)):

            def fail(*_: object, raised: Exception = error) -> None:
                raise raised

            with monkeypatch.context() as patched:
                patched.setattr(wire, "unpack_group", fail)
                found = httpx.post(f"{url}/v1/score/length", content=body, headers={"x-request-id": "7"})
            assert found.status_code == code and str(error) in found.text and ("retry-after" in found.headers) == (code == 503)
        # neither fault is remembered as the answer
        assert httpx.post(f"{url}/v1/score/length", content=body, headers={"x-request-id": "7"}).status_code == 200
    assert "Traceback" not in caplog.text


def test_a_request_id_means_the_same_body():
    counts = Counting()
    with serving(counts=counts) as url:
        for text in ("a", "bbb", "a"):
            found = httpx.post(f"{url}/v1/score/counts", content=wire.pack_group(group_of(text)), headers={"x-request-id": "7"})
            assert wire.unpack_reply(found.content).values == (float(len(text)),)
    assert counts.calls == 2


def test_metrics_are_labelled_with_what_is_served():
    with serving(ServerLimits(max_samples=1), length=length) as url:
        for name in ("x", "y%22%7d%201%0afake", "length"):
            httpx.post(f"{url}/v1/score/{name}", content=wire.pack_group(group_of("a", "b")))
            httpx.get(f"{url}/{name}")
        text = httpx.get(f"{url}/metrics").text
    assert sorted(re.findall(r"requests_total(\{.*)", text)) == ['{reward="",code="404"} 2', '{reward="length",code="413"} 1']
    meter = RequestCounts()
    meter.requests['a"\\\n', 200] += 1
    assert 'reward="a\\"\\\\\\n",code' in meter.text()


def test_a_token_needs_its_scheme():
    with serving(token=TOKEN, length=length) as url:
        for value, code in ((f"Bearer {TOKEN}", 200), (f"bearer {TOKEN}", 200), (TOKEN, 401), (f"Bearer {TOKEN}x", 401)):
            assert httpx.get(f"{url}/metrics", headers={"Authorization": value}).status_code == code, value


@pytest.mark.parametrize("leaves", [SystemExit(3), KeyboardInterrupt()])
def test_an_async_reward_that_leaves_does_not_end_the_loop_of_all(leaves: BaseException):
    async def exits(group: Group) -> list[float]:
        raise leaves

    async def goes_on(group: Group) -> list[float]:
        return length(group)

    for _ in range(2):
        reply = reward_server.answer(Served("exits", exits, ""), group_of("a"))
        assert type(leaves).__name__ in (reply.raised or "")
    assert wait_for(goes_on(group_of("ab"))) == [2.0]


def test_a_server_that_stops_answers_503(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guard, "STOP_S", 0)
    entered, gate, found = threading.Event(), threading.Event(), list[httpx.Response]()

    def waits(group: Group) -> list[float]:
        entered.set()
        gate.wait(60)
        return length(group)

    with serving(token=TOKEN, waits=waits) as url:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        body = wire.pack_group(group_of("abc"))
        post = threading.Thread(
            target=lambda: found.append(httpx.post(f"{url}/v1/score/waits", content=body, headers=headers, timeout=60))
        )
        post.start()
        entered.wait(60)
        dripping = connect(url)
        dripping.sendall(HALF.replace(b"length", b"waits") + b"abc")
        # a later request on another connection: the server has read the one above
        assert httpx.get(f"{url}/health").status_code == 200
    post.join()
    gate.set()
    with dripping:
        expect_status(read_all(dripping), 503)
    assert found[0].status_code == 503 and found[0].headers["retry-after"] == "1"


def test_the_end_of_the_server_removes_the_files_of_what_is_scored(tmp_path: Path):
    entered, gate, seen = threading.Event(), threading.Event(), list[Path]()
    (tmp_path / "a.bin").write_bytes(b"abc")

    def waits(group: Group) -> list[float]:
        seen.extend(Path(str(name)) for name in group.prompt.media)
        entered.set()
        gate.wait(60)
        return length(group)

    scorer = RequestScorer({}, ServerLimits())
    group = group_of("a")
    packed = wire.pack_group(Group(0, type(group.prompt)("p", media=(str(tmp_path / "a.bin"),)), group.samples))
    thread = threading.Thread(target=scorer._reply, args=(Served("waits", waits, ""), packed))
    thread.start()
    entered.wait(60)
    assert seen[0].exists() and scorer.close()
    assert not seen[0].parent.exists()
    gate.set()
    thread.join()
    assert not scorer.close()


def test_a_signal_ends_the_program_and_its_files(tmp_path: Path):
    """A reward that would score for a minute does not hold the end up."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "mine.py").write_text(REWARDS)
    (tmp_path / "spec.toml").write_text('port = 0\n[[reward]]\nuse = "./mine.py:slow"\n')
    code = "from pathlib import Path; from mmrl.serving import guard; from mmrl.app.commands.serve import serve; "
    code += "guard.STOP_S = 0; serve(Path('spec.toml'))"
    env = {**os.environ, "TMPDIR": str(tmp_path / "tmp")}
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=env) as server:
        assert server.stdout is not None
        url = server.stdout.readline().split('"')[1].rpartition("/")[0]
        found: list[int] = []
        body = wire.pack_group(Group(0, type(group_of().prompt)("p", media=(str(tmp_path / "mine.py"),)), group_of("a").samples))
        post = threading.Thread(target=lambda: found.append(httpx.post(f"{url}/v1/score/slow", content=body).status_code))
        post.start()
        while not list((tmp_path / "tmp").glob("mmrl-reward-*/*")):
            time.sleep(0.02)
        server.send_signal(signal.SIGTERM)
        assert server.wait() == 0
    post.join()
    assert found == [503] and not list((tmp_path / "tmp").glob("mmrl-reward-*"))


def test_a_request_above_the_servers_limit_is_not_sent():
    counts = Counting()
    with serving(ServerLimits(max_body_mb=0.01), counts=counts, pointwise=Pointwise()) as url:
        with pytest.raises(RewardUnavailableError, match=r"takes \d+ bytes, and the server at most 10485"):
            RemoteReward(f"{url}/counts").connect().score(group_of("a" * 20_000))
        long = ["a" * 3000 * i for i in range(1, 4)]
        assert RemoteReward(f"{url}/pointwise").connect().score(group_of(*long)) == [3000.0, 6000.0, 9000.0]
        assert 'code="413"' not in httpx.get(f"{url}/metrics").text
    assert counts.calls == 0


@pytest.mark.parametrize("kind", SPECS)
def test_a_spec_that_cannot_be_meant_is_refused(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    text, words = SPECS[kind]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(REWARDS)
    (tmp_path / "spec.toml").write_text(text)
    monkeypatch.setenv("MMRL_REWARD_TOKEN", TOKEN)
    with pytest.raises(ValueError) as refused:
        serve.serve(tmp_path / "spec.toml")
    assert all(word in str(refused.value) for word in words) and capsys.readouterr().out == ""


def test_it_listens_before_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(REWARDS)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        (tmp_path / "spec.toml").write_text(f"port = {port}\n{ONE}")
        with pytest.raises(ValueError, match=f"cannot listen on port {port}.*choose another port"):
            serve.serve(tmp_path / "spec.toml")
    assert capsys.readouterr().out == ""
    said: list[str] = []

    def look(application: object, listener: socket.socket, stop: Callable[[], None]) -> None:
        said.append(capsys.readouterr().out)
        socket.create_connection(listener.getsockname()).close()
        listener.close()

    monkeypatch.setattr(serve, "serve_until_stopped", look)
    serve.serve(tmp_path / "spec.toml", port=0)
    assert re.fullmatch(r'use = "http://127\.0\.0\.1:\d+/length"\n', said[0])


@pytest.mark.parametrize("token", [" \n", "tok-1\ntok-2", "tok-\x1b[2J"])
def test_a_token_that_is_none_is_refused_and_not_shown(token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(REWARDS)
    (tmp_path / "spec.toml").write_text(f"port = 0\n{ONE}")
    monkeypatch.setenv("MMRL_REWARD_TOKEN", token)
    with pytest.raises(ValueError, match="MMRL_REWARD_TOKEN") as refused:
        serve.serve(tmp_path / "spec.toml")
    assert "tok-" not in str(refused.value)
