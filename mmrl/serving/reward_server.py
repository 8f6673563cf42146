"""Rewards behind HTTP, each in whatever environment it needs: safetensors in, safetensors out, no pickle anywhere.

GET /v1/rewards says what is served; POST /v1/score/{name} takes a group and answers a reply (wire.py); /health is cheap,
/metrics is in Prometheus' text format.
"""

import asyncio
import hashlib
import hmac
import inspect
import math
import socket
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import AsyncIterable, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from mmrl.core.loops import wait_for
from mmrl.core.samples import Group, Scored, Status
from mmrl.serving import wire

KEPT_REPLIES = 256
"""Latest replies, by request id: a client that lost one gets it again without a second scoring."""
BODY = "application/octet-stream"
RewardAnswers = Sequence[float | Scored | None]


@runtime_checkable
class _Request(Protocol):
    """The part of FastAPI's Request that is used here."""

    @property
    def headers(self) -> Mapping[str, str]: ...
    def stream(self) -> AsyncIterable[bytes]: ...


@dataclass(frozen=True)
class Served:
    """A reward and its name, as the server offers them."""

    name: str
    function: Callable[[Group], RewardAnswers | Awaitable[RewardAnswers]]
    fingerprint: str
    """A hash of its source and settings: clients refuse to go on when it changes in the middle of a run."""

    @property
    def pointwise(self) -> bool:
        """True if a sample's score depends on that sample alone, so that a group may be cut."""
        return bool(getattr(self.function, "pointwise", False))

    @property
    def space(self) -> str | None:
        """The box space that the reward reads; None if it reads no boxes."""
        return getattr(self.function, "space", None)


@dataclass(frozen=True)
class Limits:
    """The largest request that the server takes."""

    max_body_mb: float = 256.0
    max_pixels: int = 64_000_000
    """The most pixels of a picture, or of a frame that is sent as pixels; video files count by their bytes alone."""
    max_samples: int = 256
    max_waiting: int = 32
    """Requests that wait or run; more are answered 503."""
    workers: int = 1
    """Groups scored at the same time: above 1 a reward is called from several threads at once."""


@dataclass
class Meter:
    """Counts for /metrics."""

    requests: dict[tuple[str, int], int] = field(default_factory=dict)
    samples: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    waiting: int = 0

    def count_answer(self, name: str, code: int) -> None:
        self.requests[name, code] = self.requests.get((name, code), 0) + 1

    def count_scores(self, name: str, reply: wire.Reply, seconds: float) -> None:
        self.samples[name] = self.samples.get(name, 0) + len(reply.values)
        self.failed[name] = self.failed.get(name, 0) + reply.status.count(Status.FAILED)
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    def text(self) -> str:
        lines = ["# TYPE mmrl_requests_total counter"]
        lines += [f'mmrl_requests_total{{reward="{n}",code="{c}"}} {v}' for (n, c), v in sorted(self.requests.items())]
        for metric, values in (("samples", self.samples), ("failed_samples", self.failed), ("scoring_seconds", self.seconds)):
            lines.append(f"# TYPE mmrl_{metric}_total counter")
            lines += [f'mmrl_{metric}_total{{reward="{name}"}} {value}' for name, value in sorted(values.items())]
        return "\n".join([*lines, "# TYPE mmrl_waiting gauge", f"mmrl_waiting {self.waiting}", ""])


