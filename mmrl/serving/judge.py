"""Questions to a model behind an OpenAI-compatible server (vLLM, SGLang, ...), and its answers. Imports no torch."""

import email.utils
import http.client
import ipaddress
import json
import logging
import os
import random
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import exp, isfinite, nan
from typing import Annotated, Any

from PIL import Image

from mmrl.core.ranges import Count, NonNegative, Positive, Range, check_ranges
from mmrl.core.samples import RewardUnavailableError, Scored
from mmrl.serving.media import PictureFormat, data_url

Json = Any
"""A JSON value that a server sent; whoever reads it catches what a wrong shape raises."""
log = logging.getLogger("mmrl")
RETRIED = frozenset({408, 409, 425, 429})
"""Besides everything from 500 on."""
HOPELESS = frozenset({401, 403, 404, 405})
"""The server refuses every request alike: wrong key, address or model."""
MOST_WAIT_S = 30.0
MOST_BYTES = 64 * 2**20
"""The largest answer that is read."""


class JudgeError(RuntimeError):
    """The server did not answer, or not what was asked: no score."""


class HopelessError(JudgeError, RewardUnavailableError):
    """No request can succeed before the configuration changes: the run stops with this sentence."""


@dataclass(frozen=True)
class Endpoint:
    """A model's address and how it is asked: `server.url = "http://127.0.0.1:8000/v1"` in a reward's table."""

    url: str = "http://127.0.0.1:8000/v1"
    model: str = ""
    """Empty: the first one the server lists."""
    api_key_env: str = ""
    """Name of the environment variable that holds the key; keys do not stand in configs."""
    timeout_s: Positive = 120.0
    """For one request."""
    deadline_s: Positive = 900.0
    """For all questions about one group, retries included."""
    retries: Annotated[int, Range(0, 1000)] = 4
    """After busy or lost servers (408, 409, 425, 429, 5xx, no connection), with growing pauses or those the server asks for."""
    concurrency: Annotated[int, Range(1, 1024)] = 8
    temperature: NonNegative = 0.0
    max_tokens: Count = 4096
    """The longest answer, thoughts included."""
    max_side: Count = 1024
    """Pictures are shrunk to this many pixels, shape kept; 0 = as they are."""
    picture_format: PictureFormat = "png"
    """jpeg is sent at quality 95."""
    extra: Mapping[str, object] = field(default_factory=dict)
    """Further keys of the request: `{ chat_template_kwargs = { enable_thinking = false } }`."""

    # read by pydantic when a config's table becomes an Endpoint: a misspelt key is an error
    __pydantic_config__ = {"extra": "forbid"}  # noqa: RUF012 - pydantic's name and type

    def __post_init__(self) -> None:
        check_ranges(self)
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"server.url is {self.url!r}: write http://host:port/v1")


@dataclass(frozen=True)
class Question:
    """A question to the model: pictures first, then the text."""

    text: str
    pictures: Sequence[Image.Image] = ()
    probabilities: bool = False
    """True: also ask how probable the first tokens of the answer were."""


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

    Raises:
        JudgeError: all questions failed, or none can succeed.
    """
    found: list[Scored] = []
    errors: list[str] = []
    for outcome in ask(endpoint, questions):
        try:
            if isinstance(outcome, JudgeError):
                raise outcome
            scored = read(outcome)
            found.append(Scored(scored.value, {**scored.parts, "tokens": float(outcome.tokens)}))
        except JudgeError as error:
            errors.append(str(error))
            found.append(Scored(nan))
    if errors and len(errors) == len(questions):
        raise JudgeError(errors[0])
    if errors:
        log.warning("%d of %d questions to %s failed; the first: %s", len(errors), len(questions), endpoint.url, errors[0])
    return found


def ask(endpoint: Endpoint, questions: Sequence[Question]) -> list[Reply | JudgeError]:
    """Ask all questions, `concurrency` at a time: an answer or an error for each, in order.

    Raises:
        HopelessError: the server refuses every request.
    """
    if not questions:
        return []
    deadline = time.monotonic() + endpoint.deadline_s
    model = endpoint.model or first_model(endpoint, deadline)

    def ask_one(question: Question) -> Reply | JudgeError:
        try:
            return read_reply(request(endpoint, "/chat/completions", body_of(endpoint, model, question), deadline))
        except JudgeError as error:
            return error

    with ThreadPoolExecutor(min(endpoint.concurrency, len(questions))) as pool:
        outcomes = list(pool.map(ask_one, questions))
    for outcome in outcomes:
        if isinstance(outcome, HopelessError):
            raise outcome
    return outcomes


def first_model(endpoint: Endpoint, deadline: float) -> str:
    """The name of the first model the server lists."""
    listed = request(endpoint, "/models", None, deadline)
    try:
        return str(listed["data"][0]["id"])
    except (KeyError, IndexError, TypeError):
        raise HopelessError(f"{endpoint.url}/models lists no model: set server.model") from None


def body_of(endpoint: Endpoint, model: str, question: Question) -> dict[str, object]:
    """The request's body as JSON values."""
    pictures = [data_url(picture, endpoint.max_side, endpoint.picture_format) for picture in question.pictures]
    content: list[dict[str, object]] = [{"type": "image_url", "image_url": {"url": url}} for url in pictures]
    content.append({"type": "text", "text": question.text})
    body: dict[str, object] = {
        "model": model,
        "messages": [{"role": "user", "content": content}],
        "temperature": endpoint.temperature,
        "max_tokens": 1 if question.probabilities else endpoint.max_tokens,
    }
    if question.probabilities:
        body |= {"logprobs": True, "top_logprobs": 20}
    return body | dict(endpoint.extra)


