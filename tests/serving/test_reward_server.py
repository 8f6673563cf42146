"""The reward server over real HTTP: equal to local scoring, limited, guarded, restartable."""

import asyncio
import math
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import httpx
import numpy as np
import pytest
from PIL import Image

from mmrl import Group, Prompt, Sample, Scored
from mmrl.runtime.blame import RewardUnavailableError
from mmrl.runtime.net.fetch import HttpResponse
from mmrl.serving import wire
from mmrl.serving.reward_client import RemoteReward, RemoteRewardError
from mmrl.serving.reward_server import Served, ServerLimits
from mmrl.serving.reward_server import serving as in_thread
from tests.support.ports import free_ports
from tests.support.refused import refused


def group_of(*texts: str, image: Any = None) -> Group:
    return Group(0, Prompt("p", "say it"), tuple(Sample(text, image=image) for text in texts))


def length(group: Group) -> list[float]:
    return [float(len(sample.text or "")) for sample in group.samples]


async def slow_length(group: Group) -> list[float]:
    await asyncio.sleep(0.01)
    return length(group)


@dataclass(frozen=True)
class Pointwise:
    """score = length."""

    pointwise: ClassVar[bool] = True

    def __call__(self, group: Group) -> list[float]:
        return length(group)


@dataclass
class Counting:
    """score = length, and how often it was asked."""

    calls: int = 0

    def __call__(self, group: Group) -> list[float]:
        self.calls += 1
        return length(group)


class Waiting:
    """score = length, once the gate is open, and what it was asked about."""

    def __init__(self) -> None:
        self.entered, self.gate, self.media = threading.Event(), threading.Event(), list[Path]()

    def __call__(self, group: Group) -> list[float]:
        self.media.extend(Path(str(name)) for name in group.prompt.media)
        self.entered.set()
        self.gate.wait(60)
        return length(group)


def odd(group: Group) -> Sequence[float | Scored | None]:
    return [None, math.nan, Scored(0.5, {"half": 0.5})]


def named(group: Group) -> Sequence[Mapping[str, float]]:
    return [{"right": 1.0, "short": 0.25}]


def broken(group: Group) -> list[float]:
    raise ZeroDivisionError("by design")


def short(group: Group) -> list[float]:
    return [1.0]


def brightness(group: Group) -> list[float]:
    return [float(np.asarray(sample.image).mean()) for sample in group.samples]


FUNCTIONS = {f.__name__: f for f in (length, slow_length, odd, named, broken, short, brightness)} | {
    "pointwise": Pointwise(),
    "text": lambda group: "12",
    "set": lambda group: {1.0, 2.0},
    "endless": lambda group: count(),
}


def serving(
    limits: ServerLimits = ServerLimits(), token: str | None = None, **functions: Callable[[Group], Any]
) -> AbstractContextManager[str]:
    """A server in a thread: its base URL."""
    served = {name: Served(name, function, "f1") for name, function in (functions or FUNCTIONS).items()}
    return in_thread(served, limits, token)


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    with serving() as url:
        yield url


def test_served_and_local_scores_are_equal(base: str):
    group = group_of("a", "bcd", "")
    for name in ("length", "slow_length", "pointwise"):
        remote = RemoteReward(f"{base}/{name}").connect()
        assert remote.score(group) == length(group)
        assert asyncio.run(remote(group)) == length(group)


def test_pixels_arrive_and_none_nan_and_parts_come_back_as_the_reward_gave_them(base: str):
    first, second, third = RemoteReward(f"{base}/odd").score(group_of("a", "b", "c"))
    assert first is None
    assert isinstance(second, float) and math.isnan(second)
    assert third == Scored(0.5, {"half": 0.5})
    assert RemoteReward(f"{base}/named").score(group_of("a")) == [Scored(1.25, {"right": 1.0, "short": 0.25})]
    image = Image.fromarray(np.full((6, 9, 3), 77, np.uint8))
    assert RemoteReward(f"{base}/brightness").score(group_of("a", image=image)) == [77.0]


def test_a_reward_that_raises_or_changes_is_told_from_a_broken_server(base: str):
    refused("ZeroDivisionError: by design", RemoteReward(f"{base}/broken").score, group_of("a"), error=RemoteRewardError)
    refused("answered 1 values for 2 samples", RemoteReward(f"{base}/short").score, group_of("a", "b"), error=RemoteRewardError)
    for name, said in {"text": "answered str", "set": "answered set", "endless": "answered more than 2 values"}.items():
        refused(said, RemoteReward(f"{base}/{name}").score, group_of("a", "b"), error=RemoteRewardError)
    remote = replace(RemoteReward(f"{base}/length").connect(), fingerprint="another")
    refused("now serves another version", remote.score, group_of("a"), error=RewardUnavailableError)


def test_wrong_names_and_nobody_there_are_refused_before_training(base: str):
    refused(r"does not serve 'lenght', only length, slow_length", RemoteReward(f"{base}/lenght").connect)
    refused("write http://host:port/name", RemoteReward, base)
    refused(r"does not answer .*is it running", RemoteReward(f"http://127.0.0.1:{free_ports(1)}/length").connect, wait_s=0.2)


