"""A server that draws for rewards and worlds: what is sent, hostile answers, a server that dies, and what is refused before."""

import base64
import io
import json
import socket
import struct
import threading
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmrl.app.plugins.resolve import load
from mmrl.core.types import Group, Prompt, Sample, Turn
from mmrl.runtime.blame import RewardUnavailableError
from mmrl.serving.judges.judge import JudgeError
from mmrl.serving.scorers.painting import ImagesServer, Painting, Studio
from tests.support.refused import refused
from tests.support.rude_servers import CHUNKED, OK, answers, floods, in_turn, read_request, rude, says


def png(colour: tuple[int, int, int] = (9, 9, 9), size: tuple[int, int] = (8, 8), form: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, colour).save(file, form)
    return file.getvalue()


def reply(*files: bytes) -> bytes:
    return json.dumps({"data": [{"b64_json": base64.b64encode(file).decode()} for file in files]}).encode()


def draws(connection: socket.socket, request: bytes) -> None:
    """As servers of generators do: the colour tells letters, seed and whether a size came."""
    head, _, body = request.partition(b"\r\n\r\n")
    if head.startswith(b"GET"):
        return answers(404, b"no list of models")(connection, request)
    asked = json.loads(body)
    if "bad" in asked["prompt"]:
        return answers(400, b'{"error": "against the rules"}')(connection, request)
    width, height = map(int, asked.get("size", "8x8").split("x"))
    made = png((len(asked["prompt"]), asked.get("seed", 0) % 256, "size" in asked), (width, height))
    return answers(200, reply(made))(connection, request)


def painting(url: str, **settings: Any) -> Painting:
    given = {key: settings.pop(key) for key in ("width", "height") if key in settings}
    return Painting(server=ImagesServer(f"{url}/v1", **{"retries": 0, "deadline_s": 20.0, **settings}), **given)


def red(group: Group) -> list[float]:
    return [float(np.asarray(sample.image)[0, 0, 0]) for sample in group.samples]


def bodies(server) -> list[dict]:
    return [json.loads(one.partition(b"\r\n\r\n")[2]) for one in server.requests if one.startswith(b"POST")]


def test_a_server_draws_for_the_reward_and_the_easel(caplog):
    with rude(draws) as server:
        own = painting(server.url, model="sd", extra={"num_inference_steps": 4}, width=8, height=16)
        drawn = load("drawn", "rewards")(picture=red, painter=own)
        drawn.ready()
        texts = [Sample(text=text) for text in ("a fox", "a fox", "a bad fox", "", "x" * 1001)]
        (found,) = drawn.score_all([Group(0, Prompt("p", "a fox"), tuple(texts))])
        assert [one.value for one in found[:2]] == [5.0, 5.0] and np.isnan(found[2].value)
        assert [one.value for one in found[3:]] == [0.0, 0.0] and found[4].parts["unread"] == 1
        assert found[0].shown.image.size == (8, 16) and not drawn.models()
        one, _ = bodies(server)
        seed = one.pop("seed")
        assert one.pop("prompt") in ("a fox", "a bad fox") and 0 <= seed < 2**31
        assert one == dict(n=1, response_format="b64_json", size="8x16", model="sd", num_inference_steps=4)
        assert "400" in caplog.text and "against the rules" in caplog.text and "said once" in caplog.text
        easel = load("easel", "environments")(painter=painting(server.url), form="plain")
        easel.check_prompts([Prompt("p", "wish")])
        first, second = (easel.open(Prompt("p", "wish"), 0).step(Turn("a cat", (0, 1))).media[0] for _ in range(2))
        assert first.tobytes() == second.tobytes() and np.asarray(first)[0, 0].tolist()[::2] == [5, 0]
        with pytest.raises(ValueError, match=r"environment\.edits is true, and painter\.server .* draws from text alone"):
            load("easel", "environments")(painter=painting(server.url), edits=True).check_prompts([Prompt("p", "wish")])
        with pytest.raises(ValueError, match=r"asks for 8.5 x 8 pixels: name whole numbers"):
            easel.check_prompts([Prompt("p", "wish", columns={"width": 8.5, "height": 8})])


