"""Questions to a model behind an OpenAI-compatible server (vLLM, SGLang, ...), and its answers. Imports no torch."""

import json
import logging
import random
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from math import exp, nan
from pathlib import Path
from typing import Annotated, TypeVar

from PIL import Image

from mmrl.core.samples import Prompt, Scored
from mmrl.runtime.blame import RewardUnavailableError
from mmrl.runtime.net.fetch import (
    BUSY,
    AnswerError,
    HttpRequest,
    HttpResponse,
    NoConnectionError,
    UnreachableError,
    attempts,
    check_address,
    words,
)
from mmrl.runtime.net.secrets import Json, hide_in_json, read_secret
from mmrl.runtime.ranges import Count, CountOrNone, NonNegative, Positive, Range, check_ranges
from mmrl.serving.files import refuse_own_code
from mmrl.serving.media import PictureFormat, data_url

log = logging.getLogger("mmrl")
Q = TypeVar("Q")
A = TypeVar("A")
RETRIED = BUSY | {409}
"""Besides everything from 500 on."""
HOPELESS = frozenset({401, 403, 404, 405})
"""The server refuses every request alike: wrong key, address or model."""
MOST_WAIT_S = 30.0
LAST_DOUBLED = 5
"""Pauses double that often."""
AWAITED: set[str] = set()
"""Addresses that take no connections, each of which is spoken of once."""
ANSWER_S = 10.0
"""Seconds that a server has to answer whether it is there."""


class JudgeError(RuntimeError):
    """The server did not answer, or not what was asked: no score."""


class HopelessError(JudgeError, RewardUnavailableError):
    """No request can succeed before the configuration changes: the run stops with this sentence."""


class AbsentError(JudgeError, RewardUnavailableError):
    """Nothing took connections until the deadline: the run stops with this sentence."""


@dataclass(frozen=True)
class ServedModel:
    """A model's address and how it is asked, whatever it makes."""

    url: str = "http://127.0.0.1:8000/v1"
    """Where the server answers, /v1 included."""
    model: str = ""
    """Empty: the first one the server lists."""
    api_key_env: str = ""
    """Name of the environment variable that holds the key; keys do not stand in configs."""
    timeout_s: Positive = 120.0
    """For one request, from its start to the last byte of the answer."""
    deadline_s: Positive = 900.0
    """For all questions about one group, retries included."""
    retries: Annotated[int, Range(0, 1000)] = 4
    """After busy servers and lost answers (408, 409, 425, 429, 5xx), with growing pauses of at least a second or those the server
    asks for. A server that takes no connections is waited for until deadline_s, and then the run is saved and stops; with
    retries = 0 nothing is asked twice."""
    extra: Mapping[str, object] = field(default_factory=dict)
    """Further keys of the request: `{ chat_template_kwargs = { enable_thinking = false } }`."""

    # read by pydantic when a config's table becomes a server: a misspelt key is an error
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - pydantic's name and type

    def __post_init__(self) -> None:
        check_ranges(self)
        check_address(self.url, "server.url", "http://host:port/v1")
        read_secret(self.api_key_env)

    def ready(self) -> None:
        """Ask once for its models, of which it need not know; RewardUnavailableError for no answer, no key, or a missing /v1."""
        once = replace(self, retries=0, timeout_s=min(self.timeout_s, ANSWER_S))
        try:
            once.greet(time.monotonic() + ANSWER_S)
        except JudgeError as error:
            raise RewardUnavailableError(f"{error}: start the server before the run, or set server.url to where it is") from None

    def greet(self, deadline: float) -> Sequence[str]:
        """The models that it lists; JudgeError where it does not answer, or refuses."""
        try:
            return listed(self, deadline)
        except JudgeError as error:
            if not re.search("answered (404|405)", str(error)):
                raise
            with suppress(JudgeError):
                request(self, "/v1/models", None, deadline)
                raise RewardUnavailableError(f"{error}, and its models are below /v1: end server.url in /v1") from None
        return ()


