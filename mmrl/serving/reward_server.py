"""Rewards behind HTTP, each in whatever environment it needs: safetensors in, safetensors out, no pickle anywhere.

GET /v1/rewards says what is served; POST /v1/score/{name} takes a group and answers a reply (wire.py); /health is cheap,
/metrics is in Prometheus' text format.
"""

import asyncio
import hashlib
import hmac
import inspect
import logging
import math
import shutil
import tempfile
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mmrl.core.samples import Group, Scored, Status
from mmrl.runtime.blame import count_of, values_of
from mmrl.runtime.net.loops import wait_for
from mmrl.runtime.ranges import Range, check_ranges
from mmrl.serving import wire
from mmrl.serving.guard import Application, Guard, serve_beside

if TYPE_CHECKING:
    from fastapi import Request

log = logging.getLogger("mmrl")
KEPT_REPLIES = 256
"""Latest replies, by request id: a client that lost one gets it again without a second scoring."""
BODY = "application/octet-stream"
BODY_S, SILENCE_S = 900.0, 30.0
"""A body may take so long as a whole, and stand still for so long."""
ARRAYS_PER_SAMPLE = 64
"""The most arrays and files of a message, per sample of the largest group."""
RewardAnswers = Sequence[float | Scored | None]


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
class ServerLimits:
    """The largest request that the server takes."""

    max_body_mb: Annotated[float, Range(above=0, high=65_536)] = 256.0
    max_pixels: Annotated[int, Range(1, 2**32)] = 64_000_000
    """The most pixels of a picture, or of a frame that is sent as pixels; video files count by their bytes alone."""
    max_samples: Annotated[int, Range(1, 65_536)] = 256
    max_waiting: Annotated[int, Range(1, 65_536)] = 32
    """Requests that wait or run; more are answered 503."""
    workers: Annotated[int, Range(1, 256)] = 1
    """Groups scored at the same time: above 1 a reward is called from several threads at once."""

    __post_init__ = check_ranges

    @property
    def max_bytes(self) -> int:
        """The largest body."""
        return int(self.max_body_mb * 2**20)


@dataclass
class RequestCounts:
    """Counts for /metrics."""

    requests: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    """By reward and code of the answer."""
    samples: Counter[str] = field(default_factory=Counter[str])
    failed: Counter[str] = field(default_factory=Counter[str])
    seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    waiting: int = 0

    def count_scores(self, name: str, reply: wire.ServedScores, seconds: float) -> None:
        self.samples[name] += len(reply.values)
        self.failed[name] += reply.status.count(Status.FAILED)
        self.seconds[name] += seconds

    def text(self) -> str:
        lines = ["# TYPE mmrl_requests_total counter"]
        lines += [f'mmrl_requests_total{{reward="{label(n)}",code="{c}"}} {v}' for (n, c), v in sorted(self.requests.items())]
        for metric, values in (("samples", self.samples), ("failed_samples", self.failed), ("scoring_seconds", self.seconds)):
            lines.append(f"# TYPE mmrl_{metric}_total counter")
            lines += [f'mmrl_{metric}_total{{reward="{label(name)}"}} {value}' for name, value in sorted(values.items())]
        return "\n".join([*lines, "# TYPE mmrl_waiting gauge", f"mmrl_waiting {self.waiting}", ""])


