"""Attacks on those who call servers: the client of reward servers, and judges. Raw sockets on this machine do the harm."""

import io
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pytest import MonkeyPatch

from mmrl import Group, Prompt, Sample
from mmrl.core.samples import Status
from mmrl.engine.wire.client import EngineDownError
from mmrl.engine.wire.completions import EngineMismatchError
from mmrl.runtime.blame import RewardUnavailableError
from mmrl.serving import wire
from mmrl.serving.judges import judge
from mmrl.serving.judges.judge import Endpoint, JudgeError, Question
from mmrl.serving.reward_client import RemoteReward, RemoteRewardError
from mmrl.serving.scorers.painting import ImagesServer, ServedPainter
from tests.attacks.attack import LONGEST_MESSAGE, Attack, expect_clean
from tests.support.rude_servers import RUDE, Script, answers, echoes, hears_nothing, in_turn, rude

DEADLINE_S = 0.6
LATE_S = 45.0
"""A call that is not over by then is not over because of its deadline, however busy the machine is."""
KEY = "sk-0123456789abcdefghijklmnop"
Call = Callable[[str], object]
ERRORS = (JudgeError, RemoteRewardError, RewardUnavailableError, EngineDownError, EngineMismatchError, ValueError)


def score(url: str, deadline_s: float = DEADLINE_S) -> object:
    """Score a group on a reward server."""
    reward = RemoteReward(f"{url}/length", deadline_s, token_env="ATTACK_KEY")
    return reward.score(Group(0, Prompt("p"), (Sample("abc"),)))


def connect(url: str) -> object:
    """Ask a reward server what it serves."""
    return RemoteReward(f"{url}/length", token_env="ATTACK_KEY").connect(DEADLINE_S)


def ask(url: str, deadline_s: float = DEADLINE_S) -> object:
    """Ask a judge."""
    (outcome,) = judge.ask(Endpoint(url, "m", "ATTACK_KEY", deadline_s=deadline_s), [Question("x")])
    if isinstance(outcome, JudgeError):
        raise outcome
    return outcome


def draw(url: str, deadline_s: float = DEADLINE_S) -> object:
    """Ask a server that draws."""
    server = ImagesServer(url, "m", "ATTACK_KEY", deadline_s=deadline_s)
    (made,) = ServedPainter(server, None, None).draw([(Prompt("p", "x"), 0)])
    if isinstance(made, Exception):
        raise made
    return made


def first_model(url: str) -> object:
    """Ask a judge which models it has."""
    return judge.first_model(Endpoint(url, api_key_env="ATTACK_KEY"), time.monotonic() + DEADLINE_S)


os.environ.setdefault("ATTACK_KEY", KEY)


