"""What goes to a server and what is made of its answer, without one: an error for each that is none; servers that hang up."""

import base64
import copy
import io
import itertools
import json
import math
import socket
import threading
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from mmrl.engine.facts import read_facts
from mmrl.engine.server import ServeCommand, free_port, resolve_sync, serve_command, serving_rank
from mmrl.engine.wire import client as wire
from mmrl.engine.wire.client import EngineClient, EngineDownError, EngineRefusedError
from mmrl.engine.wire.completions import (
    AbortedError,
    AnswerFacts,
    Ask,
    EngineMismatchError,
    Expected,
    WirePrompt,
    Written,
    read_answer,
    row_seed,
    sampling_params,
    share_rows,
)
from mmrl.engine.wire_prompts import clip_part, picture_part
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.settings import EngineConfig, Sampling, TextPolicyConfig
from mmrl.policies.text.write.generate import HotSampling
from tests.support.fake_engines import make_environment
from tests.support.refused import refused
from tests.support.rude_servers import answers, drips, floods, rude

NOISE = np.random.default_rng(0).integers(0, 255, (3, 5, 7, 3), dtype=np.uint8)


def test_a_rows_seed_depends_on_its_own_seed_and_number_only():
    seeds = [(3, 0), (3, 1), (4, 0), (3, 2), (4, 1), (3, 7)]
    asks = share_rows([0, 0, 1, 0, 1, 0], seeds)
    assert [ask.rows for ask in asks] == [(0, 1, 3), (5,), (2, 4)]
    drawn = {row: ask.seed + k for ask in asks for k, row in enumerate(ask.rows)}
    assert drawn == {row: row_seed(*seed) for row, seed in enumerate(seeds)}
    assert {row: ask.seed + k for ask in share_rows([0] * 6, seeds, most=1) for k, row in enumerate(ask.rows)} == drawn
    apart = sorted(row_seed(seed, 0) for seed in range(2000))
    assert min(b - a for a, b in itertools.pairwise(apart)) > 2**20, "neighbouring seeds must not give the same numbers"
    assert apart[0] >= 0 and apart[-1] < 2**62
    assert row_seed(-5, 0) != row_seed(5, 0)


def test_many_rows_go_in_several_requests():
    rows = [ask.rows for ask in share_rows([0] * 40, [(1, i) for i in range(40)])]
    assert rows == [(*range(16),), (*range(16, 32),), (*range(32, 40),)]


def test_a_request_says_everything():
    prompt = WirePrompt([1, 9, 2], [picture_part(Image.fromarray(NOISE[0]))], [1, 9, 9, 2], "p")
    refused("temperature of its own: remove", sampling_params, HotSampling(rule=abs), (), ())
    params = sampling_params(Sampling(max_new_tokens=7, stop=("</a>",)), {9, 4}, (5, 6))
    body = json.loads(Ask(0, (0, 1), 11).body(prompt, "step-3", params))
    told = body["sampling_params"]
    assert (body["model"], body["token_ids"], body["return_token_ids"]) == ("step-3", [1, 9, 2], True)
    assert (told["n"], told["seed"], told["max_tokens"], told["stop"], told["stop_token_ids"]) == (2, 11, 7, ["</a>"], [5, 6])
    assert told["logit_bias"] == {"4": -100.0, "9": -100.0} and told["logprobs"] == 0 and told["output_kind"] == 2
    assert told["repetition_penalty"] == 1.0, "a model's own generation_config must not change what is sampled"
    assert "content_parts" not in json.loads(Ask(0, (0,), 1).body(WirePrompt([1]), "m", params))