def test_a_server_without_seeds_is_sent_none_and_said_to_promise_nothing(caplog):
    with rude(draws) as server:
        own = painting(server.url, seeds=False)
        own.ready()
        Studio(own).pictures([(Prompt("1", "a"), 3)])
    assert "seed" not in bodies(server)[0] and "is given no seeds" in caplog.text and "differs" in caplog.text


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def bomb(side: int) -> bytes:
    """A PNG of side x side pixels in a few hundred KB."""
    rows = zlib.compressobj(9)
    packed = b"".join(rows.compress(bytes(1 + side // 8)) for _ in range(side)) + rows.flush()
    head = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", packed) + chunk(b"IEND", b"")


HOSTILE = {
    "no JSON": (answers(200, b"<html>"), "not JSON"),
    "no data": (answers(200, b"{}"), "no picture in data"),
    "a list": (answers(200, b"[1]"), "no picture in data"),
    "two pictures": (answers(200, reply(png(), png())), "no picture in data"),
    "none": (answers(200, reply()), "no picture in data"),
    "an address": (answers(200, b'{"data": [{"url": "http://127.0.0.1:9/x.png"}]}'), "no picture in data"),
    "no base64": (answers(200, b'{"data": [{"b64_json": "\\u00e9!"}]}'), "no picture in data"),
    "a number": (answers(200, b'{"data": [{"b64_json": 7}]}'), "no picture in data"),
    "no picture": (answers(200, reply(b"GIF89a or not")), "no picture"),
    "another format": (answers(200, reply(png(form="TIFF"))), "no picture"),
    "half a picture": (answers(200, reply(png(size=(64, 64))[:-60])), "no picture"),
    "a bomb": (answers(200, reply(bomb(6000))), "at most 16,777,216"),
    "a larger bomb": (answers(200, reply(bomb(14000))), "no picture|at most"),
    "deep JSON": (answers(200, b"[" * 100_000), "cannot be read|not JSON"),
    "an endless body": (floods(OK + b"\r\n", b" "), "more than 64 MiB|no whole answer"),
    "endless chunks": (floods(CHUNKED, b"400\r\n" + b" " * 1024 + b"\r\n"), "more than 64 MiB|no whole answer"),
    "a closed door": (says(b""), "cannot be reached"),
    "a busy server": (answers(429, b"later", "Retry-After: 0"), "429"),
    "a broken server": (answers(500, b"\x1b[2J broken"), "500"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.filterwarnings("error")
def test_a_hostile_answer_fails_its_own_text(name):
    hostile, words = HOSTILE[name]

    def script(connection: socket.socket, request: bytes) -> None:
        (hostile if b"hostile" in request else draws)(connection, request)

    with rude(script) as server:
        bad, good = Studio(painting(server.url)).pictures([(Prompt("1", "hostile"), 0), (Prompt("2", "a"), 0)])
    assert isinstance(good, Sample) and isinstance(bad, JudgeError)
    with pytest.raises(JudgeError, match=words):
        raise bad
    assert str(bad).isprintable() and len(str(bad)) < 1000


def test_another_size_than_was_asked_for_is_no_picture():
    with rude(answers(200, reply(png(size=(8, 9))))) as server:
        (made,) = Studio(painting(server.url, width=8, height=8)).pictures([(Prompt("1", "a"), 0)])
    assert isinstance(made, JudgeError) and "drew 8x9 pixels, and 8x8 were asked for" in str(made)


@pytest.mark.parametrize("script, words", [
    (answers(302, b"", "Location: http://elsewhere/"), "redirects to 'http://elsewhere/', which is not followed"),
    (answers(401, b"who are you"), "401.*server.api_key_env"),
    (answers(404, b"nothing here"), "404.*server.url"),
])  # fmt: skip
def test_a_server_that_refuses_all_requests_ends_the_run_with_a_sentence(script, words):
    with rude(script) as server, pytest.raises(RewardUnavailableError, match=words):
        Studio(painting(server.url)).pictures([(Prompt("1", "a"), 0), (Prompt("2", "b"), 0)])


def test_a_server_that_dies_is_asked_again_and_waited_for(monkeypatch):
    """A dropped connection and a 500 are asked again; a closed port is waited for, and the run ends where it stays closed."""
    from mmrl.serving.judges import judge

    pauses = list[float]()
    monkeypatch.setattr(judge.time, "sleep", pauses.append)
    with rude(in_turn(says(b""), answers(500, b"dying"), draws)) as server:
        (made,) = Studio(painting(server.url, retries=3)).pictures([(Prompt("1", "abc"), 0)])
    assert isinstance(made, Sample) and np.asarray(made.image)[0, 0, 0] == 3 and len(pauses) == 2

    def again(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            port.listen()
            threading.Thread(target=answer_once, daemon=True).start()

    def answer_once() -> None:
        connection, _ = port.accept()
        with connection:
            draws(connection, read_request(connection))

    pauses.clear()
    monkeypatch.setattr(judge.time, "sleep", again)
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{port.getsockname()[1]}"
        (made,) = Studio(painting(url, retries=1)).pictures([(Prompt("1", "abc"), 0)])
        assert isinstance(made, Sample) and len(pauses) == 4
    with pytest.raises(RewardUnavailableError, match=r"cannot be reached.*start it again"):
        Studio(painting(url, retries=1, deadline_s=0.5)).pictures([(Prompt("1", "abc"), 0)])


def test_what_goes_not_with_a_server_is_refused():
    server = ImagesServer("http://127.0.0.1:9/v1")
    for settings, words in [
        ({"model": "a"}, "painter.model and painter.server are set"),
        ({"num_steps": 4, "guidance": 2.0}, "painter.num_steps and painter.guidance count for models of this process"),
        ({"device": "cuda:1"}, "painter.device count"),
        ({"step": 3}, "painter.step is a checkpoint"),
    ]:
        refused(words, Painting, server=server, **settings)
    refused("asks for None x 8 pixels", Painting(server=server, height=8).painter().check_prompts, [Prompt("p", "a")])
    refused(r"server.url", ImagesServer, "127.0.0.1:9")
    refused("start the server before the run", Painting(server=server).ready, error=RewardUnavailableError)