def label(value: str) -> str:
    """A label's value as Prometheus' text format quotes it."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


class RequestRefusedError(Exception):
    """A request that is answered with a status code and one sentence."""

    def __init__(self, code: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.code, self.text, self.headers = code, text, dict(headers or {})


class RequestScorer:
    """The server's work: bodies are checked and scored on its workers."""

    def __init__(self, rewards: Mapping[str, Served], limits: ServerLimits) -> None:
        self.rewards, self.limits, self.meter = rewards, limits, RequestCounts()
        self.pool = ThreadPoolExecutor(limits.workers, thread_name_prefix="reward")
        self.replies: OrderedDict[bytes, asyncio.Future[bytes]] = OrderedDict()
        self.folders: set[str] = set()
        """Those of the requests that are scored now."""

    def find(self, name: str) -> Served:
        """The reward of a name."""
        if name not in self.rewards:
            raise RequestRefusedError(404, f"no reward {name[:100]!r} is served here, only {', '.join(self.rewards)}")
        return self.rewards[name]

    async def score(self, name: str, body: bytes, request_id: str) -> bytes:
        """Score a body and return the packed reply; a request id that was seen with the same body gets the same one again."""
        reward = self.find(name)
        key = hashlib.sha256(f"{name}\0{request_id}\0".encode() + hashlib.sha256(body).digest()).digest()
        known = self.replies.get(key) if request_id else None
        if known is not None:
            return await asyncio.shield(known)
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
        except Exception as error:  # noqa: BLE001 - a full disk or memory, or a fault of ours: the server goes on
            self.replies.pop(key, None)
            text = f"the server cannot score this: {type(error).__name__}: {str(error)[:300]}"
            log.error("reward %s: %s", name, text)
            # a disk may have room again, a fault of ours stays
            code, headers = (503, {"Retry-After": "5"}) if isinstance(error, OSError | MemoryError) else (500, {})
            raise RequestRefusedError(code, text, headers) from None

    def close(self) -> bool:
        """Remove the files of requests that are still scored; True if there were any."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        # a worker that unpacks a body just now may put a file into what is being removed
        for folder in 3 * list(self.folders):
            shutil.rmtree(folder, ignore_errors=True)
        return bool(self.folders)

    def check_shapes(self, body: bytes) -> None:
        """Refuse large pictures before a byte of them is decoded."""
        try:
            shapes = wire.array_shapes(body)
        except wire.WireError as error:
            raise RequestRefusedError(400, str(error)) from None
        most = ARRAYS_PER_SAMPLE * self.limits.max_samples
        if len(shapes) > most:
            raise RequestRefusedError(413, f"{len(shapes)} arrays are more than {most}, {ARRAYS_PER_SAMPLE} times max_samples")
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

    def _reply(self, reward: Served, body: bytes) -> wire.ServedScores:
        with self._folder() as folder:
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

    @contextmanager
    def _folder(self) -> Iterator[str]:
        """A folder that is gone when the block ends, or the server."""
        with tempfile.TemporaryDirectory(prefix="mmrl-reward-", ignore_cleanup_errors=True) as folder:
            self.folders.add(folder)
            yield folder
        self.folders.discard(folder)

    def listing(self) -> dict[str, object]:
        rewards = {
            name: {"fingerprint": reward.fingerprint, "pointwise": reward.pointwise, "space": reward.space}
            for name, reward in self.rewards.items()
        }
        return {"protocol": wire.PROTOCOL, "rewards": rewards, "most_bytes": self.limits.max_bytes}


def answer(reward: Served, group: Group) -> wire.ServedScores:
    """The reward's reply to a group; an exception is part of the reply, not a failure of the server."""
    count = len(group.samples)
    try:
        outcome = reward.function(group)
        answers = values_of(wait_for(outcome) if inspect.isawaitable(outcome) else outcome, count)
        if len(answers) != count:
            raise wire.WireError(
                f"answered {count_of(answers, count)} values for {count} samples: return one per sample, in order"
            )
        return wire.reply_of(answers, reward.fingerprint)
    except BaseException as error:  # noqa: BLE001 - a user's function may raise anything; the client gets the error
        raised = f"{type(error).__name__}: {str(error)[:2000]}"
        return wire.ServedScores((math.nan,) * count, (Status.FAILED,) * count, ({},) * count, reward.fingerprint, raised)


def fingerprint(source: Path, settings: Mapping[str, object]) -> str:
    """A hash of a reward's file and settings."""
    digest = hashlib.sha256(source.read_bytes())
    digest.update(repr(sorted(settings.items())).encode())
    return digest.hexdigest()[:16]


def create_app(scorer: RequestScorer, token: str | None = None) -> Application:
    """The server as an ASGI application; with a token, all but /health want it as `Authorization: Bearer TOKEN`."""
    from fastapi import FastAPI, Request
    from fastapi.responses import PlainTextResponse, Response

    app = FastAPI(title="mmrl rewards", docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False)

    @app.exception_handler(RequestRefusedError)
    async def refuse(request: Request, error: RequestRefusedError) -> Response:
        name = request.path_params.get("name", "")
        scorer.meter.requests[name if name in scorer.rewards else "", error.code] += 1
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
        scorer.find(name)
        reply = await scorer.score(name, await body_of(request, scorer.limits), request.headers.get("x-request-id", ""))
        scorer.meter.requests[name, 200] += 1
        return Response(reply, media_type=BODY)

    return Guard(app)


@contextmanager
def serving(rewards: Mapping[str, Served], limits: ServerLimits = ServerLimits(), token: str | None = None) -> Iterator[str]:
    """Serve rewards in a thread of this process, on a free port, while the block runs; yields the address."""
    scorer = RequestScorer(rewards, limits)
    with serve_beside(create_app(scorer, token)) as address:
        yield address
    scorer.close()


def authorize(request: "Request", token: str | None) -> None:
    """Refuse a request without the server's token."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    if token is not None and not (scheme.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())):
        raise RequestRefusedError(401, "the bearer token is missing or wrong: set MMRL_REWARD_TOKEN where the run starts")


async def body_of(request: "Request", limits: ServerLimits) -> bytes:
    """Read the request's body; refuse it as soon as it says that it is too long, grows past the limit or stands still."""
    too_long = RequestRefusedError(413, f"the body is above the limit max_body_mb = {limits.max_body_mb:g}")
    said = request.headers.get("content-length", "0")
    if len(said) > 15 or int(said) > limits.max_bytes:
        raise too_long
    parts, size, now = list[bytes](), 0, asyncio.get_running_loop().time
    until = now() + BODY_S
    try:
        async with asyncio.timeout(SILENCE_S) as clock:
            async for chunk in request.stream():
                clock.reschedule(min(now() + SILENCE_S, until))
                size += len(chunk)
                if size > limits.max_bytes:
                    raise too_long
                parts.append(chunk)
    except TimeoutError:
        raise RequestRefusedError(408, "the body did not come in time") from None
    return b"".join(parts)