def test_another_protocol_pickles_and_garbage_are_refused(base: str, monkeypatch: pytest.MonkeyPatch):
    body = wire.pack_group(group_of("a")).replace(b'protocol\\": 1', b'protocol\\": 9')
    response = httpx.post(f"{base}/v1/score/length", content=body)
    assert response.status_code == 400 and "protocol 9, this side 1" in response.text
    monkeypatch.setattr(RemoteReward, "_request", lambda *_: HttpResponse(200, {}, b'{"protocol": 9}'))
    refused("speaks protocol 9, this mmrl 1: install the same version", RemoteReward(f"{base}/length").connect)
    for body in (pickle.dumps({"a": 1}), b"", b"garbage" * 10):
        response = httpx.post(f"{base}/v1/score/length", content=body)
        assert response.status_code == 400
        assert "the body is" in response.text


def test_limits_answer_413_with_the_limit_and_a_pointwise_group_is_cut_and_joined_in_order(base: str):
    image = Image.fromarray(np.zeros((64, 64, 3), np.uint8))
    with serving(ServerLimits(max_body_mb=0.01, max_pixels=100, max_samples=2)) as url:
        large = httpx.post(f"{url}/v1/score/length", content=b"x" * 20_000)
        assert (large.status_code, large.text) == (413, "the body is above the limit max_body_mb = 0.01")
        small = Image.fromarray(np.zeros((20, 20, 3), np.uint8))
        pixels = httpx.post(f"{url}/v1/score/brightness", content=wire.pack_group(group_of("a", image=small)))
        assert pixels.status_code == 413 and "max_pixels = 100" in pixels.text
        with pytest.raises(RewardUnavailableError, match=r"refuses a group of 3 samples: .*max_samples = 2.*group_size"):
            RemoteReward(f"{url}/length").score(group_of("a", "b", "c"))
        refused("max_body_mb", RemoteReward(f"{url}/brightness").score, group_of("a", image=image), error=RewardUnavailableError)
    with serving(ServerLimits(max_samples=2), pointwise=Pointwise()) as url:
        remote = RemoteReward(f"{url}/pointwise").connect()
        assert remote.score(group_of("a", "bb", "ccc", "dddd", "eeeee")) == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_a_full_server_says_when_to_come_back_and_the_client_does():
    waits = Waiting()
    with serving(ServerLimits(max_waiting=1), waits=waits) as url, ThreadPoolExecutor(2) as pool:
        remote = RemoteReward(f"{url}/waits")
        first = pool.submit(remote.score, group_of("abc"))
        while "mmrl_waiting 1" not in httpx.get(f"{url}/metrics").text:
            time.sleep(0.005)
        full = httpx.post(f"{url}/v1/score/waits", content=wire.pack_group(group_of("a")))
        assert (full.status_code, full.headers["retry-after"]) == (503, "1")
        second = pool.submit(remote.score, group_of("abc"))
        waits.gate.set()
        assert first.result() == second.result() == [3.0]


def test_metrics_count_requests_samples_and_failures():
    with serving() as url:
        RemoteReward(f"{url}/length").score(group_of("a", "b"))
        with pytest.raises(RemoteRewardError):
            RemoteReward(f"{url}/broken").score(group_of("a"))
        text = httpx.get(f"{url}/metrics").text
    assert 'mmrl_requests_total{reward="length",code="200"} 1' in text
    assert 'mmrl_samples_total{reward="length"} 2' in text
    assert 'mmrl_failed_samples_total{reward="broken"} 1' in text


def test_the_token_and_its_scheme_are_wanted_everywhere_but_for_health(monkeypatch: pytest.MonkeyPatch):
    routes = [("GET", "/v1/rewards"), ("GET", "/metrics"), ("POST", "/v1/score/length"), ("POST", "/v1/score/nobody")]
    with serving(token="secret", length=length) as url:
        for value in (None, "Bearer wrong", "Basic secret", "secret", "Bearer secretx"):
            for method, path in routes:
                given, content = {"Authorization": value} if value else {}, b"x" if method == "POST" else None
                found = httpx.request(method, url + path, headers=given, content=content)
                assert found.status_code == 401, (method, path, value)
        for value in ("Bearer secret", "bearer secret"):
            assert httpx.get(f"{url}/metrics", headers={"Authorization": value}).status_code == 200, value
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}
        assert [httpx.get(url + path).status_code for path in ("/docs", "/redoc", "/openapi.json")] == [404] * 3
        refused(r"401.*token is missing or wrong", RemoteReward(f"{url}/length").connect)
        monkeypatch.setenv("MMRL_REWARD_TOKEN", "secret")
        assert RemoteReward(f"{url}/length").connect().score(group_of("ab")) == [2.0]


def test_a_request_id_means_one_body_of_one_reward():
    """A repeated request is scored once."""
    counts = Counting()
    asked = [
        ("counts", "a", 1.0, 1),
        ("counts", "a", 1.0, 1),
        ("counts", "bbb", 3.0, 2),
        ("counts", "a", 1.0, 2),
        ("odd", "a", 0.0, 2),
    ]
    with serving(counts=counts, odd=lambda group: [0.0]) as url:
        for name, text, value, calls in asked:
            packed = wire.pack_group(group_of(text))
            found = httpx.post(f"{url}/v1/score/{name}", content=packed, headers={"x-request-id": "7"})
            assert (wire.unpack_reply(found.content).values, counts.calls) == ((value,), calls), (name, text)
