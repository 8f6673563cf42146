"""A reward that lives in a reward server: `use = "http://host:port/name"`.

The server is asked before training what it serves; while training, a server that is down, busy or restarting is waited for.
"""

import asyncio
import json
import logging
import math
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, repeat
from urllib.parse import urlsplit

from mmrl.core.samples import Group, Scored, Status
from mmrl.runtime.blame import RewardUnavailableError
from mmrl.runtime.net.fetch import (
    BUSY,
    SCHEMES,
    AnswerError,
    HttpRequest,
    HttpResponse,
    UnreachableError,
    attempts,
    check_address,
    words,
)
from mmrl.runtime.net.secrets import Json, hide_in_json, read_secret
from mmrl.runtime.ranges import LargeOrNone, Positive, check_ranges
from mmrl.serving import wire

log = logging.getLogger("mmrl")
FIRST_PAUSES_S, LATER_PAUSES_S = (1.0, 2.0, 4.0), 5.0
FORM = "http://host:port/name"


class RemoteRewardError(RuntimeError):
    """The reward raised on the server, or its answer does not fit the group."""


class _TooLargeError(Exception):
    """The server answered 413: the text says which limit was passed."""


@dataclass(frozen=True)
class RemoteReward:
    """A reward whose scores the server at `url` answers for the group."""

    url: str
    """http://host:port/name"""
    deadline_s: Positive = 600.0
    """How long one group may take, retries and a restarting server included: wall-clock time, whatever the server drips; then
    training stops with a checkpoint."""
    token_env: str = "MMRL_REWARD_TOKEN"
    """The environment variable that holds the bearer token, if the server wants one."""
    fingerprint: str = ""
    """The hash of the reward that the server offered before training; another one later stops the run."""
    pointwise: bool = False
    """True lets a group that is too large for one request be cut."""
    space: str | None = None
    """The box space the served reward reads."""
    most_bytes: LargeOrNone = 0
    """The largest request that the server takes, as it said before training; 0: unknown."""

    def __post_init__(self) -> None:
        check_ranges(self)
        check_address(self.url, "the address of a reward server", FORM)
        if not self.name or "/" in self.name:
            raise ValueError(f"the address of a reward server is {self.url!r}: write {FORM}")
        read_secret(self.token_env)

    @property
    def name(self) -> str:
        return urlsplit(self.url).path.strip("/")

    def connect(self, wait_s: float = 10.0) -> "RemoteReward":
        """Ask the server what it offers and return the reward so described.

        Raises ValueError where the server does not answer within `wait_s`, speaks another protocol or does not serve this reward.
        """
        try:
            answer = self._request("GET", "/v1/rewards", time.monotonic() + wait_s)
        except (RemoteRewardError, RewardUnavailableError, _TooLargeError) as error:
            raise ValueError(f"{error}; is it running (`mmrl reward serve SPEC`), and is the address right?") from None
        listing = self._listing(answer)
        if listing.get("protocol") != wire.PROTOCOL:
            raise ValueError(
                f"the reward server at {self.url} speaks protocol {words(str(listing['protocol']))}, this mmrl {wire.PROTOCOL}: "
                "install the same version on both sides"
            )
        rewards = listing.get("rewards")
        if not isinstance(rewards, dict) or self.name not in rewards:
            only = words(", ".join(rewards)) if isinstance(rewards, dict) else "nothing"
            raise ValueError(f"the reward server at {self.url} does not serve {self.name!r}, only {only}")
        offered = rewards[self.name]
        try:
            fingerprint, pointwise, space = str(offered["fingerprint"]), bool(offered["pointwise"]), offered["space"]
            # a server of an older mmrl does not say it
            most_bytes = int(listing.get("most_bytes", 0))
        except (LookupError, OverflowError, TypeError, ValueError):
            raise ValueError(f"the reward server at {self.url} does not describe {self.name!r} as mmrl's servers do") from None
        space = None if space is None else str(space)
        return replace(self, fingerprint=fingerprint, pointwise=pointwise, space=space, most_bytes=most_bytes)

    def _listing(self, answer: HttpResponse) -> dict[str, Json]:
        """The server's list of what it serves; ValueError where something else listens there."""
        try:
            listing = json.loads(answer.content)
        except (ValueError, RecursionError):
            listing = None
        if not isinstance(listing, dict) or "protocol" not in listing:
            said = f"{answer.status} with {answer.text[:80]!r}"
            raise ValueError(f"{self.url} is no reward server: it answered {said}; is the port right?")
        return listing

    async def __call__(self, group: Group, /) -> Sequence[float | Scored | None]:
        return await asyncio.to_thread(self.score, group)

    def score(self, group: Group) -> list[float | Scored | None]:
        """Ask the server for one answer per sample, in order; RemoteRewardError where the reward raised.

        Raises RewardUnavailableError without an answer before the deadline, or where the server serves another version now.
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
            body = wire.pack_group(group)
            if 0 < self.most_bytes < len(body):
                raise _TooLargeError(f"it takes {len(body)} bytes, and the server at most {self.most_bytes} (max_body_mb)")
            answer = self._request("POST", f"/v1/score/{self.name}", until, body)
        except _TooLargeError:
            if not self.pointwise or len(group.samples) < 2:
                raise
            half = len(group.samples) // 2
            halves = (group.samples[:half], group.samples[half:])
            return [answer for samples in halves for answer in self._answers(replace(group, samples=samples), until)]
        try:
            reply = wire.unpack_reply(answer.content)
        except wire.WireError as error:
            raise RemoteRewardError(f"{self.url} answered what is no reply of a reward server: {words(str(error))}") from None
        return self._read(reply, group)

    def _read(self, reply: wire.ServedScores, group: Group) -> list[float | Scored | None]:
        if self.fingerprint and reply.fingerprint != self.fingerprint:
            raise RewardUnavailableError(
                f"reward server {self.url} now serves another version of {self.name!r} than when the run began: serve the first "
                "one again and resume, or start a new run"
            )
        if reply.raised:
            raise RemoteRewardError(f"{words(reply.raised)} (on {self.url})")
        if len(reply.values) != len(group.samples):
            raise RemoteRewardError(f"{self.url} answered {len(reply.values)} values for {len(group.samples)} samples")
        return [_answer(*row) for row in zip(reply.values, reply.status, reply.parts, strict=True)]

    def _request(self, method: str, path: str, until: float, body: bytes | None = None) -> HttpResponse:
        """Send a request and return the answer, after as many attempts as it takes before `until`."""
        parts, token = urlsplit(self.url), read_secret(self.token_env)
        headers = {"x-request-id": uuid.uuid4().hex} | ({"Authorization": f"Bearer {token}"} if token else {})
        request = HttpRequest(method, f"{parts.scheme}://{parts.netloc}{path}", headers, body)
        trouble = ""
        try:
            for answer, pause_s in attempts(request, until, chain(FIRST_PAUSES_S, repeat(LATER_PAUSES_S))):
                is_first = not trouble
                if isinstance(answer, UnreachableError):
                    trouble = str(answer)
                elif answer.status in BUSY:
                    trouble = f"{answer.status}: {answer.text}"
                else:
                    return self._accept(answer)
                left_s = until - time.monotonic()
                if is_first and pause_s < left_s:
                    log.warning("reward server %s does not answer (%s): waiting up to %.0f s for it", self.url, trouble, left_s)
        except AnswerError as error:
            raise RemoteRewardError(f"{self.url} {error}, and no scores are that") from None
        raise RewardUnavailableError(f"reward server {self.url} does not answer ({trouble})")

    def _accept(self, answer: HttpResponse) -> HttpResponse:
        said = answer.text
        if answer.status == 413:
            raise _TooLargeError(said)
        if answer.status >= 500:
            raise RemoteRewardError(f"{self.url} answered {answer.status}: {said}")
        if not 200 <= answer.status < 300:
            raise RewardUnavailableError(f"reward server {self.url} answered {answer.status}: {said}")
        return answer


def is_url(use: str) -> bool:
    """True if a reward's `use` is the address of a server."""
    return use.startswith(SCHEMES)


def _answer(value: float, status: Status, parts: Mapping[str, float]) -> float | Scored | None:
    plain = None if status == Status.NA else math.nan if status == Status.FAILED else value
    return Scored(plain, hide_in_json(parts)) if parts else plain
