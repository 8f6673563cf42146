"""One HTTP request that ends: an answer within bounds of wall-clock time and size, or an error. Imports no torch."""

import asyncio
import contextlib
import email.utils
import ipaddress
import logging
import os
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import cache
from math import inf, isfinite, nan
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from mmrl.runtime.net.clocks import away
from mmrl.runtime.net.loops import loop
from mmrl.runtime.net.secrets import hide

if TYPE_CHECKING:
    from httpx import AsyncClient

SCHEMES = ("http://", "https://")
BUSY = frozenset({408, 425, 429, 502, 503, 504})
"""Answers that may be different next time: a busy or stopping server, and a proxy before one that starts."""
CONNECT_S = 5.0
LEAST_PAUSE_S = 1.0
"""Between two tries, whatever the server asks for."""
MOST_BYTES = 64 * 2**20
"""The largest answer that is read."""
MOST_ERROR_BYTES, MOST_ERROR_S = 2**16, 2.0
"""The part of a refusal that is read: its status is known by then, and what it says is for a message."""
LOUDEST = {"httpcore": logging.INFO, "httpx": logging.WARNING}
"""Below, they write down headers and status lines, and a server may repeat the key there."""
MOST_WORDS = 300
"""Characters of a server's words in a message."""


class UnreachableError(Exception):
    """No whole answer came: no connection, a broken one, nonsense instead of HTTP, or the time was over."""


class DeadlineError(UnreachableError):
    """The time was over."""


class NoConnectionError(UnreachableError):
    """Nothing takes connections there: the server is down, or not up yet."""


class AnswerError(Exception):
    """An unusable answer: endless, or packed in an encoding that was not asked for."""


_under_way: "WeakKeyDictionary[AsyncClient, set[Future[HttpResponse]]]" = WeakKeyDictionary()
"""The calls of each open client that wait for their answers."""
_changing = threading.Lock()
"""Held while a call is added, and while a client is closed: none slips through between."""
CLOSE_S = 1.0
"""Longest wait for connections to be closed; they are idle or given up."""


