"""A reward server that may be left running, and its client: bombs, bodies nobody wants, slow senders, odd messages, its end."""

import asyncio
import os
import re
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from PIL import Image

from mmrl import Group, Prompt, Sample
from mmrl.answers.boxes.box import Box
from mmrl.answers.spans.interval import Interval
from mmrl.runtime.blame import RewardUnavailableError
from mmrl.runtime.net.loops import wait_for
from mmrl.serving import guard, reward_server, wire
from mmrl.serving.reward_client import RemoteReward, RemoteRewardError
from mmrl.serving.reward_server import RequestCounts, RequestScorer, Served, ServerLimits
from tests.attacks._reward_server import expect_status, head, pour, read_all
from tests.attacks.server import BODIES, CHUNKS, HALF, RAW, TOKEN, UNWANTED
from tests.serving.test_reward_server import Counting, Pointwise, Waiting, group_of, length, serving
from tests.support.rude_servers import answers, rude


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


def test_bodies_that_nobody_wants_are_not_asked_for_and_small_ones_do_not_cost_the_answer():
    with serving(token=TOKEN, length=length) as url, connect(url) as sender:
        sender.sendall(head("POST", "/v1/score/length", "Content-Length: 100000", "Expect: 100-continue", token=None))
        answer = read_all(sender)
    assert answer.startswith(b"HTTP/1.1 401") and b"100 Continue" not in answer
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
        monkeypatch.setattr(guard, "HEADER_S", 60.0)
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
    waits, pool = Waiting(), ThreadPoolExecutor(1)
    with serving(token=TOKEN, waits=waits) as url:
        asked = pool.submit(post, f"{url}/v1/score/waits", group_of("abc"), Authorization=f"Bearer {TOKEN}")
        waits.entered.wait(60)
        dripping = connect(url)
        dripping.sendall(HALF.replace(b"length", b"waits") + b"abc")
        # a later request on another connection: the server has read the one above
        assert httpx.get(f"{url}/health").status_code == 200
    found = asked.result()
    waits.gate.set()
    with dripping:
        expect_status(read_all(dripping), 503)
    assert found.status_code == 503 and found.headers["retry-after"] == "1"


def test_the_end_of_the_server_removes_the_files_of_what_is_scored(tmp_path: Path):
    (tmp_path / "a.bin").write_bytes(b"abc")
    waits, scorer = Waiting(), RequestScorer({}, ServerLimits())
    packed = wire.pack_group(Group(0, Prompt("p", media=(str(tmp_path / "a.bin"),)), (Sample("a"),)))
    with ThreadPoolExecutor(1) as pool:
        pool.submit(scorer._reply, Served("waits", waits, ""), packed)
        waits.entered.wait(60)
        assert waits.media[0].exists() and scorer.close()
        assert not waits.media[0].parent.exists()
        waits.gate.set()
    assert not scorer.close()


def test_a_request_above_the_servers_limit_is_not_sent():
    counts = Counting()
    with serving(ServerLimits(max_body_mb=0.01), counts=counts, pointwise=Pointwise()) as url:
        with pytest.raises(RewardUnavailableError, match=r"takes \d+ bytes, and the server at most 10485"):
            RemoteReward(f"{url}/counts").connect().score(group_of("a" * 20_000))
        long = ["a" * 3000 * i for i in range(1, 4)]
        assert RemoteReward(f"{url}/pointwise").connect().score(group_of(*long)) == [3000.0, 6000.0, 9000.0]
        assert 'code="413"' not in httpx.get(f"{url}/metrics").text
    assert counts.calls == 0


def post(url: str, group: Group, **headers: str) -> httpx.Response:
    return httpx.post(url, content=wire.pack_group(group), headers=headers, timeout=60)


def test_small_files_that_unfold_and_bodies_without_a_length_have_the_same_limits(tmp_path: Path):
    bomb = tmp_path / "bomb.png"
    Image.new("1", (3000, 3000)).save(bomb)
    assert bomb.stat().st_size < 5000
    with serving(ServerLimits(max_pixels=1_000_000), length=length) as url:
        found = post(f"{url}/v1/score/length", Group(0, Prompt("p", media=(str(bomb),)), (Sample("a"),)))
        assert found.status_code == 413 and "9000000 pixels" in found.text
        grey = post(f"{url}/v1/score/length", group_of("a", image=Image.new("L", (1001, 1000))))
        assert grey.status_code == 413 and "1001000 pixels" in grey.text
        assert post(f"{url}/v1/score/length", group_of("a", image=Image.new("L", (1000, 1000)))).status_code == 200
    with serving(ServerLimits(max_body_mb=1.0), length=length) as url:
        chunked = httpx.post(f"{url}/v1/score/length", content=(b"\0" * 2**18 for _ in range(20)))
        assert chunked.status_code == 413 and "max_body_mb = 1" in chunked.text
        assert "transfer-encoding" in chunked.request.headers
        assert post(f"{url}/v1/score/length", group_of("abc")).status_code == 200


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"__metadata__"', b'"x":5,"__metadata__"', ""),
        (b"[2,3]", b"[" + b"9" * 4000 + b"," + b"9" * 4000 + b"]", "the body is no safetensors buffer:"),
    ],
    ids=["an entry that is a number", "sides whose product has more digits than Python turns into a text"],
)
def test_malformed_headers_are_the_senders_fault(old: bytes, new: bytes, said: str):
    plain = wire.pack_group(group_of("a", image=Image.new("L", (3, 2))))
    body = plain.replace(old, new)
    assert body != plain
    body = (int.from_bytes(body[:8], "little") + len(body) - len(plain)).to_bytes(8, "little") + body[8:]
    with serving(length=length) as url:
        found = httpx.post(f"{url}/v1/score/length", content=body)
        assert found.status_code == 400 and found.text.startswith(said)
        assert post(f"{url}/v1/score/length", group_of("abc")).status_code == 200


