"""Questions to a server that is still thinking when the run is asked to stop, or that is away."""

import signal
import socket
import threading
from collections.abc import Iterator

import pytest

from mmrl.core.samples import Scored
from mmrl.runtime.blame import RewardUnavailableError
from mmrl.serving.judges import judge
from mmrl.serving.judges.judge import MOST_WAIT_S, AbsentError, Endpoint, Question, Reply, ask, ask_for_scores
from mmrl.training.stopping import AskedToStopError
from tests.attacks.client import COMPLETION
from tests.support.rude_servers import answers, read_request, rude

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


def answers_once_listening(port: socket.socket) -> None:
    connection, _ = port.accept()
    with connection:
        answers(200, COMPLETION)(connection, read_request(connection))


def test_a_judge_that_is_away_is_waited_for_longer_than_its_retries(monkeypatch: pytest.MonkeyPatch):
    """Its port is bound and does not listen, as vLLM's while it loads its model."""
    pauses = list[float]()

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 7:
            port.listen()
            threading.Thread(target=answers_once_listening, args=(port,), daemon=True).start()

    monkeypatch.setattr(judge.time, "sleep", pause)
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{port.getsockname()[1]}/v1"
        [reply] = ask(Endpoint(url, "m", retries=1), [Question("x")])
    assert isinstance(reply, Reply) and len(pauses) == 7 and max(pauses) <= MOST_WAIT_S


def test_a_judge_that_stays_away_fails_no_sample(caplog: pytest.LogCaptureFixture):
    """Beyond the deadline the run stops, so that no step trains on what a dead judge left over."""
    with socket.socket() as port:
        port.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{port.getsockname()[1]}/v1"
        with pytest.raises(AbsentError, match=r"cannot be reached: .*: start it again"):
            ask_for_scores(Endpoint(url, "m", deadline_s=0.5), [Question(str(i)) for i in range(20)], lambda _: Scored(1.0))
    assert issubclass(AbsentError, RewardUnavailableError)
    assert caplog.text.count("takes no connections: waiting up to") == 1
