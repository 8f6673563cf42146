"""Servers that mean harm: what they answer is refused with a sentence, in bounded time and memory, and keys stay here."""

import gzip
import json
import pickle
from math import isnan
from typing import Any

import httpx
import pytest

from mmrl import Group, Prompt, Sample, Scored
from mmrl.core.samples import Status
from mmrl.runtime.blame import RewardUnavailableError
from mmrl.runtime.net import fetch
from mmrl.serving import wire
from mmrl.serving.judges import judge
from mmrl.serving.judges.judge import Endpoint, HopelessError, JudgeError, Question
from mmrl.serving.reward_client import RemoteReward, RemoteRewardError
from tests.serving.test_reward_server import length, serving
from tests.support.rude_servers import OK, answers, floods, rude

GROUP = Group(0, Prompt("p"), (Sample("a"),))


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        return (pytest.fail, ("the pickle was executed",))


def reply(header: dict[str, Any], **changes: Any) -> bytes:
    """A reply of one value whose header says something else."""
    told = {"parts": [{}], "fingerprint": "f", "raised": None} | header
    good = wire.pack_reply(wire.ServedScores((1.0,), (Status.OK,), ({},), "f", None))
    arrays = json.loads(good[8 : 8 + int.from_bytes(good[:8], "little")])
    head = arrays | {"__metadata__": {"mmrl": json.dumps({"protocol": wire.PROTOCOL, "value": told})}} | changes
    encoded = json.dumps(head).encode()
    return len(encoded).to_bytes(8, "little") + encoded + good[8 + int.from_bytes(good[:8], "little") :]


BAD = {
    "a pickle": (answers(200, pickle.dumps(Bomb())), "is a pickle"),
    "HTML": (answers(200, b"<html>", "Content-Type: text/html"), "no reply of a reward server"),
    "a header of 2^63 bytes": (answers(200, (2**63).to_bytes(8, "little") + b"{}"), "no reply of a reward server"),
    "300 parts": (answers(200, reply({"parts": [{f"p{i}": 1.0 for i in range(300)}]})), "300 different parts, and at most 256"),
    "a part with a long name": (answers(200, reply({"parts": [{"x" * 50_000: 1.0}]})), "of 50000 letters, and 200 are read"),
    "parts that are text": (answers(200, reply({"parts": [{"a": "b"}]})), "no reply of a reward"),
    "a fingerprint that is a list": (answers(200, reply({"fingerprint": ["f"]})), "no text"),
    "an exception that is a number": (answers(200, reply({"raised": 5})), "no text"),
    "deep nesting": (answers(200, reply({"parts": json.loads("[" * 200 + "]" * 200)})), "no reply of a reward"),
    "a bomb": (
        answers(200, gzip.compress(b"\0" * 2**24), "Content-Encoding: gzip"),
        "in the encoding 'gzip', which was not asked for",
    ),
    "an endless answer": (floods(OK + b"\r\n", b"\0"), "answered more than 1 MiB"),
    "values of another type": (
        answers(200, reply({}, values={"shape": [1], "dtype": "BF16", "data_offsets": [0, 2]})),
        "no reply",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_is_a_failure_and_no_score(kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetch, "MOST_BYTES", 2**20)
    answer, message = BAD[kind]
    with rude(answer) as server, pytest.raises(RemoteRewardError, match=message):
        RemoteReward(f"{server.url}/length").score(GROUP)


def test_the_replies_of_these_tests_would_be_read():
    with rude(answers(200, reply({}))) as server:
        assert RemoteReward(f"{server.url}/length").score(GROUP) == [1.0]


def test_a_flood_of_nan_is_a_flood_of_failures():
    packed = wire.pack_reply(wire.ServedScores((float("nan"),), (Status.OK,), ({"a": float("nan")},), "f", None))
    with rude(answers(200, packed)) as server:
        [scored] = RemoteReward(f"{server.url}/length").score(GROUP)
    assert isinstance(scored, Scored) and scored.value is not None and isnan(scored.value)


@pytest.mark.parametrize("code", [301, 302, 307])
@pytest.mark.parametrize("where", ["other", "file:///etc/passwd", "ftp://127.0.0.1/x"])
def test_nobody_is_followed_elsewhere(code: int, where: str, monkeypatch: pytest.MonkeyPatch):
    """The key of the judge and the token of the rewards would travel along."""
    monkeypatch.setenv("A_KEY", "secret")
    monkeypatch.setenv("MMRL_REWARD_TOKEN", "secret")
    with rude(answers(200, b"{}")) as other:
        with rude(answers(code, b"", f"Location: {other.url if where == 'other' else where}")) as server:
            with pytest.raises(RewardUnavailableError, match=f"answered {code}"):
                RemoteReward(f"{server.url}/length").score(GROUP)
            with pytest.raises(HopelessError, match=r"redirects to .*, which is not followed"):
                judge.ask(Endpoint(server.url, "m", api_key_env="A_KEY"), [Question("x")])
        assert other.requests == []


ANSWERS = {
    "no JSON": b"<html>",
    "deep nesting": b"[" * 100_000,
    "too long": b" " * (2**20 + 1),
    "no choices": b"{}",
    "a number that overflows": json.dumps(
        {"choices": [{"message": {"content": "A"}, "logprobs": {"content": [{"token": "A", "logprob": 1e9}]}}]}
    ).encode(),
    "endless tokens": b'{"choices": [{"message": {"content": "A"}}], "usage": {"total_tokens": Infinity}}',
    "tokens that are lists": b'{"choices": [{"message": {}, "logprobs": {"content": [{"token": [], "logprob": 0}]}}]}',
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_a_bad_answer_of_a_judge_is_one_error(kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(fetch, "MOST_BYTES", 2**20)
    with rude(answers(200, ANSWERS[kind])) as server:
        [outcome] = judge.ask(Endpoint(server.url, "m"), [Question("x")])
    assert isinstance(outcome, JudgeError) and str(outcome)


@pytest.mark.parametrize("header", ["nan", "inf", "-inf", "1e999", "Mon, 01 Jan 0001 00:00:00 GMT", "", "x" * 5000])
def test_a_wait_that_is_asked_for_is_finite(header: str):
    assert fetch.asked_delay(header, 0.25) == 0.25 or header == "Mon, 01 Jan 0001 00:00:00 GMT"


@pytest.mark.parametrize(
    "listing",
    [{"rewards": []}, {"rewards": {"length": 3}}, {"rewards": {"length": {}}}, {}, {"rewards": {"length": {"fingerprint": "f"}}}],
)
def test_a_listing_that_describes_nothing_is_refused(listing: dict[str, Any]):
    said = json.dumps({"protocol": wire.PROTOCOL} | listing).encode()
    refused = pytest.raises(ValueError, match=r"the reward server at .* does not (serve|describe) 'length'")
    with rude(answers(200, said)) as server, refused:
        RemoteReward(f"{server.url}/length").connect(wait_s=60.0)


def test_a_group_of_nonsense_is_the_senders_fault():
    body = wire.pack_group(GROUP).replace(b'\\"Sample\\"', b'\\"Prompt\\"')
    with serving(length=length) as url:
        assert httpx.post(f"{url}/v1/score/length", content=body).status_code == 400