def test_boxes_and_spans_in_a_request_import_nothing():
    """A server has what it needs before the first request comes, and no torch."""
    body = wire.pack_group(Group(0, Prompt("p", answer=(Box(0, 0, 1, 1), Interval(0, 1))), (Sample("a"),)))
    code = """
import sys
from pathlib import Path
from mmrl.serving import reward_server, wire
before = set(sys.modules)
print(wire.unpack_group(sys.stdin.buffer.read(), Path(".")).prompt.answer[0].area)
new = {name for name in set(sys.modules) - before if not name.startswith("safetensors")}
print(sorted(new & {"torch", "torchvision", "transformers", "jaxtyping"}), "torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", code], input=body, capture_output=True, check=True)
    assert done.stdout.decode().split("\n")[:2] == ["1.0", "[] False"]


def test_one_worker_calls_a_reward_from_one_thread_and_async_rewards_keep_one_loop():
    """Flow-Factory calls asyncio.run per batch: a semaphore made once is then bound to a loop that is gone."""
    inside, most = [], []

    def unsafe(group: Group) -> list[float]:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.01)
        inside.pop()
        return length(group)

    with serving(unsafe=unsafe) as url, ThreadPoolExecutor(4) as pool:
        list(pool.map(RemoteReward(f"{url}/unsafe").score, [group_of("a")] * 8))
    assert len(most) == 8 and max(most) == 1
    limit = asyncio.Semaphore(1)

    async def limited(group: Group) -> list[float]:
        async with limit:
            await asyncio.sleep(0.02)
        return length(group)

    with serving(ServerLimits(workers=4), limited=limited) as url, ThreadPoolExecutor(4) as pool:
        remote = RemoteReward(f"{url}/limited")
        assert list(pool.map(remote.score, [group_of("a" * i) for i in range(8)])) == [[float(i)] for i in range(8)]


def test_a_reward_that_exits_does_not_end_the_server():
    def leaves(group: Group) -> list[float]:
        sys.exit(3)

    with serving(leaves=leaves, length=length) as url:
        with pytest.raises(RemoteRewardError, match="SystemExit: 3"):
            RemoteReward(f"{url}/leaves").score(group_of("a"))
        assert RemoteReward(f"{url}/length").score(group_of("ab")) == [2.0]


@pytest.mark.parametrize(
    ("code", "body", "message"),
    [
        (200, b"<html>Welcome</html>", "is no reward server: it answered 200 with '<html>Welcome"),
        (200, b"[1, 2]", "is no reward server"),
        (404, b"not found", "answered 404: not found.*is the address right"),
        (500, b"oops", "answered 500: oops.*is the address right"),
        (302, b"moved", "answered 302: moved https://here/.*is the address right"),
    ],
)
def test_other_servers_are_told_before_training(code: int, body: bytes, message: str):
    with rude(answers(code, body, "Location: https://here/")) as server, pytest.raises(ValueError, match=message):
        RemoteReward(f"{server.url}/length").connect(wait_s=60.0)


def test_servers_that_talk_nonsense_amid_a_run_are_failures_and_no_scores():
    said = answers(200, b"<html>Maintenance</html>")
    with rude(said) as server, pytest.raises(RemoteRewardError, match="no reply of a reward server"):
        RemoteReward(f"{server.url}/length").score(group_of("a"))


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with serving(length=length) as url:
        assert RemoteReward(f"{url}/length").connect(wait_s=60.0).score(group_of("ab")) == [2.0]


def test_files_of_a_request_are_gone_afterwards(tmp_path: Path):
    seen: list[str] = []

    def looks(group: Group) -> list[float]:
        seen.extend(map(str, group.prompt.media))
        return [float(Path(name).stat().st_size) for name in group.prompt.media]

    file = tmp_path / "a.png"
    Image.new("RGB", (4, 4)).save(file)
    with serving(looks=looks) as url:
        found = RemoteReward(f"{url}/looks").score(Group(0, Prompt("p", media=(str(file),)), (Sample("a"),)))
    assert found == [float(file.stat().st_size)]
    assert seen[0] != str(file) and not os.path.exists(seen[0])