@dataclass(frozen=True)
class Endpoint(ServedModel):
    """A model's address and how it is asked: `server.url = "http://127.0.0.1:8000/v1"` in a reward's table."""

    concurrency: Annotated[int, Range(1, 1024)] = 8
    """Questions asked at the same time."""
    temperature: NonNegative = 0.0
    """Temperature of the judge's sampling; 0 = greedy."""
    max_tokens: Count = 4096
    """The longest answer, thoughts included."""
    max_side: CountOrNone = 1024
    """Pictures are shrunk to this many pixels, shape kept; 0 = as they are."""
    picture_format: PictureFormat = "png"
    """jpeg is sent at quality 95."""
    run: str = ""
    """The folder of a run of yours, whose model is asked in place of a server, sampled as its held-out prompts are; empty: the
    server. Its memory is in no plan."""
    trust_remote_code: bool = False
    """True: Python files of that run's model run, with your rights, where its config says that it needs them."""

    def ready(self) -> None:
        """Ask as any server is asked. RewardUnavailableError also where it has no model, or not the one named, or for no run."""
        if not self.run:
            super().ready()
        elif not (Path(self.run).expanduser() / "config.toml").is_file():
            raise RewardUnavailableError(f"server.run: {self.run!r} holds no run: name the folder of a judge that you trained")
        else:
            refuse_own_code(self.run, self.trust_remote_code, f"server.run: {self.run}")

    def greet(self, deadline: float) -> Sequence[str]:
        names = super().greet(deadline) if self.model else [first_model(self, deadline)]
        if self.model and names and self.model not in names:
            # servers know names that they do not list: the question decides, unless one token is too little for a thought
            try:
                request(self, "/chat/completions", body_of(self, self.model, Question("1")) | {"max_tokens": 1}, deadline)
            except JudgeError as error:
                if re.search("answered (404|400: (?!.*token).*model)", str(error)):
                    known = words(", ".join(names))
                    raise RewardUnavailableError(f"{error}: set server.model to one that the server lists, {known}") from None
        return names


@dataclass(frozen=True)
class AsksServer:
    """The common base of rewards that ask a server."""

    server: Endpoint = field(default_factory=Endpoint)
    """The server that is asked: see `[reward.server]`."""

    __post_init__ = check_ranges

    def ready(self) -> None:
        """Raises RewardUnavailableError without the server."""
        self.server.ready()


@dataclass(frozen=True)
class Question:
    """A question to the model: pictures and a text."""

    text: str
    pictures: Sequence[Image.Image] = ()
    probabilities: bool = False
    """True: also ask how probable the first tokens of the answer were."""
    text_first: bool = False
    """True: the text stands in front of the pictures, else behind them."""


@dataclass(frozen=True)
class Reply:
    """The model's answer."""

    text: str
    first: Mapping[str, float] = field(default_factory=dict)
    """Token -> probability at the first place of the answer, where asked for."""
    tokens: int = 0
    """Tokens of question and answer together."""
    cut: bool = False
    """True if the answer ended at max_tokens."""


def ask_for_scores(endpoint: Endpoint, questions: Sequence[Question], read: Callable[[Reply], Scored]) -> list[Scored]:
    """Ask all questions and read a score from every answer, in order. One that fails scores NaN, which counts as failed.

    Raises JudgeError where all questions failed, or none can succeed.
    """
    return ask_in_lots(endpoint, [[question] for question in questions], lambda replies: read(replies[0]))


def ask_in_lots(
    endpoint: Endpoint, lots: Sequence[Sequence[Question]], read: Callable[[Sequence[Reply]], Scored]
) -> list[Scored]:
    """Ask all questions and read a score from the answers to each lot, as `ask_for_scores`; it fails where one of them does."""
    found: list[Scored] = []
    errors: list[str] = []
    outcomes = iter(ask(endpoint, [question for lot in lots for question in lot]))
    for lot in lots:
        own = [next(outcomes) for _ in lot]
        try:
            replies = [reply_of(outcome) for outcome in own]
            scored = read(replies)
            found.append(Scored(scored.value, {**scored.parts, "tokens": float(sum(reply.tokens for reply in replies))}))
        except JudgeError as error:
            errors.append(str(error))
            found.append(Scored(nan))
    if errors and len(errors) == len(lots):
        raise JudgeError(errors[0])
    if errors:
        log.warning("%d of %d questions to %s failed; the first: %s", len(errors), len(lots), endpoint.url, errors[0])
    return found


def reply_of(outcome: Reply | JudgeError) -> Reply:
    """The reply; raises the error that stands in its place."""
    if isinstance(outcome, JudgeError):
        raise outcome
    return outcome


