"""Servers and engines that drip, never end, lie or repeat keys: calls are over by their deadline, and no sentence shows a key."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType

import pytest

from mmrl import Scored
from mmrl.core.samples import Status
from mmrl.runtime.net.fetch import LEAST_PAUSE_S, retry_delay
from mmrl.runtime.net.secrets import hide_in_json, read_secret
from mmrl.serving import reward_client, wire
from mmrl.serving.judges import judge
from mmrl.serving.judges.judge import Endpoint, JudgeError, Question
from mmrl.serving.judges.verdicts import json_object
from mmrl.serving.reward_client import RemoteReward
from tests.attacks import engine
from tests.attacks.__main__ import carry_out
from tests.attacks.attack import Attack
from tests.attacks.client import ATTACKS, COMPLETION, REPLY, WRONG_ADDRESSES
from tests.serving.test_reward_server import group_of
from tests.support.rude_servers import RUDE, answers, in_turn, rude

PARTS = {
    "reward server: ": 41,
    "judge: ": 41,
    "painter: ": 44,
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


def ask_judge(url: str) -> object:
    return judge.ask(Endpoint(url, "m"), [Question("x")])[0]


def score(url: str) -> object:
    return RemoteReward(f"{url}/length").score(group_of("abc"))


@pytest.mark.parametrize(("module", "call", "good"), [(judge, ask_judge, COMPLETION), (reward_client, score, REPLY)])
def test_busy_servers_are_asked_again_a_second_later(
    module: ModuleType, call: Callable[[str], object], good: bytes, monkeypatch: pytest.MonkeyPatch
):
    pauses: list[float] = []
    monkeypatch.setattr(f"{module.__name__}.time.sleep", pauses.append)
    busy = [answers(code, b"busy", "Retry-After: 0") for code in (502, 503, 504, 429)]
    # rude servers must not sleep: the patch is of the module `time` itself
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


def test_scores_arrive_as_they_were():
    reply = wire.unpack_reply(wire.pack_reply(wire.ServedScores((0.1, 1e300), (Status.OK, Status.OK), ({}, {}), "f")))
    assert reply.values == (0.1, 1e300)


def test_a_part_that_cannot_be_printed_is_refused():
    packed = wire.pack_reply(wire.ServedScores((0.1,), (Status.OK,), ({"\x1b[2J": 1.0},), "f"))
    with pytest.raises(wire.WireError, match="cannot be printed"):
        wire.unpack_reply(packed)


def test_a_judges_absurd_figures_are_one_error():
    usage = b'{"choices": [{"message": {"content": "5"}}], "usage": {"total_tokens": 1' + b"0" * 400 + b"}}"
    with rude(answers(200, usage)) as server:
        (outcome,) = judge.ask(Endpoint(server.url, "m"), [Question("x")])
    assert isinstance(outcome, JudgeError) and "no chat completion" in str(outcome)
    with pytest.raises(JudgeError, match="no JSON object"):
        json_object(judge.Reply("[" * 100_000))
    assert judge.ask_for_scores(Endpoint(), [], lambda reply: Scored(1.0)) == []
