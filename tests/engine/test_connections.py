"""A server hangs up after its own errors, and when nobody talked for some seconds; neither looks like a server that is gone."""

import socket
import threading
from collections.abc import Iterator

import pytest

from mmrl.engine.wire import client as wire
from mmrl.engine.wire.client import EngineClient, EngineDownError


class HangingUp:
    """Answers 500 to /bad and 200 to all else; a connection that saw a 500 is cut at the next request, without an answer."""

    def __init__(self) -> None:
        self.listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listening.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self.talk, args=(connection,), daemon=True).start()

    def talk(self, connection: socket.socket) -> None:
        failed = False
        with connection, connection.makefile("rb") as lines:
            while first := lines.readline():
                length, close = 0, False
                while (line := lines.readline().strip().lower()) != b"":
                    length = int(line.split(b":")[1]) if line.startswith(b"content-length") else length
                    close = close or line == b"connection: close"
                lines.read(length)
                if failed:
                    return
                failed = b"/bad" in first
                connection.sendall(b"HTTP/1.1 %d x\r\nContent-Length: 2\r\n\r\n{}" % (500 if failed else 200))
                if close:
                    return


@pytest.fixture
def server() -> Iterator[HangingUp]:
    hanging = HangingUp()
    yield hanging
    hanging.listening.close()


def test_a_call_after_an_error_of_the_server_is_answered(server: HangingUp):
    client = EngineClient(server.url)
    for _ in range(3):
        with pytest.raises(EngineDownError, match="answered 500"):
            client.post("/bad")
        assert client.get("/weight_info") == {}
    client.close()


@pytest.mark.parametrize(("idle", "connections"), [(60.0, 1), (0.0, 2)])
def test_a_connection_that_was_idle_for_long_is_not_used_again(
    idle: float, connections: int, server: HangingUp, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(wire, "IDLE_S", idle)
    client = EngineClient(server.url)
    assert [client.generate(b"{}"), client.generate(b"{}")] == [{}, {}]
    assert server.connections == connections
    client.close()


def test_it_is_given_up_before_the_server_does():
    assert wire.IDLE_S < 5.0, "vLLM's server hangs up after 5 seconds"