def outcome_of(call: Callable[[], object]) -> Exception | object:
    """What a call returns or raises; AssertionError if it is not over in time."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:  # noqa: BLE001 - what is raised is the outcome
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(LATE_S)
    assert found, f"the call was not over after {LATE_S:g} s, with a deadline of {DEADLINE_S:g} s"
    return found[0]


def expect_error(outcome: object) -> str:
    """Expect one of the errors that are promised, as a clean sentence without the key."""
    assert isinstance(outcome, ERRORS), f"the outcome is {outcome!r}"
    message = str(outcome)
    expect_clean(message)
    assert KEY not in message and len(message) <= LONGEST_MESSAGE and message, f"the message is {message[:300]!r}"
    return type(outcome).__name__


def withstand(call: Call, script: Script, folder: Path) -> str:
    with rude(script) as server:
        return expect_error(outcome_of(lambda: call(server.url)))


@contextmanager
def overheard() -> Iterator[io.StringIO]:
    """All that is logged meanwhile where somebody wants to see everything."""
    heard, root = io.StringIO(), logging.getLogger()
    handler, level = logging.StreamHandler(heard), root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield heard
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def keep_quiet(call: Callable[[str, float], object], script: Script, folder: Path) -> str:
    """Messages and logs never hold the key, whatever the server says. Longer deadlines are for machines that are busy."""
    for deadline_s in (DEADLINE_S, LATE_S / 3):
        with rude(script) as server, overheard() as heard:
            outcome = outcome_of(partial(call, server.url, deadline_s))
            seen = b"".join(server.requests)
        assert KEY not in f"{outcome} {outcome!r} {heard.getvalue()}", "the key was shown"
        if KEY.encode() in seen:
            return "not shown"
    raise AssertionError("the key was not sent at all")


def wrong_key(value: str, folder: Path) -> str:
    """A key that no header can carry is refused where it is read, without being shown."""
    name = f"ATTACK_KEY_{abs(hash(value))}"
    with MonkeyPatch.context() as patch:
        patch.setenv(name, value)
        for make in (
            lambda: Endpoint("http://127.0.0.1:9/v1", "m", name),
            lambda: RemoteReward("http://127.0.0.1:9/length", token_env=name),
        ):
            outcome = outcome_of(make)
            assert isinstance(outcome, ValueError) and "sk-" not in str(outcome) and name in str(outcome), (
                f"the outcome is {outcome!r}"
            )
    return "refused"


def stripped_key(folder: Path) -> str:
    with rude(answers(400, b"no")) as server, MonkeyPatch.context() as patch:
        patch.setenv("ATTACK_KEY_LINE", f" {KEY}\r\n")
        outcome_of(lambda: judge.ask(Endpoint(server.url, "m", "ATTACK_KEY_LINE", retries=0), [Question("x")]))
        (request,) = server.requests
    assert f"Bearer {KEY}\r\n".encode() in request, "the key was not sent as it is"
    return "sent without the line end"


def wrong_address(url: str, folder: Path) -> str:
    for make in (lambda: Endpoint(url, "m"), lambda: RemoteReward(f"{url}/length")):
        outcome = outcome_of(make)
        assert isinstance(outcome, ValueError) and "hunter2" not in str(outcome) and str(outcome).isprintable(), (
            f"the outcome is {outcome!r}"
        )
    return "refused"


def recover(call: Callable[[str, float], object], status: int, good: bytes, folder: Path) -> str:
    """One bad answer, then a good one: asked again, not sooner than a second later."""
    with rude(in_turn(answers(status, b"busy", "Retry-After: 0"), answers(200, good))) as server:
        outcome = outcome_of(lambda: call(server.url, LATE_S / 2))
        times = server.times
    assert not isinstance(outcome, Exception) and len(times) == 2, f"the outcome is {outcome!r} after {len(times)} requests"
    assert times[1] - times[0] >= 1.0, f"asked again after {times[1] - times[0]:.2f} s"
    return "asked again after a second"


def large_request(folder: Path) -> str:
    """A request that nobody reads."""

    def full(url: str) -> object:
        return RemoteReward(f"{url}/length", DEADLINE_S, "ATTACK_KEY").score(Group(0, Prompt("p"), (Sample("a" * 2**25),)))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        return expect_error(outcome_of(lambda: full(f"http://127.0.0.1:{listener.getsockname()[1]}")))


def many_at_once(folder: Path) -> str:
    """Forty questions to a server that is silent are over together."""
    with rude(hears_nothing) as server:
        endpoint = Endpoint(server.url, "m", deadline_s=DEADLINE_S, concurrency=8)
        outcome = outcome_of(lambda: judge.ask(endpoint, [Question("x")] * 40))
    assert isinstance(outcome, list) and all(isinstance(one, JudgeError) for one in outcome), f"the outcome is {outcome!r}"
    return "40 errors"


REPLY = wire.pack_reply(wire.ServedScores((1.0,), (Status.OK,), ({},), "f"))
COMPLETION = b'{"choices": [{"message": {"content": "5"}}]}'
WRONG_KEYS = {
    "a line end inside": "sk-01\n234",
    "blanks inside": "sk-01 234",
    "letters that no header carries": "sk-0123\u00e9\u4e2d",
    "an escape sequence": "sk-\x1b[31m",
    "blanks alone": " \n",
}
WRONG_ADDRESSES = {
    "a password": "http://me:hunter2@127.0.0.1:9",
    "a query": "http://127.0.0.1:9/?key=hunter2",
    "port 70000": "http://127.0.0.1:70000",
    "port -1": "http://127.0.0.1:-1",
    "a port that is a word": "http://127.0.0.1:http",
    "half an IPv6 address": "http://[::1",
    "no host": "http://",
    "a line end": "http://127.0.0.1:9/\r\nX-Evil: 1",
    "an escape sequence": "http://127.0.0.1:9/\x1b[2J",
    "a label of 300 letters": f"http://{'a' * 300}",
    "another scheme": "file:///etc/passwd",
}
ATTACKS = [
    *(Attack("client", f"reward server: {name}", partial(withstand, score, script)) for name, script in RUDE.items()),
    *(Attack("client", f"judge: {name}", partial(withstand, ask, script)) for name, script in RUDE.items()),
    *(Attack("client", f"painter: {name}", partial(withstand, draw, script)) for name, script in RUDE.items()),
    *(
        Attack("client", f"{who} at the start: {name}", partial(withstand, call, RUDE[name]))
        for who, call in (("reward server", connect), ("judge", first_model))
        for name in ("headers that drip", "endless 102s", "silence", "an endless body", "control characters")
    ),
    *(
        Attack("client", f"{who} repeats the key with {status}{' in escapes' * escape}", partial(keep_quiet, call, script))
        for who, call in (("reward server", score), ("judge", ask), ("painter", draw))
        for status in (200, 302, 400, 401, 500, 503)
        for escape in (False, True)
        for script in (echoes(status, escape),)
    ),
    *(Attack("client", f"a key with {name}", partial(wrong_key, value)) for name, value in WRONG_KEYS.items()),
    Attack("client", "a key that ends in a line end", stripped_key),
    *(Attack("client", f"an address with {name}", partial(wrong_address, url)) for name, url in WRONG_ADDRESSES.items()),
    *(
        Attack("client", f"reward server: {status} once", partial(recover, score, status, REPLY))
        for status in (429, 502, 503, 504)
    ),
    *(Attack("client", f"judge: {status} once", partial(recover, ask, status, COMPLETION)) for status in (429, 502, 503, 504)),
    Attack("client", "reward server: a request of 32 MiB that nobody reads", large_request),
    Attack("client", "judge: silence for 40 questions", many_at_once),
]