class RequestRefusedError(Exception):
    """A request that is answered with a status code and one sentence."""

    def __init__(self, code: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.code, self.text, self.headers = code, text, dict(headers or {})


class Scorer:
    """The server's work: bodies are checked and scored on its workers."""

    def __init__(self, rewards: Mapping[str, Served], limits: Limits) -> None:
        self.rewards, self.limits, self.meter = rewards, limits, Meter()
        self.pool = ThreadPoolExecutor(limits.workers, thread_name_prefix="reward")
        self.replies: OrderedDict[tuple[str, str], asyncio.Future[bytes]] = OrderedDict()

    async def score(self, name: str, body: bytes, request_id: str) -> bytes:
        """Score a body and return the packed reply; a request id that was seen before gets the same one again."""
        key = (name, request_id)
        known = self.replies.get(key) if request_id else None
        if known is not None:
            return await asyncio.shield(known)
        reward = self.rewards.get(name)
        if reward is None:
            raise RequestRefusedError(404, f"no reward {name!r} is served here, only {', '.join(self.rewards)}")
        if self.meter.waiting >= self.limits.max_waiting:
            raise RequestRefusedError(503, f"{self.meter.waiting} requests are waiting already", {"Retry-After": "1"})
        self.check_shapes(body)
        self.meter.waiting += 1
        task = asyncio.ensure_future(self._score_body(reward, body))
        if request_id:
            self.replies[key] = task
            while len(self.replies) > KEPT_REPLIES:
                self.replies.popitem(last=False)
        try:
            return await asyncio.shield(task)
        except RequestRefusedError:
            self.replies.pop(key, None)
            raise

    def check_shapes(self, body: bytes) -> None:
        """Refuse large pictures before a byte of them is decoded."""
        try:
            shapes = wire.array_shapes(body)
        except wire.WireError as error:
            raise RequestRefusedError(400, str(error)) from None
        for shape in shapes:
            # (h, w), (h, w, c), or the frames of a video (t, h, w, c)
            self._refuse_large(math.prod(shape[-3:-1] if len(shape) > 3 else shape[:2]) if len(shape) > 1 else 0)

    def _refuse_large(self, pixels: int) -> None:
        if pixels > self.limits.max_pixels:
            raise RequestRefusedError(
                413, f"a picture of {pixels} pixels is above the limit max_pixels = {self.limits.max_pixels}"
            )

    async def _score_body(self, reward: Served, body: bytes) -> bytes:
        start = time.perf_counter()
        try:
            reply = await asyncio.get_running_loop().run_in_executor(self.pool, self._reply, reward, body)
        finally:
            self.meter.waiting -= 1
        self.meter.count_scores(reward.name, reply, time.perf_counter() - start)
        return wire.pack_reply(reply)

    def _reply(self, reward: Served, body: bytes) -> wire.Reply:
        with tempfile.TemporaryDirectory(prefix="mmrl-reward-") as folder:
            try:
                group = wire.unpack_group(body, Path(folder))
            except wire.WireError as error:
                raise RequestRefusedError(400, str(error)) from None
            for file in Path(folder).iterdir():
                self._refuse_large(wire.file_pixels(file))
            if len(group.samples) > self.limits.max_samples:
                text = f"a group of {len(group.samples)} samples is above the limit max_samples = {self.limits.max_samples}"
                raise RequestRefusedError(413, text)
            return answer(reward, group)

    def listing(self) -> dict[str, object]:
        rewards = {
            name: {"fingerprint": reward.fingerprint, "pointwise": reward.pointwise, "space": reward.space}
            for name, reward in self.rewards.items()
        }
        return {"protocol": wire.PROTOCOL, "rewards": rewards}


def answer(reward: Served, group: Group) -> wire.Reply:
    """The reward's reply to a group; an exception is part of the reply, not a failure of the server."""
    count = len(group.samples)
    try:
        outcome = reward.function(group)
        answers = list(wait_for(outcome) if inspect.isawaitable(outcome) else outcome)
        if len(answers) != count:
            raise wire.WireError(f"answered {len(answers)} values for {count} samples: return one per sample, in order")
        return wire.reply_of(answers, reward.fingerprint)
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's function may raise anything; the client is told
        raised = f"{type(error).__name__}: {error}"
        return wire.Reply((math.nan,) * count, (Status.FAILED,) * count, ({},) * count, reward.fingerprint, raised)


def fingerprint(source: Path, settings: Mapping[str, object]) -> str:
    """A hash of a reward's file and settings."""
    digest = hashlib.sha256(source.read_bytes())
    digest.update(repr(sorted(settings.items())).encode())
    return digest.hexdigest()[:16]


def create_app(rewards: Mapping[str, Served], limits: Limits = Limits(), token: str | None = None) -> Any:
    """Build the FastAPI application.

    Args:
        token: when given, all but /health want it as `Authorization: Bearer TOKEN`.
    """
    from fastapi import FastAPI, Request
    from fastapi.responses import PlainTextResponse, Response

    app, scorer = FastAPI(title="mmrl rewards", docs_url=None, redoc_url=None, openapi_url=None), Scorer(rewards, limits)

    @app.exception_handler(RequestRefusedError)
    async def refuse(request: Request, error: RequestRefusedError) -> Response:
        scorer.meter.count_answer(request.url.path.rpartition("/")[2] if error.code != 404 else "", error.code)
        return PlainTextResponse(error.text, error.code, error.headers)

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    async def metrics(request: Request) -> Response:
        authorize(request, token)
        return PlainTextResponse(scorer.meter.text())

    @app.get("/v1/rewards")
    async def listing(request: Request) -> dict[str, object]:
        authorize(request, token)
        return scorer.listing()

    @app.post("/v1/score/{name}")
    async def score(name: str, request: Request) -> Response:
        authorize(request, token)
        reply = await scorer.score(name, await body_of(request, limits), request.headers.get("x-request-id", ""))
        scorer.meter.count_answer(name, 200)
        return Response(reply, media_type=BODY)

    return app


@contextmanager
def serving(rewards: Mapping[str, Served], limits: Limits = Limits(), token: str | None = None) -> Iterator[str]:
    """Serve rewards in a thread of this process, on a free port, while the block runs; yields the address."""
    import uvicorn

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(create_app(rewards, limits, token), log_level="error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def authorize(request: _Request, token: str | None) -> None:
    """Refuse a request without the server's token."""
    given = request.headers.get("authorization", "").removeprefix("Bearer ")
    if token is not None and not hmac.compare_digest(given.encode(), token.encode()):
        raise RequestRefusedError(401, "the bearer token is missing or wrong: set MMRL_REWARD_TOKEN where the run starts")


async def body_of(request: _Request, limits: Limits) -> bytes:
    """Read the request's body; refuse it as soon as it grows past the limit."""
    parts, size = [], 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limits.max_body_mb * 2**20:
            # without closing, the server would read on for as long as the sender sends
            text = f"the body is above the limit max_body_mb = {limits.max_body_mb:g}"
            raise RequestRefusedError(413, text, {"Connection": "close"})
        parts.append(chunk)
    return b"".join(parts)