def ask(endpoint: Endpoint, questions: Sequence[Question]) -> list[Reply | JudgeError]:
    """Ask all questions, `concurrency` at a time: an answer or an error for each, in order.

    Raises HopelessError if none can succeed, AbsentError where the server is away until the deadline.
    """
    if not questions:
        return []
    if endpoint.run:
        return ask_run(endpoint, questions)
    deadline = time.monotonic() + endpoint.deadline_s
    model = endpoint.model or first_model(endpoint, deadline)

    def ask_one(question: Question) -> Reply | JudgeError:
        try:
            return read_reply(request(endpoint, "/chat/completions", body_of(endpoint, model, question), deadline))
        except JudgeError as error:
            return error

    return in_threads(ask_one, questions, min(endpoint.concurrency, len(questions)))


def in_threads(call: Callable[[Q], A], questions: Sequence[Q], count: int) -> list[A]:
    """The call's answers, in order; one that is a RewardUnavailableError is raised.

    Who is interrupted leaves threads behind that ask no more, and that no program waits for.
    """
    futures = [Future[A]() for _ in questions]
    waiting, is_left = deque(zip(futures, questions, strict=True)), threading.Event()

    def work() -> None:
        while not is_left.is_set():
            try:
                future, question = waiting.popleft()
            except IndexError:
                return
            try:
                future.set_result(call(question))
            except BaseException as error:  # noqa: BLE001 - who asked raises it
                future.set_exception(error)

    for number in range(count):
        threading.Thread(target=copy_context().run, args=(work,), name=f"judge-{number}", daemon=True).start()
    try:
        found = [future.result() for future in futures]
    finally:
        is_left.set()
    for one in found:
        if isinstance(one, RewardUnavailableError):
            raise one
    return found


def ask_run(endpoint: Endpoint, questions: Sequence[Question]) -> list[Reply | JudgeError]:
    """Ask the model of a run of yours in this process; HopelessError for probabilities, which it does not give."""
    # loads torch, which judges on servers do without
    from mmrl import load_judge

    if any(question.probabilities for question in questions):
        raise HopelessError(f"server.run: {endpoint.run} writes answers without probabilities: ask for a number or for json")
    try:
        judge = load_judge(endpoint.run, trust_remote_code=endpoint.trust_remote_code)
    except (FileNotFoundError, ValueError) as error:
        raise HopelessError(f"server.run: {error}") from None
    asked = [Prompt(str(i), text_of(question), tuple(question.pictures)) for i, question in enumerate(questions)]
    return [Reply(one.text or "", tokens=len(one.token_ids or ()), cut=one.truncated) for one in judge.answers(asked)]


def text_of(question: Question) -> str:
    """The text of a prompt; pictures stand in front of it where it has no marks for them."""
    return question.text + "<image>" * len(question.pictures) if question.text_first else question.text


def first_model(endpoint: Endpoint, deadline: float) -> str:
    """The name of the first model the server lists."""
    for name in listed(endpoint, deadline):
        return name
    raise HopelessError(f"{endpoint.url}/models lists no model: set server.model")


def listed(endpoint: ServedModel, deadline: float) -> list[str]:
    """The names of the models that the server lists; none where its answer is no list of them."""
    answer = request(endpoint, "/models", None, deadline)
    try:
        return [str(one["id"]) for one in answer["data"]]
    except (KeyError, TypeError):
        return []


def body_of(endpoint: Endpoint, model: str, question: Question) -> dict[str, object]:
    """The request's body as JSON values."""
    pictures = [data_url(picture, endpoint.max_side, endpoint.picture_format) for picture in question.pictures]
    content: list[dict[str, object]] = [{"type": "image_url", "image_url": {"url": url}} for url in pictures]
    content.insert(0 if question.text_first else len(content), {"type": "text", "text": question.text})
    body: dict[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "temperature": endpoint.temperature,
        "max_tokens": 1 if question.probabilities else endpoint.max_tokens,
    }
    if question.probabilities:
        body |= {"logprobs": True, "top_logprobs": 20}
    return body | dict(endpoint.extra)


