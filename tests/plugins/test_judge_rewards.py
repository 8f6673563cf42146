"""Rewards that ask a server: a real HTTP server on this machine plays the model, and all that servers do wrong."""

import base64
import io
import json
import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from PIL import Image

from mmrl.core.types import Group, Prompt, Sample
from mmrl.runtime.blame import RewardUnavailableError
from mmrl.runtime.net import fetch
from mmrl.serving.judges.judge import Endpoint, HopelessError, JudgeError, Question, Reply, ask
from mmrl.serving.judges.verdicts import fill_template, json_object, number, preference, schedule, win_rates, yes_share
from tests.plugins.conftest import pictured, values
from tests.support.each import for_each
from tests.support.refused import refused
from tests.support.rude_servers import answers, hears_nothing, rude, without_pauses


class Server:
    """An OpenAI-compatible server: `answer(text, pictures)` is a string, an object for the body, or (status, headers) in both."""

    def __init__(self, answer, url=""):
        self.answer, self.asked, self.url, self.busy, self.most = answer, [], url, 0, 0
        self.lock = threading.Lock()

    def script(self, connection, request):
        head, _, body = request.partition(b"\r\n\r\n")
        if head.startswith(b"GET"):
            return answers(200, b'{"data": [{"id": "small-judge"}]}')(connection, request)
        asked = json.loads(body)
        with self.lock:
            self.asked.append((asked, dict(line.split(": ", 1) for line in head.decode().splitlines()[1:])))
            self.busy += 1
            self.most = max(self.most, self.busy)
        parts = asked["messages"][0]["content"]
        opened = [decode(part["image_url"]["url"]) for part in parts if part["type"] == "image_url"]
        [text] = [part["text"] for part in parts if part["type"] == "text"]
        said = self.answer(text, opened)
        with self.lock:
            self.busy -= 1
        status, headers = said if isinstance(said, tuple) else (200, {})
        if status != 200:
            said = {"error": "as told"} | headers
        elif isinstance(said, str):
            said = completion(said)
        data = said if isinstance(said, bytes) else json.dumps(said).encode()
        return answers(status, data, *(f"{name}: {value}" for name, value in headers.items()))(connection, request)

    def endpoint(self, **fields):
        return Endpoint(**{"url": self.url, "timeout_s": 60.0, **fields})


def completion(text, tokens=(), finish="stop"):
    """A chat completion; `tokens` = (token, probability) at its first place."""
    top = [{"token": token, "logprob": math.log(share)} for token, share in tokens]
    logprobs = {"content": [{"token": top[0]["token"], "logprob": top[0]["logprob"], "top_logprobs": top}]} if top else None
    choice = {"message": {"role": "assistant", "content": text}, "logprobs": logprobs, "finish_reason": finish}
    return {"choices": [choice], "usage": {"total_tokens": 11}}


def decode(url):
    kind, _, data = url.partition(",")
    assert kind in ("data:image/png;base64", "data:image/jpeg;base64")
    return Image.open(io.BytesIO(base64.b64decode(data)))


def shade(picture):
    """How bright a picture is: what our fake model calls quality."""
    return float(np.asarray(picture.convert("L")).mean()) / 255


def judges() -> Iterator[Callable[[Any], Server]]:
    """answer -> Server; all are shut down."""
    with ExitStack() as running:

        def start(answer):
            server = Server(answer)
            server.url = running.enter_context(rude(server.script)).url + "/v1"
            return server

        yield start


serve = pytest.fixture(judges)


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """Pauses between retries are noted, not made."""
    pauses = []
    monkeypatch.setattr(fetch, "time", without_pauses(pauses.append))
    return pauses


def grey(value, size=(40, 30)):
    return Image.new("RGB", size, (value, value, value))


SHADES = [grey(51), grey(204), grey(153)]
ONE, ALL = pictured("a fox", SHADES[0]), pictured("a fox", *SHADES)


def test_a_number_per_picture_in_order(serve, reward):
    def answer(text, pictures):
        if shade(pictures[0]) < 0.5:
            threading.Event().wait(0.1)
        return f"I would say 3 of it is good. Score: {10 * shade(pictures[0]):.0f}"

    server = serve(answer)
    scores = reward("vlm_judge", server=server.endpoint(), label="Score")(ALL)
    assert values(scores) == [pytest.approx(x) for x in (0.2, 0.8, 0.6)]
    assert scores[1].parts == {"raw": 8.0, "tokens": 11.0}
    body, headers = server.asked[0]
    assert body["model"] == "small-judge" and body["temperature"] == 0 and "a fox" in body["messages"][0]["content"][-1]["text"]
    assert "Authorization" not in headers


