"""A server hangs up after its own errors, and when nobody talked for some seconds; neither looks like a server that is gone."""

import socket
import threading
from collections.abc import Iterator

import pytest

from mmrl.engine.wire import client as wire
from mmrl.engine.wire.client import EngineClient, EngineDownError, EngineRefusedError
from tests.support.rude_servers import drips, echoes, floods, rude


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


def test_a_call_of_a_server_that_drips_is_over_by_the_clock():
    with rude(drips(b"HTTP/1.1 200 OK\r\n\r\n", b" ")) as server:
        client = EngineClient(server.url)
        with pytest.raises(EngineDownError, match="/load gave no answer within 1 s"):
            client.get("/load", 0.6)
        client.close()


def test_an_answer_without_end_is_not_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(wire, "MOST_BYTES", 2**20)
    with rude(floods(b"HTTP/1.1 200 OK\r\n\r\n", b" ")) as server:
        client = EngineClient(server.url)
        with pytest.raises(EngineDownError, match="/load answered more than 1 MiB"):
            client.get("/load")
        client.close()


def test_a_token_that_a_server_repeats_is_not_shown(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("A_TOKEN", "sesame")
    with rude(echoes(403)) as server:
        client = EngineClient(server.url, token_env="A_TOKEN")
        with pytest.raises(EngineRefusedError, match=r"answered 403: .*\[the key\]") as refused:
            client.get("/load")
        client.close()
    assert "sesame" not in str(refused.value)
