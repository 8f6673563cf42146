"""Questions to a server that is still thinking when the run is asked to stop."""

import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from mmrl.serving.judges.judge import Endpoint, Question, ask
from mmrl.training.stopping import AskedToStopError
from tests.support.rude_servers import rude

LONG_S = 30.0
"""Answers are held so long at most; a test that holds does not wait for it."""


@pytest.fixture
def interrupted() -> Iterator[int]:
    """A signal that raises AskedToStopError in the main thread."""

    def leave(number: int, frame: object) -> None:
        raise AskedToStopError("SIGUSR1")

    before = signal.signal(signal.SIGUSR1, leave)
    yield signal.SIGUSR1
    signal.signal(signal.SIGUSR1, before)


def test_who_is_interrupted_leaves_at_once_and_asks_no_more(interrupted: int):
    left, asked, waited = threading.Event(), threading.Barrier(2, timeout=LONG_S), list[bool]()

    def think(connection: socket.socket, request: bytes) -> None:
        if asked.wait() == 0:
            signal.pthread_kill(threading.main_thread().ident or 0, interrupted)
        waited.append(left.wait(LONG_S))

    with rude(think) as server:
        with pytest.raises(AskedToStopError):
            ask(Endpoint(f"{server.url}/v1", "m", concurrency=2, retries=0), [Question(str(i)) for i in range(6)])
        assert not waited, "both questions were still open"
        left.set()
        for thread in [thread for thread in threading.enumerate() if thread.name.startswith("judge-")]:
            thread.join(LONG_S)
    assert len(server.requests) == 2
