"""Abuse that a reward server and its client bear: bombs, endless bodies, foreign servers, silence, proxies, exits."""

import asyncio
import io
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from PIL import Image

from mmrl import Group, Prompt, Sample
from mmrl.answers.boxes.box import Box
from mmrl.answers.spans.interval import Interval
from mmrl.runtime.blame import RewardUnavailableError
from mmrl.serving import wire
from mmrl.serving.reward_client import RemoteReward, RemoteRewardError
from mmrl.serving.reward_server import ServerLimits
from tests.serving.test_reward_server import group_of, length, serving
from tests.support.rude_servers import answers, hears_nothing, rude


def post(url: str, group: Group, **headers: str) -> httpx.Response:
    return httpx.post(url, content=wire.pack_group(group), headers=headers)


def test_a_small_file_that_unfolds_to_a_huge_picture_is_refused(tmp_path: Path):
    bomb = tmp_path / "bomb.png"
    Image.new("1", (3000, 3000)).save(bomb)
    assert bomb.stat().st_size < 5000
    with serving(ServerLimits(max_pixels=1_000_000), length=length) as url:
        found = post(f"{url}/v1/score/length", Group(0, Prompt("p", media=(str(bomb),)), (Sample("a"),)))
        assert found.status_code == 413 and "9000000 pixels" in found.text
        grey = post(f"{url}/v1/score/length", group_of("a", image=Image.new("L", (1001, 1000))))
        assert grey.status_code == 413 and "1001000 pixels" in grey.text
        assert post(f"{url}/v1/score/length", group_of("a", image=Image.new("L", (1000, 1000)))).status_code == 200


def test_a_body_that_does_not_say_its_length_has_the_same_limit():
    with serving(ServerLimits(max_body_mb=1.0), length=length) as url:
        chunked = httpx.post(f"{url}/v1/score/length", content=(b"\0" * 2**18 for _ in range(20)))
        assert chunked.status_code == 413 and "max_body_mb = 1" in chunked.text
        assert "transfer-encoding" in chunked.request.headers
        assert post(f"{url}/v1/score/length", group_of("abc")).status_code == 200


def test_malformed_headers_are_the_senders_fault():
    body = wire.pack_group(group_of("a")).replace(b'"__metadata__"', b'"x":5,"__metadata__"')
    body = len(body[8:]).to_bytes(8, "little") + body[8:]
    with serving(length=length) as url:
        assert httpx.post(f"{url}/v1/score/length", content=body).status_code == 400


def test_an_array_of_more_numbers_than_can_be_written_is_the_senders_fault():
    """Each side may be read as JSON; their product has more digits than Python turns into a text."""
    plain = wire.pack_group(group_of("a", image=Image.new("L", (3, 2))))
    body = plain.replace(b"[2,3]", b"[" + b"9" * 4000 + b"," + b"9" * 4000 + b"]")
    assert body != plain
    body = (int.from_bytes(body[:8], "little") + len(body) - len(plain)).to_bytes(8, "little") + body[8:]
    with serving(length=length) as url:
        found = httpx.post(f"{url}/v1/score/length", content=body)
        assert (found.status_code, found.text.partition(":")[0]) == (400, "the body is no safetensors buffer")
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


def test_every_route_but_health_wants_the_token():
    with serving(token="secret", length=length) as url:
        routes = [("GET", "/v1/rewards"), ("GET", "/metrics"), ("POST", "/v1/score/length"), ("POST", "/v1/score/nobody")]
        for method, path in routes:
            for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}):
                found = httpx.request(method, url + path, headers=given, content=b"x" if method == "POST" else None)
                assert found.status_code == 401, (method, path, given)
        for path in ("/docs", "/redoc", "/openapi.json"):
            assert httpx.get(url + path).status_code == 404


def test_one_request_id_does_not_fetch_another_rewards_answer():
    def twice(group: Group) -> list[float]:
        return [2 * x for x in length(group)]

    with serving(length=length, twice=twice) as url:
        replies = [post(f"{url}/v1/score/{name}", group_of("abc"), **{"x-request-id": "7"}) for name in ("length", "twice")]
    assert [wire.unpack_reply(reply.content).values for reply in replies] == [(3.0,), (6.0,)]


def test_async_rewards_keep_one_loop_on_the_server_too():
    """Flow-Factory calls asyncio.run per batch: a semaphore made once is then bound to a loop that is gone."""
    limit = asyncio.Semaphore(1)

    async def limited(group: Group) -> list[float]:
        async with limit:
            await asyncio.sleep(0.02)
        return length(group)

    with serving(ServerLimits(workers=4), limited=limited) as url, ThreadPoolExecutor(4) as pool:
        remote = RemoteReward(f"{url}/limited")
        assert list(pool.map(remote.score, [group_of("a" * i) for i in range(8)])) == [[float(i)] for i in range(8)]


def test_one_worker_calls_a_reward_from_one_thread_at_a_time():
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
        (302, b"", "answered 302"),
    ],
)
def test_other_servers_are_told_before_training(code: int, body: bytes, message: str):
    with rude(answers(code, body)) as server, pytest.raises(ValueError, match=message):
        RemoteReward(f"{server.url}/length").connect(wait_s=2.0)


def test_nonsense_in_the_middle_of_a_run_is_a_failure_and_no_score():
    said = answers(200, b"<html>Maintenance</html>")
    with rude(said) as server, pytest.raises(RemoteRewardError, match="no reply of a reward server"):
        RemoteReward(f"{server.url}/length").score(group_of("a"))


def test_a_server_that_stays_silent_is_given_up_in_time():
    with rude(hears_nothing) as server:
        with pytest.raises(ValueError, match="does not answer"):
            RemoteReward(f"{server.url}/length").connect(wait_s=0.3)
        with pytest.raises(RewardUnavailableError, match="does not answer"):
            RemoteReward(f"{server.url}/length", deadline_s=0.3).score(group_of("a"))


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with serving(length=length) as url:
        assert RemoteReward(f"{url}/length").connect(wait_s=1.0).score(group_of("ab")) == [2.0]


def test_files_of_a_request_are_gone_afterwards(tmp_path: Path):
    seen: list[str] = []

    def looks(group: Group) -> list[float]:
        seen.extend(map(str, group.prompt.media))
        return [float(Path(name).stat().st_size) for name in group.prompt.media]

    file, buffer = tmp_path / "a.png", io.BytesIO()
    Image.new("RGB", (4, 4)).save(buffer, "PNG")
    file.write_bytes(buffer.getvalue())
    with serving(looks=looks) as url:
        found = RemoteReward(f"{url}/looks").score(Group(0, Prompt("p", media=(str(file),)), (Sample("a"),)))
    assert found == [float(len(buffer.getvalue()))]
    assert seen[0] != str(file) and not os.path.exists(seen[0])
