"""What a generator draws for a model that writes, here or behind a server: the studio, drawn, shown and asked, the easel."""

import base64
import io
import json
import math
import random
import re
import socket
import threading
import zlib
from contextlib import ExitStack
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

import mmrl
from mmrl.app.plugins.resolve import load
from mmrl.app.run.build import draw_alike
from mmrl.core.types import Group, Observation, Prompt, Sample, Scored, Turn
from mmrl.runtime.blame import RewardUnavailableError
from mmrl.runtime.net import fetch
from mmrl.serving.judges.judge import JudgeError
from mmrl.serving.scorers import painting
from mmrl.serving.scorers.painting import ImagesServer, Painting, Studio, seed_of, studio_of
from tests.plugins.conftest import values
from tests.support.ports import free_ports
from tests.support.raw_pictures import png_of
from tests.support.refused import refused
from tests.support.rude_servers import answers, in_turn, rude, says, without_pauses

LONGEST = 6


class Pens:
    """A painter whose pictures tell what was asked: (letters, seed, pictures given)."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def draw(self, asked: Any) -> list[Sample]:
        self.calls.append([prompt.text for prompt, _ in asked])
        if any(prompt.text == "away" for prompt, _ in asked):
            raise RewardUnavailableError("the painter is away")
        if any(prompt.text == "bad" for prompt, _ in asked):
            raise ValueError("no such text")
        return [Sample(image=picture(prompt.text, seed, len(prompt.media))) for prompt, seed in asked]

    def check_prompts(self, prompts: Any) -> None:
        if any(prompt.columns.get("width") == 7 for prompt in prompts):
            raise ValueError("7 pixels are too few")

    def tokens(self, text: str) -> tuple[int, int]:
        return len(text.split()), LONGEST


def picture(text: str, seed: int, given: int = 0) -> Image.Image:
    return Image.new("RGB", (2, 2), (len(text), seed % 256, given))


@pytest.fixture
def pens(monkeypatch) -> Pens:
    made = Pens()
    monkeypatch.setattr(mmrl, "load_painter", lambda painting: made, raising=False)
    monkeypatch.setattr(painting, "_STUDIOS", {})
    return made


def letters(group: Group) -> list[Scored]:
    """Letters of what was drawn less those of the words that the reward reads; and the noise that was used."""
    seen = [np.asarray(sample.image)[0, 0] for sample in group.samples]
    return [Scored(float(red) - len(group.prompt.text), {"noise": float(green)}) for red, green, _ in seen]


def plug_in(kind: str, name: str, **settings: Any) -> Any:
    return load(name, kind)(painter=Painting(model="pens"), **settings)


def drawn(**settings: Any) -> Any:
    return plug_in("rewards", "drawn", picture=letters, **settings)


def group_of(*texts: str, number: int = 0, wish: str = "a red cat") -> Group:
    return Group(number, Prompt("p", wish, columns={"own": "cat"}), tuple(Sample(text=text) for text in texts))


def test_whoever_asks_gets_his_own_picture_and_equal_ones_are_drawn_once(pens):
    """Sixteen threads ask for overlapping sets, some with a text that cannot be drawn, of a studio that keeps few."""
    studio, wrong = Studio(Painting(model="pens", rows=4, kept=5)), list[object]()

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(40):
            asked = [(Prompt("1", rng.choice(["a", "bb", "ccc", "dddd", "bad"])), rng.randrange(3)) for _ in range(5)]
            for (prompt, number), made in zip(asked, studio.pictures(asked), strict=True):
                right = picture(prompt.text, number)
                same = isinstance(made, Sample) and made.image.tobytes() == right.tobytes()
                is_right = isinstance(made, ValueError) if prompt.text == "bad" else same
                wrong.extend([] if is_right else [(prompt.text, number, made)])

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads) and not wrong
    assert len(studio._kept) <= 5 and not studio._pending
    assert max(map(len, pens.calls)) <= 4
    one = Studio(Painting(model="pens"))
    one.pictures([(Prompt("1", "a"), 1), (Prompt("2", "a"), 1), (Prompt("1", "a"), 2)])
    one.pictures([(Prompt("3", "a"), 1)])
    assert (one.asked, one.drawn, one.calls) == (4, 2, 1)
    refused("is away", one.pictures, [(Prompt("1", "away"), 0), (Prompt("1", "b"), 0)], error=RewardUnavailableError)
    assert [type(made) for made in one.pictures([(Prompt("1", "b"), 0)])] == [Sample], "nobody waits for ever after it"


def test_texts_of_a_step_are_drawn_in_one_call_with_noise_of_their_group(pens):
    first, second = group_of("a big red cat", "x"), group_of("x", number=1)
    found = drawn().score_all([first, second])
    assert [len(one) for one in pens.calls] == [3]
    assert [values(one) for one in found] == [[13 - 9, 1 - 9], [1 - 9]]
    (a, b), (c,) = [[one.parts["noise"] for one in some] for some in found]
    assert a == b == seed_of(0, 0, 0) % 256 and c == seed_of(0, 1, 0) % 256 != a
    assert found[0][0].shown.image.tobytes() == picture("a big red cat", seed_of(0, 0, 0)).tobytes()


def test_what_the_painter_reads_is_the_answer_and_what_it_compares_with_the_wish(pens):
    found = drawn(wish="own")(group_of("<think>hm</think><answer>blue</answer>", "blue"))
    assert values(found) == [4 - 3, 4 - 3]
    refused("prompt 'p' has no words in its column 'none'", drawn(wish="none"), group_of("a"))
    refused("has no text to draw", drawn(), replace(group_of("a"), samples=(Sample(image=Image.new("RGB", (2, 2))),)))


def test_a_text_that_is_empty_or_too_long_is_worth_the_least(pens):
    long = "one two three four five six seven"
    found = drawn()(group_of("a", "", long, "<think>never ends"))
    assert values(found) == [-8.0, -8.0, -8.0, -8.0] and pens.calls == [["a"]]
    assert [one.parts["unread"] for one in found] == [0, 0, 1, 0] and [one.parts["empty"] for one in found] == [0, 1, 0, 1]
    assert found[1].shown is None
    assert values(drawn(unusable=-20.0)(group_of("a", ""))) == [-8.0, -20.0]
    assert values(drawn()(group_of("a rather long text", ""))) == [9.0, 0.0], "unusable is the most"
    assert values(drawn()(group_of("", ""))) == [0.0, 0.0]
    assert values(drawn(over="cut")(group_of(long))) == [len(long) - 9.0]


def test_a_text_that_cannot_be_drawn_fails_alone_and_the_reason_is_said_once(pens, caplog):
    found = drawn()(group_of("a", "bad", "ccc"))
    assert found[0].value == -8 and np.isnan(found[1].value) and found[2].value == -6
    drawn()(group_of("a", "bad"))
    assert [one.message for one in caplog.records] == [
        "painter.model 'pens' could not draw 'bad': ValueError: no such text; this kind is said once"
    ]
    refused("no such text", drawn(), group_of("bad", "", "bad"))


def test_held_out_texts_stand_beside_the_users_own_words(pens):
    own = drawn(seeds=2).held_out
    assert own.held_out is None
    (found,) = own(group_of("a red cat!"))
    assert found.value == 1 and (found.parts["beside"], found.parts["gain"], found.parts["won"]) == (0.0, 1.0, 1.0)
    assert len(pens.calls[0]) == 4, "two pictures of each"


def test_the_same_painter_draws_once_for_a_reward_that_watches(pens):
    group = group_of("a", "bb")
    for reward in (drawn(), drawn(unusable=-1.0)):
        reward(group)
    studio = studio_of(Painting(model="pens"))
    assert (studio.asked, studio.drawn) == (4, 2)


def test_the_last_or_the_best_picture_of_an_episode_counts(pens):
    def episode(*texts: str) -> Sample:
        turns = [Turn(text, (0, 1), Observation("<image>", (picture(text, 0),))) for text in texts]
        return Sample(text="end", turns=(*turns, Turn("end", (1, 2))), truncated=not texts)

    group = Group(0, Prompt("p", "cat"), (episode("aaaa", "bb"), episode("a"), episode()))
    shown = load("shown", "rewards")
    found = shown(picture=letters, price=0.5)(group)
    assert values(found) == [2 - 3 - 0.5, 1 - 3, -2.0]
    assert {k: found[0].parts[k] for k in ("first", "last", "best", "gain", "pictures")} == dict(
        first=1.0, last=-1.0, best=1.0, gain=-2.0, pictures=2.0
    )
    assert found[2].parts == {"pictures": 0.0, "unfinished": 1.0}
    assert values(shown(picture=letters, over="best")(group))[0] == 1.0
    for values_of in ((1.0, math.nan), (math.nan, 1.0)):
        answers = iter((*values_of, 0.5))
        (odd, _, _) = shown(picture=lambda asked, a=answers: [next(a) for _ in asked.samples], over="best")(group)
        assert math.isnan(odd.value), "of which one could not be scored"
    refused("shown needs a reward of pictures", shown(), group)


def test_an_easel_draws_and_edits_and_says_what_it_cannot(pens):
    easel = plug_in("environments", "easel", edits=True)
    prompt = Prompt("7", "draw a cat")
    world = easel.open(prompt, 3)

    def step(name: str, **arguments: object) -> Any:
        call = {"name": name, "arguments": arguments}
        return world.step(Turn(f"<tool_call>{call}</tool_call>".replace("'", '"'), (0, 1)))

    assert "no picture to edit" in step("edit", prompt="bluer").text
    first, second = step("draw", prompt="cat"), step("edit", prompt="bluer")
    noise = seed_of(0, "7")
    assert first.media[0].tobytes() == picture("cat", noise).tobytes() and first.facts == {"drawn": 1.0}
    assert second.media[0].tobytes() == picture("bluer", noise, given=1).tobytes()
    for answer, words in [
        (step("draw", prompt="one two three four five six seven"), "a length of 7, and the painter reads 6"),
        (step("draw", prompt=" "), "empty"),
        (step("draw", prompt=3), "a text"),
        (step("draw", prompt="bad"), "could not be drawn"),
        (step("paint", prompt="x"), "draw, edit and end"),
    ]:
        assert words in answer.text and answer.facts == {"error": 1.0} and not answer.media
    assert step("end") is None and world.step(Turn("I am done", (0, 1))) is None
    plain = plug_in("environments", "easel", form="plain").open(prompt, 3)
    assert plain.step(Turn("<think>hm</think> a cat", (0, 1))).media[0].tobytes() == picture("a cat", noise).tobytes()
    refused("is away", plain.step, Turn("away", (0, 1)), error=RewardUnavailableError)
    shows = replace(prompt, media=(picture("a", 0),))
    refused("prompt '7' shows a picture, which a painter", plug_in("environments", "easel").check_prompts, [shows])
    refused("7 pixels are too few", easel.check_prompts, [prompt, replace(prompt, columns={"width": 7})])
    refused('form is "plain", whose turns ask for no edits', plug_in, "environments", "easel", form="plain", edits=True)


def test_an_easel_whose_painter_edits_nothing_is_refused_before_weights_load():
    own = Painting(model="tiny:sd3", policy={"width": 32, "height": 32})
    easel = load("easel", "environments")
    easel(painter=own).check_prompts([Prompt("p", "a cat")])
    for edits, columns, words in (
        (True, {}, r"environment\.edits is true, and painter\.model 'tiny:sd3' changes no pictures"),
        (False, {"width": 33, "height": 33}, "prompt 'p' asks for 33 x 33 pixels, but this model draws"),
    ):
        refused(words, easel(painter=own, edits=edits).check_prompts, [Prompt("p", "a cat", columns=columns)])


def test_asked_reads_the_users_words_and_half_characters_are_drawn_as_question_marks(pens):
    asked = load("asked", "rewards")(picture=letters)
    prompt = Prompt("p", "a very red cat", columns={"asked": "cat"})
    assert values(asked(Group(0, prompt, (Sample(image=picture("four", 0)),)))) == [4 - 3]
    refused("no words in its column 'asked'", asked, group_of("a"))
    assert drawn()(group_of("a\ud800"))[0].value == 2 - 9 and pens.calls == [["a?"]]


def test_a_generator_trains_on_the_answers_of_a_writer_and_not_on_its_thoughts(monkeypatch, tmp_path, caplog):
    """A thought that the template opened is one, as for the reward drawn."""
    written = load("written", "datasets")
    wishes, run = tmp_path / "wishes.txt", tmp_path / "writer"
    wishes.write_text("a cat\na dog\n")
    source = {"use": "prompts", "path": str(wishes)}
    assert [one.text for one in written(str(run), source)] == ["a cat", "a dog"] and "no checkpoint yet" in caplog.text
    (run / "checkpoints" / "step-1").mkdir(parents=True)
    said = [Sample(text="hm</think>a blue cat", opened="<think>"), Sample(text="<answer>a big dog</answer>")]

    class Judge:
        def answers(self, prompts: Any, batch_size: int) -> list[Sample]:
            return said

    monkeypatch.setitem(written.__globals__, "load_judge", lambda *_, **__: Judge())
    found = [(one.text, one.columns["asked"]) for one in written(str(run), source)]
    assert found == [("a blue cat", "a cat"), ("a big dog", "a dog")]
    said[0] = Sample(text="a thought that never ends", opened="<think>")
    refused("wrote nothing for prompt", written, str(run), source)


FLOW = {"num_steps": 2, "guidance": 3.0, "policy": {"kind": "flow", "width": 32, "height": 32}}


@pytest.mark.parametrize("model, settings", [("tiny:sd3", FLOW), ("tiny:janus", {"policy": {"kind": "token_image"}})])
def test_a_picture_is_the_same_whatever_is_drawn_beside_it(model, settings):
    own = Painting(model=model, rows=5, **settings)
    own.ready()
    (size,) = own.models()
    assert size.weights
    asked = [(Prompt(str(i), f"a cat {'very ' * i}big"), seed_of(i)) for i in range(7)]
    together = [made.image.tobytes() for made in Studio(own).pictures(asked) if isinstance(made, Sample)]
    painter = mmrl.load_painter(own)
    assert [painter.draw([one])[0].image.tobytes() for one in asked] == together
    assert len(set(together)) == 7


def test_all_processes_draw_with_the_first_ones_checkpoint(monkeypatch, tmp_path):
    own = [Studio(one) for one in (Painting(run=str(tmp_path)), Painting(run=str(tmp_path), step=5), Painting(model="a"))]
    monkeypatch.setattr(painting, "_STUDIOS", {str(i): studio for i, studio in enumerate(own)})
    ranks: Any = SimpleNamespace(world=2, gather=lambda found: [{run: 3 for run in found}, found])
    assert draw_alike(None, ranks) is None
    assert [studio.painting.step for studio in own] == [3, 5, None]


def test_who_cannot_paint_is_refused_before_weights_load(tmp_path):
    writes = '[policy]\nmodel = "tiny:qwen3_vl"\n[data]\nuse = "prompts"\n'
    folder, drew, wrote, risky = (tmp_path / name for name in ("writes", "drew", "wrote", "risky"))
    for one in (folder, drew, wrote, risky):
        (one / ("checkpoints/step-3" if one != folder else "")).mkdir(parents=True)
        (one / "config.toml").write_text(writes)
    (risky / "config.toml").write_text('[policy]\nkind = "flow"\nmodel = "tiny:sd3"\nfamily = "./mine.py:Mine"\n')
    for settings, error, words in [
        ({}, ValueError, "no painter draws"),
        ({"model": "a", "run": "b"}, ValueError, "painter.model and painter.run are set, and one of them draws"),
        ({"step": 3, "model": "a"}, ValueError, "painter.step is a checkpoint"),
        ({"run": "a", "policy": {"width": 8}}, ValueError, "painter.policy, width and height go with painter.model"),
        ({"run": str(tmp_path)}, RewardUnavailableError, "holds no run"),
        ({"run": str(folder)}, RewardUnavailableError, r"has no checkpoint step-\*"),
        ({"run": str(drew), "step": 7}, RewardUnavailableError, "has no checkpoint step-7"),
        ({"run": str(wrote)}, ValueError, "writes, and a painter draws pictures"),
        ({"run": str(risky)}, ValueError, "policy.family './mine.py:Mine' is a Python file"),
        ({"model": "tiny:wan", "policy": {"frames": 5}}, ValueError, "draws video"),
        ({"model": "tiny:sd3", "policy": {"widht": 8}}, ValueError, "widht"),
        ({"model": "tiny:sd3", "policy": {"width": 33, "height": 32}}, ValueError, "33"),
        ({"model": str(tmp_path / "none")}, FileNotFoundError, "none"),
    ]:
        refused(words, lambda own=settings: Painting(**own).ready(), error=error)


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


def painted_by(url: str, **settings: Any) -> Painting:
    given = {key: settings.pop(key) for key in ("width", "height") if key in settings}
    return Painting(server=ImagesServer(f"{url}/v1", **{"retries": 0, "deadline_s": 20.0, **settings}), **given)


def red(group: Group) -> list[float]:
    return [float(np.asarray(sample.image)[0, 0, 0]) for sample in group.samples]


def bodies(server) -> list[dict]:
    return [json.loads(one.partition(b"\r\n\r\n")[2]) for one in server.requests if one.startswith(b"POST")]


def test_a_server_draws_for_the_reward_and_the_easel(caplog):
    with rude(draws) as server:
        own = painted_by(server.url, model="sd", extra={"num_inference_steps": 4}, width=8, height=16)
        drawn = load("drawn", "rewards")(picture=red, painter=own)
        drawn.ready()
        ImagesServer(server.url, "sd").ready()
        with rude(lambda *asked: answers(200 if b" /v1/models" in asked[1] else 404, b"{}")(*asked)) as other:
            refused("end server.url in /v1", ImagesServer(other.url, "sd").ready, error=RewardUnavailableError)
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
        easel = load("easel", "environments")(painter=painted_by(server.url), form="plain")
        easel.check_prompts([Prompt("p", "wish")])
        first, second = (easel.open(Prompt("p", "wish"), 0).step(Turn("a cat", (0, 1))).media[0] for _ in range(2))
        assert first.tobytes() == second.tobytes() and np.asarray(first)[0, 0].tolist()[::2] == [5, 0]
        refused("asks for 8.5 x 8 pixels: name whole", easel.check_prompts, [Prompt("p", columns={"width": 8.5, "height": 8})])
        words = r"environment\.edits is true, and painter\.server .* draws from text alone"
        refused(words, replace(easel, form="tags", edits=True).check_prompts, [Prompt("p", "wish")])


def test_a_server_without_seeds_is_sent_none_and_said_to_promise_nothing(caplog):
    with rude(draws) as server:
        own = painted_by(server.url, seeds=False)
        own.ready()
        Studio(own).pictures([(Prompt("1", "a"), 3)])
    assert "seed" not in bodies(server)[0] and "is given no seeds" in caplog.text and "differs" in caplog.text


def bomb(side: int) -> bytes:
    """A PNG of side x side pixels in a few hundred KB."""
    rows = zlib.compressobj(9)
    packed = b"".join(rows.compress(bytes(1 + side // 8)) for _ in range(side)) + rows.flush()
    return png_of((side, side), 1, 0, (b"IDAT", packed))


HOSTILE = {
    "no JSON": (answers(200, b"<html>"), "not JSON"),
    "no data": (answers(200, b"{}"), "no picture in data"),
    "a list": (answers(200, b"[1]"), "no picture in data"),
    "two pictures": (answers(200, reply(png(), png())), "no picture in data"),
    "none": (answers(200, reply()), "no picture in data"),
    "an address": (answers(200, b'{"data": [{"url": "file:///etc/passwd"}]}'), "no picture in data"),
    "no base64": (answers(200, reply(png()).replace(b'json": "', b'json": "!')), "no picture in data"),
    "a number": (answers(200, b'{"data": [{"b64_json": 7}]}'), "no picture in data"),
    "no picture": (answers(200, reply(b"GIF89a or not")), "no picture"),
    "another format": (answers(200, reply(png(form="TIFF"))), "no picture"),
    "half a picture": (answers(200, reply(png(size=(64, 64))[:-60])), "no picture"),
    "a bomb": (answers(200, reply(bomb(6000))), "at most 16,777,216"),
    "a larger bomb": (answers(200, reply(bomb(14000))), "no picture|at most"),
    "deep JSON": (answers(200, b"[" * 100_000), "cannot be read|not JSON"),
    "10,000 digits": (answers(200, b'{"data": ' + b"9" * 10_000 + b"}"), "cannot be read|not JSON|no picture"),
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
        bad, good = Studio(painted_by(server.url)).pictures([(Prompt("1", "hostile"), 0), (Prompt("2", "a"), 0)])
    assert isinstance(good, Sample) and isinstance(bad, JudgeError)
    assert re.search(words, str(bad)) and str(bad).isprintable() and len(str(bad)) < 1000


def test_another_size_than_was_asked_for_is_no_picture():
    with rude(answers(200, reply(png(size=(8, 9))))) as server:
        (made,) = Studio(painted_by(server.url, width=8, height=8)).pictures([(Prompt("1", "a"), 0)])
    assert isinstance(made, JudgeError) and "drew 8x9 pixels, and 8x8 were asked for" in str(made)


@pytest.mark.parametrize("script, words", [
    (answers(302, b"", "Location: http://elsewhere/"), "redirects to 'http://elsewhere/', which is not followed"),
    (answers(401, b"who are you"), "401.*server.api_key_env"),
    (answers(404, b"nothing here"), "404.*server.url"),
])  # fmt: skip
def test_a_server_that_refuses_all_requests_ends_the_run_with_a_sentence(script, words):
    with rude(script) as server, pytest.raises(RewardUnavailableError, match=words):
        Studio(painted_by(server.url)).pictures([(Prompt("1", "a"), 0), (Prompt("2", "b"), 0)])


def test_a_server_that_dies_is_asked_again_and_waited_for(monkeypatch):
    """A dropped connection and a 500 are asked again; a closed port is waited for, and the run ends where it stays closed."""
    pauses = list[float]()
    monkeypatch.setattr(fetch, "time", without_pauses(pauses.append))
    with rude(in_turn(says(b""), answers(500, b"dying"), draws)) as server:
        (made,) = Studio(painted_by(server.url, retries=3)).pictures([(Prompt("1", "abc"), 0)])
    assert isinstance(made, Sample) and np.asarray(made.image)[0, 0, 0] == 3 and len(pauses) == 2

    port, stack, again = free_ports(1), ExitStack(), count(1)
    monkeypatch.setattr(fetch, "time", without_pauses(lambda _: next(again) == 4 and stack.enter_context(rude(draws, port))))
    with stack:
        url = f"http://127.0.0.1:{port}"
        (made,) = Studio(painted_by(url, retries=1)).pictures([(Prompt("1", "abc"), 0)])
        assert isinstance(made, Sample) and next(again) == 5
    gone = Studio(painted_by(url, retries=1, deadline_s=30.0))
    refused(r"cannot be reached.*start it again", gone.pictures, [(Prompt("1", "abc"), 0)], error=RewardUnavailableError)


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