def request(endpoint: Endpoint, path: str, body: Mapping[str, object] | None, deadline: float) -> Json:
    """Send a request and return the server's JSON answer, after retries.

    Raises:
        JudgeError: with the last trouble.
    """
    # own generator: pauses must not change what is sampled elsewhere
    jitter = random.Random()
    trouble, wait, tried = "", 0.0, 0
    for attempt in range(endpoint.retries + 1):
        if attempt and wait >= deadline - time.monotonic():
            break
        if attempt:
            time.sleep(wait)
        tried += 1
        wait = min(0.5 * 2**attempt * (1 + jitter.random()), MOST_WAIT_S)
        try:
            return send(endpoint, path, body, max(min(endpoint.timeout_s, deadline - time.monotonic()), 0.01))
        except urllib.error.HTTPError as error:
            trouble = refusal(f"{endpoint.url}{path}", error)
            wait = retry_delay(error.headers.get("Retry-After"), wait)
        except (RecursionError, OverflowError) as error:
            raise JudgeError(f"{endpoint.url}{path} answered JSON that cannot be read: {error}") from None
        except (OSError, http.client.HTTPException) as error:
            trouble = f"{endpoint.url}{path} cannot be reached: {getattr(error, 'reason', error) or type(error).__name__}"
        except ValueError as error:
            raise JudgeError(f"{endpoint.url}{path} answered something that is not JSON: {error}") from None
        log.info("attempt %d: %s", tried, trouble)
    raise JudgeError(f"{trouble} (gave up after {tried} attempts)")


def refusal(address: str, error: urllib.error.HTTPError) -> str:
    """The server's words of refusal, where asking again may help.

    Raises:
        JudgeError: asking this again cannot help; HopelessError: asking anything cannot.
    """
    with error:
        trouble = f"{address} answered {error.code}: {error.read(500).decode(errors='replace').strip()}"
    if 300 <= error.code < 400:
        where = error.headers.get("Location", "an address it does not name")[:200]
        raise HopelessError(
            f"{address} redirects to {where!r}, which is not followed: if that is right, write it into server.url"
        ) from None
    if error.code in HOPELESS:
        raise HopelessError(f"{trouble} (check server.url, server.model and server.api_key_env)") from None
    if error.code not in RETRIED and error.code < 500:
        raise JudgeError(trouble) from None
    return trouble


def send(endpoint: Endpoint, path: str, body: Mapping[str, object] | None, timeout_s: float) -> Json:
    """Send one request without retries and return the JSON answer."""
    headers = {"Content-Type": "application/json"}
    if endpoint.api_key_env:
        key = os.environ.get(endpoint.api_key_env)
        if not key:
            raise HopelessError(
                f"environment variable {endpoint.api_key_env} (server.api_key_env) is not set: export the key there"
            )
        headers["Authorization"] = f"Bearer {key}"
    data = None if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(endpoint.url.rstrip("/") + path, data, headers)
    with opener(endpoint.url).open(asked, timeout=timeout_s) as answer:
        text = answer.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise JudgeError(f"{endpoint.url}{path} answered more than {MOST_BYTES >> 20} MiB")
    return json.loads(text)


class _Stay(urllib.request.HTTPRedirectHandler):
    """A handler that follows no redirect: it would take the key to whatever address the server names."""

    def redirect_request(self, req: object, fp: object, code: int, msg: str, headers: object, newurl: str) -> None:
        return None


def opener(url: str) -> urllib.request.OpenerDirector:
    """An opener of URLs that follows no redirects, and uses the environment's proxies for other machines only."""
    local = is_local(urllib.parse.urlsplit(url).hostname or "")
    return urllib.request.build_opener(_Stay, *([urllib.request.ProxyHandler({})] if local else []))


def is_local(host: str) -> bool:
    """True if a host name means this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def retry_delay(header: str | None, otherwise: float) -> float:
    """Seconds that a Retry-After header asks for: a number or a date."""
    if not header:
        return otherwise
    try:
        asked = float(header)
    except ValueError:
        asked = nan
    if isfinite(asked):
        return max(asked, 0.0)
    try:
        return max(email.utils.parsedate_to_datetime(header).timestamp() - time.time(), 0.0)
    except (OverflowError, TypeError, ValueError):
        return otherwise


def read_reply(answer: Json) -> Reply:
    """The text and probabilities of a chat completion.

    Raises:
        JudgeError: it is not one.
    """
    try:
        choice = answer["choices"][0]
        text = choice["message"].get("content") or ""
        places = (choice.get("logprobs") or {}).get("content") or []
        first: dict[str, float] = {}
        for entry in (places[0].get("top_logprobs") or [places[0]]) if places else []:
            first[entry["token"]] = first.get(entry["token"], 0.0) + exp(entry["logprob"])
        tokens = int((answer.get("usage") or {}).get("total_tokens") or 0)
    except (ArithmeticError, AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
        raise JudgeError(f"the server's answer is no chat completion ({error!r}): {str(answer)[:200]}") from None
    return Reply(str(text), first, tokens, choice.get("finish_reason") == "length")
