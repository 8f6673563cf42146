"""A reward that lives in a reward server: `use = "http://host:port/name"`.

The server is asked before training what it serves; while training, a server that is down, busy or restarting is waited for.
"""

import asyncio
import json
import logging
import math
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from mmrl.core.ranges import Positive, check_ranges
from mmrl.core.samples import Group, RewardUnavailableError, Sample, Scored, Status
from mmrl.serving import wire
from mmrl.serving.judge import is_local

log = logging.getLogger("mmrl")
AGAIN = (408, 429, 503)
"""Answers that may be different next time."""
SCHEMES = ("http://", "https://")
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 5.0
MOST_BYTES = 64 * 2**20
"""The largest answer: the scores of a group take a few hundred bytes."""


class RemoteRewardError(RuntimeError):
    """The reward raised on the server, or its answer does not fit the group."""


class _TooLargeError(Exception):
    """The server answered 413: the text says which limit was passed."""


@dataclass(frozen=True)
class _Answer:
    """An answer of the server, read within bounds."""

    status_code: int
    content: bytes
    headers: Mapping[str, str]

    @property
    def text(self) -> str:
        """The beginning of the content, for errors."""
        return self.content[:500].decode(errors="replace")


@dataclass(frozen=True)
class RemoteReward:
    """A reward whose scores the server at `url` answers for the group."""

    url: str
    """http://host:port/name"""
    deadline_s: Positive = 600.0
    """How long one group may take, retries and a restarting server included; then training stops with a checkpoint."""
    token_env: str = "MMRL_REWARD_TOKEN"
    """The environment variable that holds the bearer token, if the server wants one."""
    fingerprint: str = ""
    """The hash of the reward that the server offered before training; another one later stops the run."""
    pointwise: bool = False
    """True lets a group that is too large for one request be cut."""
    space: str | None = None
    """The box space the served reward reads."""
    _client: Any = field(default=None, init=False, repr=False, compare=False)  # httpx's Client, imported where it is used

    def __post_init__(self) -> None:
        check_ranges(self)
        parts = urlsplit(self.url)
        if not self.url.startswith(SCHEMES) or not parts.netloc or not self.name:
            raise ValueError(f"reward {self.url!r}: write http://host:port/name")
        from httpx import Client, Timeout

        token = os.environ.get(self.token_env)
        # an answer that unfolds could fill the memory of the trainer
        headers = {"Accept-Encoding": "identity"} | ({"Authorization": f"Bearer {token}"} if token else {})
        # proxies of the environment are for other machines than this one
        client = Client(
            base_url=f"{parts.scheme}://{parts.netloc}",
            headers=headers,
            timeout=Timeout(self.deadline_s, connect=5.0),
            trust_env=not is_local(parts.hostname or ""),
        )
        object.__setattr__(self, "_client", client)

    @property
    def name(self) -> str:
        return urlsplit(self.url).path.strip("/")

    def connect(self, wait_s: float = 10.0) -> "RemoteReward":
        """Ask the server what it offers and return the reward so described.

        Raises:
            ValueError: the server does not answer within `wait_s`, speaks another protocol or does not serve this reward.
        """
        try:
            response = self._request("GET", "/v1/rewards", time.monotonic() + wait_s)
        except (RemoteRewardError, RewardUnavailableError) as error:
            raise ValueError(f"{error}; is it running (`mmrl reward serve SPEC`), and is the address right?") from None
        listing = self._listing(response.status_code, response.content)
        if listing.get("protocol") != wire.PROTOCOL:
            raise ValueError(
                f"the reward server at {self.url} speaks protocol {listing.get('protocol')}, this mmrl {wire.PROTOCOL}: "
                "install the same version on both sides"
            )
        rewards = listing.get("rewards")
        if not isinstance(rewards, dict) or self.name not in rewards:
            only = ", ".join(rewards) if isinstance(rewards, dict) else "nothing"
            raise ValueError(f"the reward server at {self.url} does not serve {self.name!r}, only {only}")
        offered = rewards[self.name]
        try:
            fingerprint, pointwise, space = str(offered["fingerprint"]), bool(offered["pointwise"]), offered["space"]
        except (LookupError, TypeError):
            raise ValueError(f"the reward server at {self.url} does not describe {self.name!r} as mmrl's servers do") from None
        return replace(self, fingerprint=fingerprint, pointwise=pointwise, space=None if space is None else str(space))

    def _listing(self, status_code: int, content: bytes) -> dict[str, Any]:
        """The server's list of what it serves; ValueError where something else listens there."""
        try:
            listing = json.loads(content)
        except (ValueError, RecursionError):
            listing = None
        if not isinstance(listing, dict) or "protocol" not in listing:
            said = f"{status_code} with {content[:500].decode(errors='replace')[:80]!r}"
            raise ValueError(f"{self.url} is no reward server: it answered {said}; is the port right?")
        return listing

    async def __call__(self, group: Group, /) -> Sequence[float | Scored | None]:
        return await asyncio.to_thread(self.score, group)

    def score(self, group: Group) -> list[float | Scored | None]:
        """Ask the server for one answer per sample, in order.

        Raises:
            RemoteRewardError: the reward raised.
            RewardUnavailableError: no answer before the deadline, or the server serves another version now.
        """
        until = time.monotonic() + self.deadline_s
        try:
            return self._answers(group, until)
        except _TooLargeError as error:
            raise RewardUnavailableError(
                f"reward server {self.url} refuses a group of {len(group.samples)} samples: {error}. Raise the limit in the "
                "server's spec, or lower algorithm.group_size"
            ) from None

    def _answers(self, group: Group, until: float) -> list[float | Scored | None]:
        try:
            response = self._request("POST", f"/v1/score/{self.name}", until, wire.pack_group(group))
        except _TooLargeError:
            if not self.pointwise or len(group.samples) < 2:
                raise
            half = len(group.samples) // 2
            halves = (group.samples[:half], group.samples[half:])
            return [answer for samples in halves for answer in self._answers(_with(group, samples), until)]
        try:
            reply = wire.unpack_reply(response.content)
        except wire.WireError as error:
            raise RemoteRewardError(f"{self.url} answered what is no reply of a reward server: {error}") from None
        return self._read(reply, group)

    def _read(self, reply: wire.Reply, group: Group) -> list[float | Scored | None]:
        if self.fingerprint and reply.fingerprint != self.fingerprint:
            raise RewardUnavailableError(
                f"reward server {self.url} now serves another version of {self.name!r} than when the run began: serve the first "
                "one again and resume, or start a new run"
            )
        if reply.raised:
            raise RemoteRewardError(f"{reply.raised} (on {self.url})")
        if len(reply.values) != len(group.samples):
            raise RemoteRewardError(f"{self.url} answered {len(reply.values)} values for {len(group.samples)} samples")
        return [_answer(*row) for row in zip(reply.values, reply.status, reply.parts, strict=True)]

    def _request(self, method: str, path: str, until: float, body: bytes | None = None) -> _Answer:
        """Send a request and return the answer, after as many attempts as it takes before `until`."""
        from httpx import TransportError

        headers, wait_s, trouble = {"x-request-id": uuid.uuid4().hex}, FIRST_WAIT_S, ""
        while True:
            try:
                response = self._fetch(method, path, until, body, headers)
            except TransportError as error:
                trouble, pause_s = f"{type(error).__name__}: {error}", wait_s
            else:
                if response.status_code not in AGAIN:
                    return self._accept(response)
                trouble, pause_s = f"{response.status_code}: {response.text}", _retry_after(response, wait_s)
            left_s = until - time.monotonic()
            if left_s <= pause_s:
                raise RewardUnavailableError(f"reward server {self.url} does not answer ({trouble})")
            if wait_s == FIRST_WAIT_S:
                log.warning("reward server %s does not answer (%s): waiting up to %.0f s for it", self.url, trouble, left_s)
            time.sleep(pause_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _fetch(self, method: str, path: str, until: float, body: bytes | None, headers: Mapping[str, str]) -> _Answer:
        """Try once. An answer that is compressed, endless or late is given up before it is whole."""
        from httpx import ReadTimeout, Timeout

        patience = Timeout(max(until - time.monotonic(), 0.1), connect=5.0)
        parts, size = list[bytes](), 0
        with self._client.stream(method, path, content=body, headers=headers, timeout=patience) as response:
            coding = response.headers.get("content-encoding", "identity")
            if coding != "identity":
                raise RemoteRewardError(f"{self.url} answered in the encoding {coding!r}, which nobody asked for")
            for chunk in response.iter_raw():
                size += len(chunk)
                if size > MOST_BYTES:
                    raise RemoteRewardError(f"{self.url} answered more than {MOST_BYTES >> 20} MiB, which no scores are")
                if time.monotonic() > until:
                    raise ReadTimeout("the answer did not end in time")
                parts.append(chunk)
            return _Answer(response.status_code, b"".join(parts), dict(response.headers))

    def _accept(self, response: _Answer) -> _Answer:
        if response.status_code == 413:
            raise _TooLargeError(response.text)
        if response.status_code >= 500:
            raise RemoteRewardError(f"{self.url} answered {response.status_code}: {response.text}")
        if response.status_code >= 300:
            raise RewardUnavailableError(f"reward server {self.url} answered {response.status_code}: {response.text}")
        return response


def is_url(use: str) -> bool:
    """True if a reward's `use` is the address of a server."""
    return use.startswith(SCHEMES)


def _answer(value: float, status: Status, parts: Mapping[str, float]) -> float | Scored | None:
    plain = None if status == Status.NA else math.nan if status == Status.FAILED else value
    return Scored(plain, dict(parts)) if parts else plain


def _with(group: Group, samples: tuple[Sample, ...]) -> Group:
    return replace(group, samples=samples)


def _retry_after(response: _Answer, otherwise_s: float) -> float:
    try:
        asked_s = float(response.headers["retry-after"])
    except (KeyError, ValueError):
        return otherwise_s
    return asked_s if asked_s >= 0 else otherwise_s