def request(endpoint: ServedModel, path: str, body: Mapping[str, object] | None, deadline: float) -> Json:
    """Send a request and return the server's JSON answer, after retries and before the deadline.

    JudgeError holds the last trouble, and never the key; it is an AbsentError where nothing took connections to the end.
    """
    address, key = f"{endpoint.url.rstrip('/')}{path}", key_of(endpoint)
    if deadline <= time.monotonic():
        raise JudgeError(f"{address} was not asked: server.deadline_s is over (gave up after 0 attempts)")
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    asked = HttpRequest("GET" if body is None else "POST", address, headers, None if body is None else json.dumps(body).encode())
    # own generator: pauses must not change what is sampled elsewhere
    jitter, trouble, tried, absent, is_absent = random.Random(), "", 0, 0, False

    def pauses() -> Iterator[float]:
        while tried - absent <= endpoint.retries:
            yield min(2 ** min(tried, LAST_DOUBLED) * (1 + jitter.random()), MOST_WAIT_S)

    try:
        for answer, _ in attempts(asked, deadline, pauses(), endpoint.timeout_s):
            tried += 1
            is_absent = endpoint.retries > 0 and isinstance(answer, NoConnectionError)
            absent += is_absent
            if is_absent and address not in AWAITED:
                AWAITED.add(address)
                log.warning("%s takes no connections: waiting up to %.0f s for it", address, deadline - time.monotonic())
            if isinstance(answer, UnreachableError):
                trouble = f"{address} cannot be reached: {answer}"
            elif 200 <= answer.status < 300:
                AWAITED.discard(address)
                return json_of(answer, address)
            else:
                trouble = refusal(address, answer)
            log.info("attempt %d: %s", tried, trouble)
    except AnswerError as error:
        raise JudgeError(f"{address} {error}") from None
    except ValueError as error:
        raise HopelessError(f"server.url: {error}") from None
    trouble = f"{trouble} (gave up after {tried} attempt{'s' * (tried != 1)})"
    raise AbsentError(f"{trouble}: start it again") if is_absent else JudgeError(trouble)


def key_of(endpoint: ServedModel) -> str | None:
    """The endpoint's key; None where it names none."""
    key = read_secret(endpoint.api_key_env)
    if endpoint.api_key_env and key is None:
        raise HopelessError(f"environment variable {endpoint.api_key_env} (server.api_key_env) is not set: export the key there")
    return key


def json_of(answer: HttpResponse, address: str) -> Json:
    """The JSON of an answer, without keys; JudgeError where it is none."""
    try:
        return hide_in_json(json.loads(answer.content))
    except (RecursionError, OverflowError) as error:
        raise JudgeError(f"{address} answered JSON that cannot be read: {error}") from None
    except ValueError as error:
        raise JudgeError(f"{address} answered something that is not JSON: {words(str(error))}") from None


def refusal(address: str, answer: HttpResponse) -> str:
    """The server's words of refusal; JudgeError if asking this again cannot help, HopelessError if asking anything cannot."""
    trouble = f"{address} answered {answer.status}: {answer.text}"
    if 300 <= answer.status < 400:
        where = answer.headers.get("location", "an address it does not name")
        raise HopelessError(
            f"{address} redirects to {words(where)!r}, which is not followed: if that is right, write it into server.url"
        )
    if answer.status in HOPELESS:
        raise HopelessError(f"{trouble} (check server.url, server.model and server.api_key_env)")
    if answer.status not in RETRIED and answer.status < 500:
        raise JudgeError(trouble)
    return trouble


def read_reply(answer: Json) -> Reply:
    """The text and probabilities of a chat completion; JudgeError where it is not one."""
    try:
        choice = answer["choices"][0]
        text = choice["message"].get("content") or ""
        if not isinstance(text, str) or choice.get("finish_reason") in ("abort", "content_filter", "error"):
            raise TypeError("no text, or half of one")
        places = (choice.get("logprobs") or {}).get("content") or []
        first: dict[str, float] = {}
        for entry in (places[0].get("top_logprobs") or [places[0]]) if places else []:
            if not isinstance(entry["token"], str):
                raise TypeError("a token that is no text")
            first[entry["token"]] = first.get(entry["token"], 0.0) + exp(entry["logprob"])
        tokens = int(float((answer.get("usage") or {}).get("total_tokens") or 0))
    except (ArithmeticError, AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise JudgeError(f"the server's answer is no chat completion ({error!r}): {words(str(answer))}") from None
    return Reply(text, first, tokens, choice.get("finish_reason") == "length")