def test_json_and_probabilities(serve, reward):
    server = serve(lambda _, shown: f'As ```{{"score": 1}}```: ```json\n{{"score": {5 * shade(shown[0]):.1f}, "a": "{{}}"}}\n```')
    scores = reward("vlm_judge", server=server.endpoint(), scoring="json", high=5.0)(ALL)
    assert values(scores) == [pytest.approx(x) for x in (0.2, 0.8, 0.6)]

    shares = [("Yes", 0.5), (" yes", 0.1), ("No", 0.15), ("no", 0.05), ("Maybe", 0.2)]
    server = serve(lambda text, pictures: completion("Yes", shares))
    (score,) = reward("vlm_judge", server=server.endpoint(), scoring="yes")(ONE)
    assert score.value == pytest.approx(0.6 / 0.8)
    assert server.asked[0][0]["max_tokens"] == 1 and server.asked[0][0]["top_logprobs"] == 20
    (score,) = reward("vqa_score", server=server.endpoint())(ONE)
    assert score.value == pytest.approx(0.6)
    assert 'show "a fox"' in server.asked[1][0]["messages"][0]["content"][-1]["text"]


@for_each(
    "text, label, value",
    [
        ("3/10", "", 3), ("3 out of 10", "", 3), ("3 of 10", "", 3), ("3 (scale 0 to 10)", "", 3), ("3 / 10.0", "", 3),
        ("On a scale of 0-10: 3", "", 3), ("Score: 3/10, for the hat", "Score", 3), ("10", "", 10), ("10/10", "", 10),
        ("Part 3 - 8", "", 8), ("Score (0-10): 7", "Score", 7), ("Score: 3 of 10: 8.5", "", 8.5), ("<think>9</think>4", "", 4),
        ("<answer> 2 </answer> 9", "", 2), ("-0", "", 0), (".9", "", 0.9), ("8.5 Out of 10", "", 8.5), ("a score of 10", "", 10),
    ],
)  # fmt: skip
def test_the_last_number_counts_and_the_scale_is_none(text, label, value):
    assert number(Reply(text), 0.0, 10.0, label) == value


@for_each(
    "text",
    ["none", "11", "-1", "<think> 5", "3/5", "3 of 5", "3 out of 5", "3,5", "3/100", "7-8", "7 to 8", "7 AND 8", "S: 7\u20138"],
)
def test_no_number_of_the_scale_cannot_be_read(text):
    refused("cannot be read", number, Reply(text), 0.0, 10.0, error=JudgeError)


def test_a_cut_answer_may_lack_its_last_number():
    words = r"may not be its last word; it was cut at server\.max_tokens"
    for text, label in (("It deserves 9", ""), ("Score: 1", "Score")):
        refused(words, number, Reply(text, cut=True), 0.0, 10.0, label, error=JudgeError)
    assert number(Reply("Score: 1, for it", cut=True), 0.0, 10.0, "Score") == 1


def test_what_cannot_be_read_fails_and_is_not_zero(serve, reward, caplog):
    said = {51: "no idea", 204: "7", 153: "99"}
    server = serve(lambda text, pictures: said[round(255 * shade(pictures[0]))])
    scores = reward("vlm_judge", server=server.endpoint())(ALL)
    assert math.isnan(scores[0].value) and scores[1].value == 0.7 and math.isnan(scores[2].value)
    assert "2 of 3 questions" in caplog.text and "no number" in caplog.text
    for other, words in ((completion("Perhaps", [("Perhaps", 0.9)]), "neither yes nor no"), ("Yes", "no log-probabilities")):
        server = serve(lambda text, pictures, said=other: said)
        refused(words, reward("vqa_score", server=server.endpoint()), ONE, error=JudgeError)


