"""Answers that are none: the engine's own errors for each, whatever is in them, and completions for those that are right."""

import copy
import json
import math
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.engine.wire.client import EngineClient, EngineDownError
from mmrl.engine.wire.completions import (
    AbortedError,
    AnswerFacts,
    EngineMismatchError,
    Expected,
    WirePrompt,
    Written,
    read_answer,
)
from tests.support.rude_servers import answers, rude

PROMPT = WirePrompt([1, 9, 2], expanded=[1, 9, 9, 2], name="p")
EXPECTED = Expected(AnswerFacts(frozenset({9}), vocabulary=20, most=4), "run-3", longest=100)
ODD = [None, True, -1, 1.5, 20, 10**400, "3", [], ["a"], {}, {"a": 1}, float("nan"), float("inf"), 10**9]


def choice(index: int, tokens: list[int], reason: str) -> dict[str, Any]:
    return {
        "index": index,
        "token_ids": tokens,
        "finish_reason": reason,
        "logprobs": {"content": [{"token_id": token, "logprob": -0.5} for token in tokens]},
        "weight_versions": [{"version": "run-3", "start": 0, "end": len(tokens)}],
    }


def good() -> dict[str, Any]:
    return {"prompt_token_ids": [1, 9, 9, 2], "choices": [choice(1, [3, 4, 5, 6], "length"), choice(0, [7], "stop")]}


def read(answer: Any, prompt: WirePrompt = PROMPT, expected: Expected = EXPECTED) -> list[Written]:
    return read_answer(answer, prompt, 2, expected, "http://here")


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every value inside, outermost first."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inside:
        yield (*path, key)
        yield from places(one, (*path, key))


def changed(path: tuple[Any, ...], value: Any = None, removed: bool = False) -> Any:
    """The good answer with one place changed."""
    answer = good()
    parent = reduce(getitem, path[:-1], answer)
    if removed:
        del parent[path[-1]]
    else:
        parent[path[-1]] = copy.deepcopy(value)
    return answer


def test_a_right_answer_is_read_in_the_order_of_its_seeds():
    assert read(good()) == [Written([7], [-0.5], True), Written([3, 4, 5, 6], [-0.5] * 4, False)]


NOT_LOOKED_AT = ("start", "end")


@pytest.mark.parametrize("path", [path for path in places(good()) if path[-1] not in NOT_LOOKED_AT], ids=str)
def test_every_place_may_hold_anything(path: tuple[Any, ...]):
    with pytest.raises((EngineMismatchError, AbortedError)):
        read(changed(path, removed=True))
    for value in ODD:
        answer = changed(path, value)
        try:
            written = read(answer)
        except (EngineMismatchError, AbortedError) as error:
            assert str(error).isprintable() and len(str(error)) < 1000
            continue
        assert value == reduce(getitem, path, good()) or (path[-1] == "logprob" and value == -1), (path, value, written)


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (("choices", 1, "token_ids", 0), 20, r"wrote \[20\] for prompt 'p', and tokens are whole numbers from 0 to 19"),
        (("choices", 1, "token_ids", 0), 7.0, r"wrote \[7.0\]"),
        (("choices", 1, "token_ids", 0), [7], r"wrote \[\[7\]\]"),
        (("choices", 1, "logprobs", "content", 0), {}, "with what is none .KeyError: 'logprob'"),
        (("choices", 1, "index"), "0", "with what is none .TypeError"),
        (("choices", 1, "finish_reason"), "length", "cut a completion of prompt 'p' after 1 of 4 tokens"),
        (("choices",), None, "with what is none .TypeError"),
    ],
)
def test_the_error_says_what_is_wrong(path: tuple[Any, ...], value: Any, words: str):
    with pytest.raises(EngineMismatchError, match=words):
        read(changed(path, value))


def test_a_completion_may_be_cut_where_the_model_ends_or_what_was_begun_is_long():
    short = changed(("choices", 1, "finish_reason"), "length")
    full = Expected(EXPECTED.limits, "run-3", longest=5)
    assert [one.stopped for one in read(short, expected=full)] == [False, False]
    begun = WirePrompt(PROMPT.token_ids, expanded=PROMPT.expanded, name="p", begun=3)
    answer = good() | {"choices": [choice(0, [7], "length"), choice(1, [8], "stop")]}
    assert [one.stopped for one in read(answer, begun)] == [False, True]
    with pytest.raises(EngineMismatchError, match="4 tokens and 4 log-probabilities for prompt 'p', and at most 1"):
        read(good(), begun)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["stop", "run-3", 0, 1]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["index", "choices", "logprob", "content", "version", "token_ids"]), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(st.sampled_from(list(places(good()))), JSON)
def test_an_answer_is_completions_or_one_of_two_errors(path: tuple[Any, ...], value: Any):
    try:
        written = read(changed(path, value))
    except (EngineMismatchError, AbortedError):
        return
    assert [len(one.tokens) for one in written] == [len(one.logprobs) for one in written]
    assert all(type(token) is int and 0 <= token < 20 and token != 9 for one in written for token in one.tokens)
    assert all(-9000 < x <= 1e-3 and math.isfinite(x) for one in written for x in one.logprobs)


@pytest.mark.parametrize("said", ["null", "[]", '{"data": 5, "results": 5}', '{"data": [5]}', "5", '"x"', "[" * 5000, "no JSON"])
def test_a_server_that_answers_nonsense_about_itself_is_one_that_is_broken(said: str):
    with rude(answers(200, said.encode())) as server:
        client = EngineClient(server.url, 5.0)
        for call in (client.weight_version, client.model_names, lambda: client.ask_workers("meet_trainer", "")):
            with pytest.raises(EngineDownError, match="as no vLLM would"):
                call()
        client.close()


@pytest.mark.parametrize("fps", ["0", "-1", "NaN", "1e999", '"x"', "null"])
def test_facts_that_are_none_are_a_sentence(fps: str):
    from mmrl.engine.facts import read_facts

    told = json.loads(f'{{"model_config": {{"dtype": "x", "media_io_kwargs": {{"video": {{"fps": {fps}}}}}}}}}')
    with pytest.raises((TypeError, ValueError)):
        read_facts("0.32.0", {"id": "policy", "root": "m"}, told, "default", [1])
