"""A hub that does not answer is one sentence, soon."""

import socket
import threading

import huggingface_hub.constants  # noqa: F401 - read once, before the tests below change the environment
import pytest

from mmrl.policies.flow.loading import load_index
from mmrl.policies.text.loading import load_config
from mmrl.policies.text.settings import TextPolicyConfig
from mmrl.runtime.net import offline
from mmrl.serving.files import hub_file
from mmrl.serving.scorers.encoders import encoder_of


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch):
    for name in (*offline.SWITCHES, "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(offline, "ANSWER_S", 0.2)
    monkeypatch.setattr(offline, "_TROUBLES", {})


@pytest.fixture
def hub(online: None, monkeypatch: pytest.MonkeyPatch):
    """A hub that accepts connections and says nothing."""
    listening = socket.create_server(("127.0.0.1", 0))
    asked: list[socket.socket] = []

    def accept() -> None:
        while True:
            try:
                asked.append(listening.accept()[0])
            except OSError:
                return

    threading.Thread(target=accept, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{listening.getsockname()[1]}")
    yield asked
    listening.close()
    for connection in asked:
        connection.close()


LOADS = {
    "text": lambda: load_config(TextPolicyConfig("a/b")),
    "flow": lambda: load_index("a/b"),
    "reward": lambda: encoder_of("a/b"),
    "open_clip": lambda: encoder_of("open_clip:hf-hub:a/b"),
    "file": lambda: hub_file("a/b", "x.safetensors", "checkpoint"),
}


@pytest.mark.parametrize("name", LOADS)
def test_a_silent_hub_is_one_sentence(hub: list[socket.socket], name: str):
    with pytest.raises(
        FileNotFoundError, match=r"is no folder here, and the Hugging Face hub .* did not answer within 0\.2 s: check"
    ):
        LOADS[name]()


def test_it_is_asked_once(hub: list[socket.socket]):
    for name in ("a/b", "c/d"):
        with pytest.raises(FileNotFoundError, match="did not answer"):
            offline.check_hub(name)
    assert len(hub) == 1


def test_nothing_is_asked_for_what_is_here_or_forbidden(hub: list[socket.socket], tmp_path, monkeypatch: pytest.MonkeyPatch):
    offline.check_hub(str(tmp_path))
    offline.check_hub("./nowhere")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    offline.check_hub("a/b")
    assert hub == []


def test_a_hub_that_cannot_be_reached_is_one_sentence(online: None, monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setattr(offline, "ANSWER_S", 30.0)
    for address, reason in ((f"http://127.0.0.1:{port}", "refused"), ("no address at all", "unknown url type")):
        monkeypatch.setenv("HF_ENDPOINT", address)
        with pytest.raises(FileNotFoundError, match=f"cannot be reached .*{reason}.*HF_HUB_OFFLINE=1 to use"):
            offline.check_hub("a/b")


def test_any_answer_will_do(online: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(offline, "ANSWER_S", 30.0)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            connection = server.accept()[0]
            connection.recv(1000)
            connection.sendall(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
            connection.close()

        threading.Thread(target=answer, daemon=True).start()
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        offline.check_hub("a/b")
