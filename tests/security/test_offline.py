"""With HF_HUB_OFFLINE set nothing asks the network: no name is looked up, no address is connected to."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from mmrl.app.plugins.resolve import load
from mmrl.policies.flow import loading as flow_loading
from mmrl.policies.flow.settings import FlowPolicyConfig
from mmrl.policies.text import loading
from mmrl.policies.text.settings import TextPolicyConfig
from mmrl.runtime.net.offline import is_offline, offline_note
from mmrl.serving.files import hub_file
from mmrl.serving.scorers.models import companion

NOTE = "HF_HUB_OFFLINE is set, so nothing is downloaded: unset it, or fetch it beforehand with `hf download`"


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Everything that asked for the network, which is cut."""
    found: list[str] = []

    def refuse(*what: Any, **_: Any) -> Any:
        found.append(str(what[-1:]))
        raise OSError("the network was asked for")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket.socket, "connect_ex", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    return found


def test_what_is_here_is_loaded_without_asking(requests: list[str], vlm: Path, tmp_path: Path):
    assert is_offline()
    loading.load(TextPolicyConfig(str(vlm)))
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    (tmp_path / "a.jsonl").write_text('{"image": "a.png", "question": "x", "box": [1, 1, 5, 5]}\n')
    assert len(list(load("grounding_jsonl", "datasets")(tmp_path / "a.jsonl"))) == 1
    reward: Any = load("iou", "rewards")
    reward()
    assert requests == []


NAMES: dict[str, Callable[[], object]] = {
    "text policy": lambda: loading.load(TextPolicyConfig("nobody/no-such-model")),
    "flow policy": lambda: flow_loading.load(FlowPolicyConfig("nobody/no-such-model")),
    "data set": lambda: load("grounding_hf", "datasets")("nobody/no-such-data"),
    "file of weights": lambda: hub_file("nobody/no-such-model", "weights.pt", "checkpoint"),
    "tokenizer of a reward": lambda: companion("AutoTokenizer", "nobody/no-such-model", "model"),
}


@pytest.mark.parametrize("what", NAMES)
def test_a_name_of_the_hub_gives_one_sentence(what: str, requests: list[str]):
    with pytest.raises(FileNotFoundError, match="nobody/no-such") as error:
        NAMES[what]()
    assert NOTE in str(error.value)
    assert requests == []


@pytest.mark.parametrize(("value", "is_on"), [("1", True), ("true", True), ("ON", True), ("0", False), ("", False)])
def test_the_switch_is_the_one_of_the_hub(value: str, is_on: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("TRANSFORMERS_OFFLINE", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    assert is_offline() == is_on and bool(offline_note()) == is_on