@dataclass(frozen=True)
class HttpRequest:
    """An HTTP request."""

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True)
class HttpResponse:
    """A server's whole answer; of a refusal the first 64 KiB."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def text(self) -> str:
        """Its content, and where it redirects to, for a message."""
        return words(f"{self.content.decode(errors='replace')} {self.headers.get('location', '')}")


def fetch(
    request: HttpRequest, seconds: float, most_bytes: int = MOST_BYTES, client: "AsyncClient | None" = None
) -> HttpResponse:
    """Send a request and return the answer. Redirects are not followed.

    Args:
        seconds: of wall-clock time, for everything together: whatever the server drips, the call is over then.
        client: of `open_client`, whose connections are used; None: the request has a connection that ends with it.

    Raises:
        UnreachableError: no whole answer in that time (a DeadlineError), or at all; asking again may help.
        AnswerError: an answer above `most_bytes`, or one that is compressed.
        ValueError: the address is none.
    """
    for name, level in LOUDEST.items():
        if logging.getLogger(name).level == logging.NOTSET:
            logging.getLogger(name).setLevel(level)
    seconds = min(max(seconds, 0.01), threading.TIMEOUT_MAX)
    with _changing:
        calls = set[Future[HttpResponse]]() if client is None else _under_way.get(client)
        if calls is None:
            raise UnreachableError("the connection was closed here")
        future = asyncio.run_coroutine_threadsafe(_exchange(request, most_bytes, client), loop("http-loop"))
        calls.add(future)
    try:
        return future.result(seconds)
    except TimeoutError:
        raise DeadlineError(f"no whole answer within {seconds:.3g} s") from None
    except CancelledError:
        raise UnreachableError("the connection was closed here before an answer came") from None
    finally:
        calls.discard(future)
        # the loop closes the connection on its own, without anybody waiting for it
        future.cancel()


def attempts(
    request: HttpRequest, until: float, pauses: Iterable[float], timeout_s: float = inf
) -> Iterator[tuple[HttpResponse | UnreachableError, float]]:
    """The outcomes of a request that is sent again and again, each with the pause that follows unless the caller stops there.

    Sent once, and again after each pause, or after what a Retry-After asks for, as long as the pause ends before `until` on the
    monotonic clock. `timeout_s` bounds a single attempt. After one that finds no server, or a busy one, the clocks of the calls
    around stand still until the next has its answer.

    Raises AnswerError and ValueError as `fetch`.
    """
    wait_s, is_away = 0.0, False
    for number, pause_s in enumerate(pauses):
        if number and wait_s >= until - time.monotonic():
            return
        try:
            with away() if is_away else contextlib.nullcontext():
                if number:
                    time.sleep(wait_s)
                wait_s = pause_s
                found = fetch(request, min(timeout_s, until - time.monotonic()), MOST_BYTES)
        except UnreachableError as error:
            is_away = isinstance(error, NoConnectionError)
            yield error, wait_s
        else:
            is_away = found.status in BUSY
            wait_s = retry_delay(found.headers.get("retry-after"), wait_s)
            yield found, wait_s


def open_client(url: str, connections: int = 1, idle_s: float = 0.0) -> "AsyncClient":
    """Connections to a server that stay open, idle ones for `idle_s`; proxies of the environment serve other machines only.

    Raises ValueError for proxies or certificates of the environment that cannot be used.
    """
    from httpx import AsyncClient, InvalidURL, Limits, Timeout

    host = urlsplit(url).hostname or ""
    try:
        client = AsyncClient(
            timeout=Timeout(None, connect=CONNECT_S),
            limits=Limits(max_connections=connections, max_keepalive_connections=connections, keepalive_expiry=idle_s),
            trust_env=not is_local(host),
            verify=certificates(),
        )
    except (ImportError, InvalidURL, OSError, ValueError) as error:
        kind = "SSL_CERT_FILE" if isinstance(error, OSError) else "_PROXY"
        names = " or ".join(name for name in os.environ if kind in name.upper())
        # httpx's words show parts of a password
        reason = "no address" if isinstance(error, InvalidURL) else error
        raise ValueError(f"{names} in the environment cannot be used ({reason}): correct or unset it") from None
    _under_way[client] = set()
    return client


def close_client(client: "AsyncClient") -> None:
    """Close its connections; calls that are under way raise UnreachableError, and so do later ones."""
    with _changing:
        for future in tuple(_under_way.pop(client, ())):
            future.cancel()
    with contextlib.suppress(TimeoutError):
        asyncio.run_coroutine_threadsafe(client.aclose(), loop("http-loop")).result(CLOSE_S)


async def _exchange(request: HttpRequest, most_bytes: int, client: Any) -> HttpResponse:
    from httpx import ConnectError, InvalidURL, TransportError

    # an answer that unfolds could fill the memory
    headers = {"Accept-Encoding": "identity", **request.headers}
    try:
        async with contextlib.AsyncExitStack() as stack:
            used = client or await stack.enter_async_context(open_client(request.url))
            sent = used.stream(request.method, request.url, content=request.body, headers=headers)
            response = await stack.enter_async_context(sent)
            if not 200 <= response.status_code < 300:
                return HttpResponse(response.status_code, dict(response.headers), await _beginning(response.aiter_raw()))
            coding = response.headers.get("content-encoding", "identity")
            if coding != "identity":
                raise AnswerError(f"answered in the encoding {words(coding)!r}, which was not asked for")
            parts, size = list[bytes](), 0
            async for chunk in response.aiter_raw():
                parts.append(chunk)
                size += len(chunk)
                if size > most_bytes:
                    raise AnswerError(f"answered more than {most_bytes >> 20} MiB")
            return HttpResponse(response.status_code, dict(response.headers), b"".join(parts))
    except TransportError as error:
        kind = NoConnectionError if isinstance(error, ConnectError) else UnreachableError
        raise kind(f"{type(error).__name__}: {words(str(error))}".rstrip(": ")) from None
    except (InvalidURL, UnicodeError) as error:
        raise ValueError(f"{request.url!r} is no address: {error}") from None


async def _beginning(chunks: AsyncIterator[bytes]) -> bytes:
    """The beginning of a refusal, as far as it comes at once."""
    from httpx import TransportError

    found = b""
    try:
        async with asyncio.timeout(MOST_ERROR_S):
            async for chunk in chunks:
                found += chunk
                if len(found) > MOST_ERROR_BYTES:
                    break
    except (TimeoutError, TransportError):
        pass
    return found[:MOST_ERROR_BYTES]


@cache
def certificates() -> ssl.SSLContext:
    """The authorities that are trusted: those that come with httpx, or that SSL_CERT_FILE names, and those of this machine."""
    from httpx import create_ssl_context

    context = create_ssl_context()
    context.load_default_certs()
    return context


def check_address(url: str, key: str, form: str) -> None:
    """Refuse an address that no request can go to, or that holds a password.

    Raises ValueError with the setting's `key` and the `form` to write; a password is not shown.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host = port = parts = None
    if parts is not None and (parts.username is not None or parts.query or parts.fragment):
        raise ValueError(f"{key} holds a user name, a password or a query: write {form}, and keys into the environment")
    is_plain = url.isascii() and url.isprintable() and " " not in url and "\\" not in url
    if not url.startswith(SCHEMES) or not host or port == 0 or not is_plain or any(len(name) > 63 for name in host.split(".")):
        raise ValueError(f"{key} is {words(url)!r}: write {form}")


def is_local(host: str) -> bool:
    """True if a host name means this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def retry_delay(header: str | None, otherwise: float) -> float:
    """Seconds that a Retry-After header asks for, a number or a date; at least one, or a server that asks for 0 is flooded."""
    return max(asked_delay(header, otherwise), LEAST_PAUSE_S)


def asked_delay(header: str | None, otherwise: float) -> float:
    """Seconds that a Retry-After header names, literally; `otherwise` where it names none."""
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


def words(text: str) -> str:
    """A server's words as one printable line of a message, without keys."""
    text = hide(text)[: 8 * MOST_WORDS]
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return line if len(line) <= MOST_WORDS else line[: MOST_WORDS - 4] + " ..."