def test_pictures_and_frames_keep_every_pixel():
    def pixels(content: str) -> np.ndarray:
        return np.asarray(Image.open(io.BytesIO(base64.b64decode(content))))

    kind, content = picture_part(Image.fromarray(NOISE[0]))["url"].split(",", 1)
    assert kind == "data:image/png;base64" and (pixels(content) == NOISE[0]).all()
    kind, content = clip_part(NOISE)["url"].split(",", 1)
    assert kind == "data:video/jpeg;base64"
    assert (np.stack([pixels(one) for one in content.split(",")]) == NOISE).all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"url": ("node7:8000",)}, "write http://host:port"),
        ({"url": ("http://me:secret@node7:8000",)}, "holds a user name, a password or a query"),
        ({"url": ("http://node7:8000/v1",)}, "write http://host:port"),
        ({"url": ("http://node7:8000",)}, "is another machine, and policy.engine.folder is empty"),
        ({"url": ("http://localhost:1", "http://localhost:1/")}, "names a server twice"),
        ({"url": ("http://localhost:1",), "port": 7}, "policy.engine.port is for a server that mmrl starts"),
        ({"memory_share": 1.5}, "memory_share is 1.5"),
        ({"local": "here", "folder": "/x"}, "policy.engine.local is 'here'"),
        ({"local": "/dev/shm"}, "policy.engine.folder is empty: set"),
        ({"local": "/dev/shm", "folder": "/x", "sync": "broadcast"}, "writes none"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, words):
    with pytest.raises(ValueError, match=words) as caught:
        EngineConfig(**settings)
    assert "secret" not in str(caught.value)


def test_ways_of_new_weights():
    lora = TextPolicyConfig("m", lora=LoraSettings())
    assert resolve_sync(lora, EngineConfig()) == "lora" and resolve_sync(TextPolicyConfig("m"), EngineConfig()) == "file"
    assert resolve_sync(lora, EngineConfig(sync="file")) == "file"
    refused(r"there is no \[policy.lora\]", TextPolicyConfig, "m", engine=EngineConfig(sync="lora"))
    assert [serving_rank(rank) for rank in (1, 4, 16, 17, 512)] == [1, 8, 16, 32, 512]
    refused("up to rank 512", serving_rank, 600)


def command(environment: str, monkeypatch: pytest.MonkeyPatch, **settings: object) -> ServeCommand:
    monkeypatch.setenv("MMRL_ENGINE_TOKEN", "a-key")
    lora = settings.pop("lora", None)
    config = TextPolicyConfig("org/model", dtype="bfloat16", lora=lora, max_pixels=9000)  # type: ignore[arg-type]
    return serve_command(config, EngineConfig(environment=environment, **settings), 8123, 20)  # type: ignore[arg-type]


def test_the_command_on_a_cpu_and_on_a_card(tmp_path, monkeypatch):
    on_cpu = command(str(make_environment(tmp_path / "cpu")), monkeypatch)
    words = " ".join(on_cpu.words)
    for part in (
        "serve org/model --host 127.0.0.1 --port 8123",
        "--dtype bfloat16",
        "--logprobs-mode processed_logprobs",
        "--enable-scale-out --no-mm-device-do-normalize --generation-config vllm",
        "--no-enable-chunked-prefill",
        '--mm-processor-kwargs {"max_pixels": 9000}',
        "--worker-extension-cls vllm_extension.WeightExtension",
        '--weight-transfer-config {"backend": "file"}',
    ):
        assert part in words
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("MASTER_PORT", "29500")
    monkeypatch.setenv("HF_HOME", "/models")
    given = on_cpu.full_environment()
    assert "WORLD_SIZE" not in given and "MASTER_PORT" not in given, "a server must not take itself for a trainer's process"
    assert (given["HF_HOME"], given["VLLM_API_KEY"], given["VLLM_SERVER_DEV_MODE"]) == ("/models", "a-key", "1")
    card = str(make_environment(tmp_path / "card", "0.32.0"))
    on_card = command(
        card, monkeypatch, lora=LoraSettings(rank=20), sleep=True, memory_share=0.4, devices="3", options=("--x", "y")
    )
    words = " ".join(on_card.words)
    assert "--enable-lora --max-lora-rank 32" in words and "--weight-transfer-config" not in words and "extension" not in words
    copies = command(card, monkeypatch, lora=LoraSettings(rank=20), folder="/shared", local="/local")
    assert "--worker-extension-cls vllm_extension.WeightExtension" in " ".join(copies.words), "workers make the copy"
    assert "--gpu-memory-utilization 0.4 --enable-sleep-mode --x y" in words and "--enforce-eager" not in words
    assert dict(on_card.environment)["CUDA_VISIBLE_DEVICES"] == "3"


