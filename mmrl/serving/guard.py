"""HTTP that may be left running: unwanted bodies are not read, slow headers end, faults are one sentence."""

import asyncio
import contextlib
import logging
import signal
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

Message = MutableMapping[str, Any]
"""An event of ASGI, or the scope of a request."""
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]
log = logging.getLogger("mmrl")
HEADER_S = 5.0
"""From the first byte of a request (or the connection) to the end of its headers."""
DRAIN_BYTES, DRAIN_S = 2**22, 1.0
"""The part of an unwanted body that is read before the answer, so that a client which sends a little too much sees the answer."""
STOP_S = 5
"""Seconds that running requests may take after a signal to stop."""
MOST_CONNECTIONS = 512


@dataclass(frozen=True)
class Guard:
    """An ASGI application around another one: every request gets one answer, and one whose body was not read ends its connection.

    A request that is broken off by the server's end is answered 503, and what the application did not catch 500.
    """

    inside: Application

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        from starlette.requests import ClientDisconnect

        exchange = Exchange(scope, receive, send)
        where = f"{scope.get('method')} {scope.get('path', '')[:100]!r}"
        try:
            await self.inside(scope, exchange.receive, exchange.send)
        except ClientDisconnect:
            log.warning("%s: the client left before its body was whole", where)
        except asyncio.CancelledError:
            # the next cancellation would come before a slow body's end
            exchange.patient = False
            await exchange.refuse(503, "the server is stopping: ask again", [(b"retry-after", b"1")])
        except Exception as error:  # noqa: BLE001 - whatever it is, the server goes on and the client gets the error
            log.error("%s: the server failed: %s: %s", where, type(error).__name__, str(error)[:300])
            await exchange.refuse(500, f"the server failed: {type(error).__name__}", [])


class Exchange:
    """One request and its answer."""

    def __init__(self, scope: Message, receive: Receive, send: Send) -> None:
        self.scope, self._receive, self._send = scope, receive, send
        self.asked = self.ended = self.answered = False
        """Somebody began to read the body; it has been read to its end; the answer has begun."""
        self.patient = True
        """Unwanted bodies are read a little further before the answer."""

    async def receive(self) -> Message:
        self.asked = True
        message = await self._receive()
        self.ended = not message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            await self._drain()
            self.answered = True
            if not self.ended:
                # without closing, the server would read on for as long as the sender sends
                message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        await self._send(message)

    async def refuse(self, status: int, text: str, headers: list[tuple[bytes, bytes]]) -> None:
        """Answer with one sentence, unless an answer has begun."""
        if self.answered:
            return
        head = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(text.encode())).encode())]
        await self.send({"type": "http.response.start", "status": status, "headers": [*head, *headers]})
        await self.send({"type": "http.response.body", "body": text.encode()})

    async def _drain(self) -> None:
        """Read a little of what is left of the body; a sender that waits to be asked for it is not asked."""
        waits = not self.asked and any(name == b"expect" for name, _ in self.scope["headers"])
        if waits or not self.patient:
            return
        left = DRAIN_BYTES
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while not self.ended and left > 0:
                    left -= len((await self.receive()).get("body", b""))


@cache
def protocol() -> type[asyncio.Protocol]:
    """uvicorn's HTTP/1.1 with an end to headers that never end."""
    import h11
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class Patient(H11Protocol):
        """Closes a connection whose next request is not there in time."""

        patience: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - as uvicorn's own
            super().connection_made(transport)
            self.watch()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self.watch()

        def connection_lost(self, exc: Exception | None) -> None:
            if self.patience is not None:
                self.patience.cancel()
            super().connection_lost(exc)

        def watch(self) -> None:
            """Start or stop the clock of headers."""
            idle = self.cycle is None or self.cycle.response_complete
            if idle and self.patience is None:
                self.patience = self.loop.call_later(HEADER_S, self.transport.close)
            elif not idle and self.patience is not None:
                self.patience.cancel()
                self.patience = None

        def send_400_response(self, msg: str) -> None:
            with contextlib.suppress(h11.LocalProtocolError):
                super().send_400_response(msg)
            self.transport.close()

    return Patient


def listen(host: str, port: int) -> socket.socket:
    """A socket that other programs can connect to, port 0 being a free one; ValueError where it cannot listen there."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        words = getattr(error, "strerror", None) or str(error)
        raise ValueError(f"cannot listen on port {port} of {host!r} ({words}): choose another port or host") from None


def serve_until_stopped(application: Application, listener: socket.socket, stop: Callable[[], None]) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP; what runs then may end within some seconds, and `stop` is called last."""
    import uvicorn

    server = uvicorn.Server(uvicorn_config(application, "warning"))

    def leave(number: int, _: object) -> None:
        server.should_exit = True

    # uvicorn raises the signals again that it was stopped by, which would end the process before `stop`
    handlers = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        handlers[signal.SIGHUP] = signal.signal(signal.SIGHUP, leave)
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        stop()


@contextmanager
def serve_beside(application: Application) -> Iterator[str]:
    """Serve in a thread of this process, on a free port, while the block runs; yields the address."""
    import uvicorn

    with listen("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn_config(application, "error"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.005)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def uvicorn_config(application: Application, log_level: str) -> Any:
    """uvicorn's settings: HTTP/1.1 alone, a bounded number of connections and a bounded end."""
    import uvicorn

    return uvicorn.Config(
        application,  # pyright: ignore[reportArgumentType] - any ASGI application
        http=protocol(),
        ws="none",
        lifespan="off",
        proxy_headers=False,
        log_level=log_level,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=STOP_S,
    )
