"""Servers and engines that drip, never end, lie, repeat keys, think for long or are away: calls end, and none shows a key."""

import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest

from mmrl.core.samples import Scored
from mmrl.runtime.blame import RewardUnavailableError
from mmrl.runtime.net import fetch
from mmrl.runtime.net.fetch import LEAST_PAUSE_S, retry_delay
from mmrl.runtime.net.secrets import hide_in_json, read_secret
from mmrl.serving.judges import judge
from mmrl.serving.judges.judge import MOST_WAIT_S, AbsentError, Endpoint, JudgeError, Question, Reply, ask, ask_for_scores
from mmrl.serving.judges.verdicts import json_object
from mmrl.serving.reward_client import RemoteReward
from mmrl.training.stopping import AskedToStopError
from tests.attacks import engine
from tests.attacks.__main__ import carry_out
from tests.attacks.attack import Attack
from tests.attacks.client import ATTACKS, COMPLETION, REPLY, WRONG_ADDRESSES
from tests.serving.test_reward_server import group_of
from tests.support.ports import free_ports
from tests.support.rude_servers import RUDE, answers, in_turn, rude, without_pauses

PARTS = {
    "reward server: ": 41,
    "judge: ": 41,
    "painter: ": len(RUDE),
    "at the start": 10,
    "repeats the key": 36,
    "a key ": 6,
    "an address with ": len(WRONG_ADDRESSES),
}
ENGINE = {
    "completions: ": len(RUDE) + 8,
    "the weights' name: ": len(RUDE) + 8,
    "adapters: ": 13,
    "workers: ": 13,
    "facts: ": 13,
    "a pause: ": 8,
    "answer": len(engine.LIES) + 1,
    "teacher": len(engine.LIES_OF_TEACHERS) + 1,
}
"""Words in the names of attacks, and how many there are at least."""


@pytest.mark.parametrize(
    ("attacks", "words", "least"),
    [*((ATTACKS, *part) for part in PARTS.items()), *((engine.ATTACKS, *part) for part in ENGINE.items())],
    ids=[*PARTS, *(f"engine, {words}" for words in ENGINE)],
)
def test_attacks_on_clients_are_held(attacks: Sequence[Attack], words: str, least: int):
    chosen = [attack for attack in attacks if words in attack.name]
    assert len(chosen) >= least
    with ThreadPoolExecutor(len(chosen)) as pool:
        outcomes = list(pool.map(carry_out, chosen))
    assert [(attack.name, told) for attack, (held, told) in zip(chosen, outcomes, strict=True) if not held] == []


@pytest.mark.parametrize(
    ("call", "good"),
    [
        (lambda url: ask(Endpoint(url, "m"), [Question("x")])[0], COMPLETION),
        (lambda url: RemoteReward(f"{url}/length").score(group_of("abc")), REPLY),
    ],
    ids=["judge", "reward"],
)
def test_busy_servers_are_asked_again_a_second_later(call: Callable[[str], object], good: bytes, monkeypatch):
    pauses: list[float] = []
    monkeypatch.setattr(fetch, "time", without_pauses(pauses.append))
    busy = [answers(code, b"busy", "Retry-After: 0") for code in (502, 503, 504, 429)]
    with rude(in_turn(*busy, answers(200, good))) as server:
        outcome = call(server.url)
    assert not isinstance(outcome, Exception), outcome
    assert len(server.requests) == 5
    assert [pause >= LEAST_PAUSE_S for pause in pauses] == [True] * 4


@pytest.mark.parametrize("header", ["0", "-5", "0.001", "nan", "Thu, 01 Jan 1970 00:00:00 GMT"])
def test_no_server_is_asked_again_at_once(header: str):
    assert retry_delay(header, 0.1) == LEAST_PAUSE_S