def test_a_port_that_is_taken_is_refused_and_nobody_there_is_no_refusal():
    refused("cannot be reached", EngineClient(f"http://127.0.0.1:{free_port(0)}").get, "/version", error=EngineDownError)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        refused("is taken by another program: choose another, or 0", free_port, taken.getsockname()[1])


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


@pytest.mark.parametrize("path", [path for path in places(good()) if path[-1] not in ("start", "end")], ids=str)
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
    refused(words, read, changed(path, value), error=EngineMismatchError)


def test_a_completion_may_be_cut_where_the_model_ends_or_what_was_begun_is_long():
    short = changed(("choices", 1, "finish_reason"), "length")
    full = Expected(EXPECTED.limits, "run-3", longest=5)
    assert [one.stopped for one in read(short, expected=full)] == [False, False]
    begun = WirePrompt(PROMPT.token_ids, expanded=PROMPT.expanded, name="p", begun=3)
    answer = good() | {"choices": [choice(0, [7], "length"), choice(1, [8], "stop")]}
    assert [one.stopped for one in read(answer, begun)] == [False, True]
    refused("4 tokens and 4 log-probabilities for prompt 'p', and at most 1", read, good(), begun, error=EngineMismatchError)


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
            refused("as no vLLM would", call, error=EngineDownError)
        client.close()


@pytest.mark.parametrize("fps", ["0", "-1", "NaN", "1e999", '"x"', "null"])
def test_facts_that_are_none_are_a_sentence(fps: str):
    told = json.loads(f'{{"model_config": {{"dtype": "x", "media_io_kwargs": {{"video": {{"fps": {fps}}}}}}}}}')
    with pytest.raises((TypeError, ValueError)):
        read_facts("0.32.0", {"id": "policy", "root": "m"}, told, "default", [1])


class HangingUp:
    """Answers NUMBER to /bad/NUMBER and 200 to all else; a connection that saw such a one is cut at the next request."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self.talk, args=(connection,), daemon=True).start()

    def talk(self, connection: socket.socket) -> None:
        failed = False
        with connection, connection.makefile("rb") as lines:
            while first := lines.readline():
                length, close = 0, False
                while (line := lines.readline().strip().lower()) != b"":
                    length = int(line.split(b":")[1]) if line.startswith(b"content-length") else length
                    close = close or line == b"connection: close"
                lines.read(length)
                if failed:
                    return
                failed = b"/bad" in first
                code = first.split()[1][-3:] if failed else b"200"
                connection.sendall(b"HTTP/1.1 %s x\r\nContent-Length: 2\r\n\r\n{}" % code)
                if close:
                    return


@pytest.fixture
def server() -> Iterator[HangingUp]:
    hanging = HangingUp()
    with hanging.listening:
        yield hanging


def test_a_call_after_an_error_of_the_server_is_answered(server: HangingUp):
    client = EngineClient(server.url)
    for code in (403, 429, 500, 503):
        refused(f"answered {code}", client.post, f"/bad/{code}", error=EngineRefusedError if code == 403 else EngineDownError)
        assert client.get("/weight_info") == {}
    client.close()


@pytest.mark.parametrize(("idle", "connections"), [(60.0, 1), (0.0, 2)])
def test_a_connection_that_was_idle_for_long_is_not_used_again(
    idle: float, connections: int, server: HangingUp, monkeypatch: pytest.MonkeyPatch
):
    assert wire.IDLE_S < 5.0, "vLLM's server hangs up after 5 seconds"
    monkeypatch.setattr(wire, "IDLE_S", idle)
    client = EngineClient(server.url)
    assert [client.generate(b"{}"), client.generate(b"{}")] == [{}, {}]
    assert server.connections == connections
    client.close()


@pytest.mark.parametrize(
    ("script", "timeout_s", "said"),
    [(drips, 0.6, "/load gave no answer within 1 s"), (floods, 60.0, "/load answered more than 1 MiB")],
)
def test_a_call_is_over_by_the_clock_and_an_answer_without_end_is_not_read(script, timeout_s, said, monkeypatch):
    monkeypatch.setattr(wire, "MOST_BYTES", 2**20)
    with rude(script(b"HTTP/1.1 200 OK\r\n\r\n", b" ")) as server:
        client = EngineClient(server.url)
        refused(said, client.get, "/load", timeout_s, error=EngineDownError)
        client.close()