def test_busy_servers_are_asked_again(serve, reward, no_pauses):
    seen = Counter()
    trouble = [(500, {}), (429, {"Retry-After": "7"}), (503, {"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}), (408, {})]

    def answer(text, pictures):
        key = round(255 * shade(pictures[0]))
        seen[key] += 1
        return trouble[seen[key] - 1] if key == 51 and seen[key] <= 4 else "5"

    server = serve(answer)
    scores = reward("vlm_judge", server=server.endpoint())(ALL)
    assert values(scores) == [0.5] * 3
    assert seen == {51: 5, 204: 1, 153: 1}
    assert no_pauses[1] == 7 and no_pauses[2] == 1 and 1 <= no_pauses[0] <= 2


FAULTS = {
    **{f"answers {code}": ((code, {}), HopelessError, rf"answered {code}.*check server\.url") for code in (401, 403, 404)},
    "HTML": (b"<html>busy</html>", JudgeError, "not JSON"),
    "nothing": (b"{}", JudgeError, "no chat completion"),
    "no choice": (b'{"choices": []}', JudgeError, "no chat completion"),
    "a message that is a text": (b'{"choices": [{"message": "x"}]}', JudgeError, "no chat completion"),
    "a list": (b"[1]", JudgeError, "no chat completion"),
    "pieces": (b'{"choices": [{"message": {"content": [{"text": "7"}]}}]}', JudgeError, "no text, or half of one"),
    "half": (b'{"choices": [{"message": {"content": "1"}, "finish_reason": "abort"}]}', JudgeError, "no text, or half of one"),
    "no number": ("no idea", JudgeError, "cannot be read: no number"),
    "a pause beyond the deadline, which is not made": ((429, {"Retry-After": "3600"}), JudgeError, r"gave up after 1 attempt\)"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_hopeless_or_cannot_be_read_is_asked_once(name, serve, reward):
    said, error, words = FAULTS[name]
    server = serve(lambda text, pictures: said)
    refused(words, reward("vlm_judge", server=server.endpoint(deadline_s=60.0)), ONE, error=error)
    assert len(server.asked) == 1


def test_it_gives_up_with_the_last_trouble_and_a_refused_question_fails_alone(serve, reward, no_pauses):
    server = serve(lambda text, pictures: (500, {}))
    words = r"answered 500: .*as told.*gave up after 3 attempts"
    refused(words, reward("vlm_judge", server=server.endpoint(retries=2)), ONE, error=JudgeError)
    assert len(server.asked) == 3 and no_pauses[1] > no_pauses[0]
    server = serve(lambda text, pictures: (400, {}) if shade(pictures[0]) < 0.5 else "5")
    first, second, _ = reward("vlm_judge", server=server.endpoint())(ALL)
    assert math.isnan(first.value) and second.value == 0.5
    assert len(server.asked) == 3


def test_no_server_and_slow_servers(reward):
    with rude(hears_nothing) as silent:
        for url, words in (("http://127.0.0.1:9", r"reached.*gave up after 1 attempt\)"), (silent.url, "no whole answer")):
            refused(words, reward("vlm_judge", server=Endpoint(url, "m", timeout_s=0.2, retries=0)), ONE, error=JudgeError)


def test_a_model_that_the_server_neither_lists_nor_knows_is_refused_before_the_run(serve):
    said = {"gone": (404, {}), "busy": (503, {}), "odd": (400, {"of": "model"}), "thinks": (400, {"of": "max_tokens, model"})}
    server = serve(lambda *_: said.get(server.asked[-1][0]["model"], "5"))
    for model in ("", "small-judge", "alias", "busy", "thinks"):
        server.endpoint(model=model).ready()
    assert [(asked["model"], asked["max_tokens"]) for asked, _ in server.asked] == [("alias", 1), ("busy", 1), ("thinks", 1)]
    for model, status in (("gone", 404), ("odd", 400)):
        words = f"answered {status}.*: set server.model to one that the server lists, small-judge$"
        refused(words, server.endpoint(model=model).ready, error=RewardUnavailableError)


def test_keys_come_from_the_environment(serve, reward, monkeypatch):
    server = serve(lambda text, pictures: "5")
    scored = reward("vlm_judge", server=server.endpoint(api_key_env="JUDGE_KEY", model="m"))
    refused(r"JUDGE_KEY.*is not set", scored, ONE, error=HopelessError)
    monkeypatch.setenv("JUDGE_KEY", "secret")
    scored(ONE)
    assert server.asked[0][1]["Authorization"] == "Bearer secret"
    assert "secret" not in repr(scored)


def test_a_configs_table_becomes_an_endpoint():
    from mmrl.app.config.plug_ins import read_reward
    from mmrl.app.config.run import RewardConfig
    from mmrl.app.toml.tables import Table

    def made(**server) -> Any:
        return read_reward(RewardConfig(use="video_judge", args={"server": server}), ("reward", "0"), Table.of({}, "run.toml"))()

    assert made(url="http://h:1/v1", extra={"seed": 1}).server == Endpoint(url="http://h:1/v1", extra={"seed": 1})
    refused(r"server\.adress", made, adress="http://h:1/v1")


def test_never_more_than_the_agreed_number_at_once(serve):
    together = threading.Barrier(3, timeout=60)
    server = serve(lambda text, pictures: (together.wait() < 3 and threading.Event().wait(0.05)) or "5")
    replies = ask(server.endpoint(concurrency=3, model="m"), [Question("x")] * 9)
    assert [getattr(reply, "text", reply) for reply in replies] == ["5"] * 9
    assert server.most == 3


def test_pictures_are_shrunk_with_their_shape_and_arrive_whole(serve):
    sizes = []
    server = serve(lambda text, pictures: sizes.append([picture.size for picture in pictures]) or "5")
    noise = Image.effect_noise((60, 30), 90).convert("RGB")
    ask(server.endpoint(max_side=30, model="m"), [Question("x", [noise, grey(9, (10, 20))])])
    assert sizes == [[(30, 15), (10, 20)]]
    got = []
    server = serve(lambda text, pictures: got.extend(pictures) or "5")
    ask(server.endpoint(model="m"), [Question("x", [noise])])
    ask(server.endpoint(model="m", picture_format="jpeg", extra={"seed": 4}), [Question("x", [noise])])
    assert np.array_equal(np.asarray(got[0]), np.asarray(noise)) and got[1].format == "JPEG"
    assert server.asked[1][0]["seed"] == 4


def test_written_answers_are_judged_with_the_prompts_pictures(serve, reward, tmp_path):
    grey(204).save(tmp_path / "a.png")
    seen = []
    server = serve(lambda text, pictures: seen.append((text, len(pictures))) or "10")
    prompt = Prompt("p7", "How bright?", (str(tmp_path / "a.png"),), answer="very")
    samples = (Sample("quite bright"), Sample("dark {prompt}"))
    scores = reward("vlm_judge", server=server.endpoint(concurrency=1))(Group(0, prompt, samples))
    assert values(scores) == [1.0, 1.0]
    assert all(word in seen[0][0] for word in ("How bright?", "very", "quite bright")) and seen[0][1] == 1
    assert "dark {prompt}" in seen[1][0], "what a policy writes is not filled in again"
    refused("'p7' has no answer", reward("vlm_judge", server=server.endpoint()), Group(0, Prompt("p7", "How bright?"), samples))
    refused("neither picture nor text", reward("vlm_judge", server=server.endpoint()), Group(0, prompt, (Sample(),)))


def test_templates(serve, reward, tmp_path):
    seen = []
    server = serve(lambda text, pictures: seen.append(text) or "10")
    (tmp_path / "mine.txt").write_text('Is it {mood}? {prompt} {"score": x}')
    prompt = Prompt("p7", "a fox", columns={"mood": "calm", "template": "a column like any other"})
    reward("vlm_judge", server=server.endpoint(), template=str(tmp_path / "mine.txt"))(Group(0, prompt, (Sample(image=grey(9)),)))
    assert seen == ['Is it calm? a fox {"score": x}']
    with pytest.raises(FileNotFoundError, match=r"no file, and no text with \{prompt\}"):
        reward("vlm_judge", server=server.endpoint(), template="nowhere.txt")(pictured("a fox", grey(9)))
    refused("low must be below high", reward, "vlm_judge", low=3.0, high=3.0)
    refused(r"server\.url is 'localhost:8000'", Endpoint, url="localhost:8000")


def test_unified_reward_scores_of_one_picture(serve, reward):
    def answer(text, pictures):
        x = 1 + 4 * shade(pictures[0])
        if "Final Score" in text:
            return f"<think>Final Score: 1</think> It has 2 ears.\nFinal Score: {x:.2f}"
        return f"Alignment Score (1-5): {x:.2f}\nCoherence Score (1-5): 3.0\n**Style Score (1-5):** 1"

    server = serve(answer)
    point = reward("unified_reward", server=server.endpoint(), form="point")(ALL)
    assert values(point) == [pytest.approx(x, abs=2e-3) for x in (0.2, 0.8, 0.6)]
    axes = reward("unified_reward", server=server.endpoint(), form="axes")(ALL)
    # ((1 + 4 * .2) + 3 + 1) / 3 = 1.933..., minus 1, over 4
    assert axes[0].value == pytest.approx(((1.8 + 3 + 1) / 3 - 1) / 4)
    assert axes[0].parts == {"alignment": 1.8, "coherence": 3.0, "style": 1.0, "tokens": 11.0}
    server = serve(lambda text, pictures: "Alignment Score (1-5): 4\nCoherence Score (1-5): 9\n")
    with pytest.raises(JudgeError, match="no score from 1 to 5 for coherence, style"):
        reward("unified_reward", server=server.endpoint(), form="axes")(ONE)


def pair_answer(bias=0.0):
    def answer(text, pictures):
        a, b = (shade(picture) for picture in pictures)
        if "Alignment Score" in text:
            share = min(max(0.5 + (a - b) / 2 + bias, 0), 1)
            return "\n".join(
                f"{axis} Score:\n Image 1: {share:.4f}\n Image 2: {1 - share:.4f}" for axis in ("Alignment", "Coherence", "Style")
            )
        better = 1 if a + bias > b else 2
        return f"<think>Image {3 - better} is better at first sight</think><answer>Image {better} is better</answer>"

    return answer


def test_unified_reward_win_rates(serve, reward):
    server = serve(pair_answer())
    wins = reward("unified_reward", server=server.endpoint(), form="pair")(ALL)
    assert values(wins) == [0, 1, 0.5]
    assert len(server.asked) == 6 and wins[0].parts["comparisons"] == 2
    soft = reward("unified_reward", server=server.endpoint(), form="pair_axes")(ALL)
    # differences of brightness .6, .4, .2; share = .5 + half of it
    assert values(soft) == [pytest.approx(x, abs=1e-3) for x in (0.25, 0.7, 0.55)]


def test_a_judge_that_prefers_the_first_picture_gives_no_one_an_advantage(serve, reward):
    server = serve(pair_answer(bias=5.0))
    for form in ("pair", "pair_axes"):
        wins = reward("unified_reward", server=server.endpoint(), form=form)(ALL)
        assert values(wins) == [0.5] * 3 and wins[0].parts["first_wins"] == 1
    server = serve(pair_answer(bias=0.1))
    fair = reward("unified_reward", server=server.endpoint(), form="pair_axes")(ALL)
    assert values(fair) == [pytest.approx(x, abs=1e-3) for x in (0.25, 0.7, 0.55)]


def test_pairwise_win_rate_asks_any_judge_in_both_orders(serve, reward):
    server = serve(pair_answer())
    wins = reward("pairwise_win_rate", server=server.endpoint(), template="{prompt}: which?")(ALL)
    assert values(wins) == [0, 1, 0.5]
    assert len(server.asked) == 6 and wins[0].parts["first_wins"] == 0.5
    one_sided = serve(pair_answer(bias=5.0))
    wins = reward("pairwise_win_rate", server=one_sided.endpoint(), opponents=1)(pictured("a fox", *SHADES, SHADES[0]))
    assert values(wins) == [0.5] * 4 and wins[0].parts["comparisons"] == 2
    silent = serve(lambda text, pictures: "cannot say")
    refused("no pair", reward("pairwise_win_rate", server=silent.endpoint()), ALL, error=JudgeError)


def test_a_failed_comparison_is_left_out_and_counted(serve, reward):
    honest = pair_answer()

    def answer(text, pictures):
        first, second = (round(255 * shade(picture)) for picture in pictures)
        return "cannot say" if (first, second) == (51, 204) else honest(text, pictures)

    server = serve(answer)
    wins = reward("unified_reward", server=server.endpoint(), form="pair")(ALL)
    assert values(wins) == [0, 1, 0.5]
    assert [score.parts["left_out"] for score in wins] == [1, 1, 0]
    server = serve(lambda text, pictures: "cannot say")
    refused("names no better one", reward("unified_reward", server=server.endpoint(), form="pair"), ALL, error=JudgeError)
    refused("needs two samples", reward("unified_reward", server=server.endpoint(), form="pair"), ONE)


def test_schedules_and_win_rates_without_judgements():
    assert schedule(3) == [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]
    assert len(schedule(8)) == 56
    ring = schedule(6, opponents=1)
    assert len(ring) == 12 and Counter(i for pair in ring for i in pair) == {i: 4 for i in range(6)}
    assert schedule(4, opponents=9) == schedule(4)
    outcomes = {(0, 1): 1.0, (1, 0): 0.0, (0, 2): None, (2, 0): 1.0, (1, 2): None, (2, 1): None}
    rates = win_rates(3, schedule(3), outcomes)
    assert [rates[0].value, rates[1].value] == [1, 0] and math.isnan(rates[2].value or 0)


def video(*values):
    return np.stack([np.full((20, 30, 3), value, np.uint8) for value in values])


def test_video_judge_sends_frames_in_order(serve, reward):
    seen = []

    def answer(text, pictures):
        seen.append([round(255 * shade(picture)) for picture in pictures])
        return f"{10 * np.mean([shade(picture) for picture in pictures]):.0f}"

    server = serve(answer)
    clips = (video(*range(0, 250, 25)), video(0, 255))
    made = Group(0, Prompt("p7", "a fox runs"), tuple(Sample(video=clip) for clip in clips))
    scores = reward("video_judge", server=server.endpoint(concurrency=1, max_side=512), frames=4)(made)
    assert seen == [[0, 75, 150, 225], [0, 255]]
    assert values(scores) == [0.4, 0.5]
    text = server.asked[0][0]["messages"][0]["content"][-1]["text"]
    assert "These 4 pictures" in text and "a fox runs" in text
    as_pictures = Group(0, made.prompt, (Sample(video=[Image.fromarray(frame) for frame in clips[1]]),))
    assert reward("video_judge", server=server.endpoint())(as_pictures)[0].value == 0.5
    refused("'p7' has no video", reward("video_judge", server=server.endpoint()), Group(0, made.prompt, (Sample(image=grey(3)),)))
    with pytest.raises(ValueError, match="neither pictures nor bytes"):
        reward("video_judge", server=server.endpoint())(Group(0, made.prompt, (Sample(video=clips[0] / 255),)))


def test_labelled_numbers_json_and_preferences():
    assert number(Reply("Score: 2 ... Final score = **4**, 9 words"), 1.0, 5.0, "final score") == 4
    assert json_object(Reply('well {"a": {"b": 1}} so'))["a"] == {"b": 1}
    for text in ("[1]", "{broken", "none"):
        refused("no JSON object", json_object, Reply(text, cut=True), error=JudgeError)
    refused(r"cut at server\.max_tokens", json_object, Reply('{"a": ', cut=True), error=JudgeError)
    assert preference(Reply("Image 1 is better")) == 1 and preference(Reply("<answer>Image 2 is better</answer>")) == 0
    assert preference(Reply("Both images are equally good")) == 0.5
    refused("names no better", preference, Reply("Image 1 is better. Image 2 is better."), error=JudgeError)
    assert fill_template('{prompt} {"a": {x}}', prompt="{x}") == '{x} {"a": {x}}'
    assert yes_share(Reply("", {"\u2581Yes": 0.2, "NO": 0.6})) == pytest.approx(0.25)


@pytest.mark.parametrize(
    ("about", "asked"),
    [("all", "followed, and everything else kept"), ("followed", "Leave aside what else"), ("kept", "does not speak of")],
)
def test_an_edit_is_judged_beside_its_sources(serve, reward, about, asked):
    def answer(text, pictures):
        assert "make it a fox" in text and asked in text and "first the 2 pictures given, and last the result" in text
        return f"{10 * (shade(pictures[-1]) - shade(pictures[0])):.0f}" if len(pictures) == 3 else "?"

    prompt = Prompt("p7", "make it a fox", (grey(51), grey(9)))
    samples = Group(0, prompt, (Sample(image=grey(204)), Sample(image=grey(102))))
    scores = reward("vlm_judge", server=serve(answer).endpoint(), about=about)(samples)
    assert values(scores) == [0.6, 0.2]