def test_a_key_is_read_without_its_line_end(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("A_KEY", "  secret\r\n")
    assert read_secret("A_KEY") == "secret"
    monkeypatch.setenv("A_KEY", "")
    assert read_secret("A_KEY") is None
    monkeypatch.delenv("A_KEY")
    assert read_secret("A_KEY") is None
    assert hide_in_json({"secret": ["a secret", 1, None]}) == {"[the key]": ["a [the key]", 1, None]}


@pytest.mark.parametrize("times", [{"deadline_s": float("inf")}, {"timeout_s": float("nan")}, {"timeout_s": 0.0}])
def test_times_that_no_clock_knows_are_refused(times: dict[str, float]):
    with pytest.raises(ValueError, match=r"(deadline_s|timeout_s) is .*: it must be"):
        Endpoint(**times)  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=r"deadline_s is .*: it must be"):
        RemoteReward("http://127.0.0.1:9/a", deadline_s=next(iter(times.values())))


def test_a_judges_absurd_figures_are_one_error():
    usage = b'{"choices": [{"message": {"content": "5"}}], "usage": {"total_tokens": 1' + b"0" * 400 + b"}}"
    with rude(answers(200, usage)) as server:
        (outcome,) = ask(Endpoint(server.url, "m"), [Question("x")])
    assert isinstance(outcome, JudgeError) and "no chat completion" in str(outcome)
    with pytest.raises(JudgeError, match="no JSON object"):
        json_object(Reply("[" * 100_000))
    assert ask_for_scores(Endpoint(), [], lambda reply: Scored(1.0)) == []


LONG_S = 30.0
"""Answers are held so long at most; a test that holds does not wait for it."""


@pytest.fixture
def interrupted() -> Iterator[int]:
    """A signal that raises AskedToStopError in the main thread."""

    def leave(number: int, frame: object) -> None:
        raise AskedToStopError("SIGUSR1")

    before = signal.signal(signal.SIGUSR1, leave)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


def test_who_is_interrupted_leaves_at_once_and_asks_no_more(interrupted: int):
    left, asked, waited = threading.Event(), threading.Barrier(2, timeout=LONG_S), list[bool]()

    def think(connection: socket.socket, request: bytes) -> None:
        if asked.wait() == 0:
            signal.pthread_kill(threading.main_thread().ident or 0, interrupted)
        waited.append(left.wait(LONG_S))

    with rude(think) as server:
        with pytest.raises(AskedToStopError):
            ask(Endpoint(f"{server.url}/v1", "m", concurrency=2, retries=0), [Question(str(i)) for i in range(6)])
        assert not waited, "both questions were still open"
        left.set()
        for thread in [thread for thread in threading.enumerate() if thread.name.startswith("judge-")]:
            thread.join(LONG_S)
    assert len(server.requests) == 2


def test_a_judge_that_is_away_is_waited_for_longer_than_its_retries(monkeypatch: pytest.MonkeyPatch):
    """It begins to listen at the seventh pause, as vLLM once its model is loaded."""
    port, pauses = free_ports(1), list[float]()
    with ExitStack() as stack:

        def pause(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 7:
                stack.enter_context(rude(answers(200, COMPLETION), port))

        monkeypatch.setattr(fetch, "time", without_pauses(pause))
        [reply] = ask(Endpoint(f"http://127.0.0.1:{port}/v1", "m", retries=1), [Question("x")])
    assert isinstance(reply, Reply) and len(pauses) == 7 and max(pauses) <= MOST_WAIT_S


def test_a_judge_that_stays_away_fails_no_sample(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch):
    """Beyond the deadline the run stops, so that no step trains on what a dead judge left over."""
    monkeypatch.setattr(fetch, "time", without_pauses())
    monkeypatch.setattr(judge, "AWAITED", set[str]())
    away = Endpoint(f"http://127.0.0.1:{free_ports(1)}/v1", "m", deadline_s=MOST_WAIT_S)
    with pytest.raises(AbsentError, match=r"cannot be reached: .*: start it again"):
        ask_for_scores(away, [Question(str(i)) for i in range(20)], lambda _: Scored(1.0))
    assert issubclass(AbsentError, RewardUnavailableError)
    assert caplog.text.count("takes no connections: waiting up to") == 1
