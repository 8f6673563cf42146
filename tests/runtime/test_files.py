"""Files that are broken, do not come, do not fit or are not there: weights, a silent hub, a full disk, and mistyped paths."""

import json
import logging
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub.constants  # noqa: F401 - read once, before the tests below change the environment
import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mmrl.app.export.export import whole_or_absent
from mmrl.app.files import replace_text
from mmrl.app.run.folder import RunDir, append_line
from mmrl.data.files.mp4 import write_mp4
from mmrl.data.files.paths import write_jsonl
from mmrl.engine.venv import Venv, note_whole
from mmrl.lab.arena.lane import Lane, Point
from mmrl.policies.flow.loading import load_index
from mmrl.policies.text.loading import load_config
from mmrl.policies.text.settings import TextPolicyConfig
from mmrl.runtime import near as module
from mmrl.runtime.cache import keep
from mmrl.runtime.disk import FullDiskError, room_for
from mmrl.runtime.near import near
from mmrl.runtime.net import offline
from mmrl.runtime.net.fetch import certificates
from mmrl.runtime.pretrained import broken_file, load_whole, readable, refuse_absurd_sizes, refuse_non_finite, refuse_other_keys
from mmrl.serving.files import hub_file
from mmrl.serving.scorers.encoders import encoder_of
from tests.support.ports import free_ports
from tests.support.refused import refused
from tests.support.rude_servers import OK, answers, drips, hears_nothing, in_turn, rude


def loader(model=None, log=None, **report):
    """A `from_pretrained` that reports these keys."""

    def load(source, output_loading_info):
        assert output_loading_info
        if log:
            logging.getLogger("transformers.modeling_utils").warning(log)
        keys = {"missing_keys": set(), "unexpected_keys": [], "mismatched_keys": []}
        return model or nn.Linear(2, 2), keys | report

    return load


def test_a_whole_checkpoint_is_loaded_and_whatever_cannot_be_infinite_is_fine():
    model = nn.Linear(2, 2)
    tables = ["text.position_ids", "rotary.inv_freq"]
    assert load_whole(loader(model, unexpected_keys=tables), "x", "policy.model 'x'") is model
    largest = torch.full((2, 2), torch.finfo(torch.bfloat16).max, dtype=torch.bfloat16)
    refuse_non_finite([("a", torch.zeros(0)), ("b", torch.ones(2, dtype=torch.int8)), ("c", largest)], "place")


def test_tensors_that_do_not_fit_are_named():
    keys = {"missing_keys": {"b", "a"}, "unexpected_keys": ["c"], "mismatched_keys": [("d", (1,), (2,))]}
    said = r"policy.model 'x' .* the class Linear: tensors 2 missing \(a, b\); 1 unexpected \(c\); 1 of another shape \(d\): "
    refused(said, load_whole, loader(**keys), "x", "policy.model 'x'")
    for word, key in (("missing", "missing_keys"), ("unexpected", "unexpected_keys"), ("of another shape", "mismatched_keys")):
        refused(word, load_whole, loader(**{key: ["k"]}), "x", "place")
    refused(r"5 missing \(0, 1, 2, \.\.\.\)", refuse_other_keys, map(str, range(5)), (), (), "place", "CLIP")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_finite_are_named(dtype, value):
    model = nn.Linear(3, 2).to(dtype)
    model.weight.data[1, 2] = value
    refused(r"NaN or infinity in 1 tensors \(weight\)", load_whole, loader(model), "x", "place")


def headed(header: object) -> bytes:
    """A file that is a header of this JSON alone."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


NO_HEADERS = [headed(header) for header in ({"a": 1}, {"a": {"data_offsets": [0]}}, {"a": {"data_offsets": "no"}}, [1])]


def test_a_file_cut_short_or_with_a_header_of_numbers_is_named(tmp_path):
    file = tmp_path / "part" / "model.safetensors"
    file.parent.mkdir()
    save_file({"a": torch.ones(100)}, file)
    whole = file.read_bytes()
    assert broken_file(tmp_path) is None and broken_file(file) is None
    deep = b"[" * 5000 + b"]" * 5000
    for wrong in (whole[:-1], whole[:20], b"", b"\xff" * 100, whole + b"x", len(deep).to_bytes(8, "little") + deep, *NO_HEADERS):
        file.write_bytes(wrong)
        assert broken_file(tmp_path) == file
        with (
            pytest.raises(ValueError, match=r"place: its file .*model\.safetensors is cut short or broken: download"),
            readable("place", tmp_path),
        ):
            raise RuntimeError("anything")


def test_errors_about_whole_files_keep_their_words(tmp_path):
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    with pytest.raises(OSError, match="not there"), readable("place", tmp_path):
        raise OSError("not there")
    with pytest.raises(ValueError, match=r"place cannot be loaded: .* \(KeyError: 'layers'\)"), readable("place", tmp_path):
        raise KeyError("layers")


def test_reports_of_libraries_are_not_logged_and_other_warnings_are(caplog, monkeypatch):
    # transformers, where another test has imported it, keeps its loggers from the root's handlers and may be silenced
    logger = logging.getLogger("transformers.modeling_utils")
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "handlers", [caplog.handler])
    with caplog.at_level(logging.WARNING, logger=logger.name):
        load_whole(loader(log="CLIP LOAD REPORT"), "x", "place")
        load_whole(loader(log="attention is slow"), "x", "place")
    assert caplog.messages == ["attention is slow"]


@pytest.mark.parametrize("key", ["num_hidden_layers", "n_layer", "depth", "num_blocks", "num_kv_shared_layers"])
def test_more_layers_than_any_model_has_are_refused_by_name(key: str):
    refuse_absurd_sizes({"text_config": {key: 4096}}, "policy.model 'x'")
    with pytest.raises(ValueError, match=rf"policy.model 'x': {key} in its config is 4097: no model has more than 4096"):
        refuse_absurd_sizes({"text_config": {key: 4097}}, "policy.model 'x'")


@pytest.mark.parametrize("key", ["vocab_size_per_layer_input", "hidden_size_per_layer_input", "layers_rope_theta"])
def test_sizes_of_each_layer_are_no_numbers_of_layers(key: str):
    """Gemma 4's vocabulary of inputs per layer has 262,144 tokens."""
    refuse_absurd_sizes({"text_config": {key: 262_144}}, "policy.model 'x'")


@pytest.fixture
def online(monkeypatch: pytest.MonkeyPatch):
    for name in (*offline.SWITCHES, "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(offline, "ANSWER_S", 0.2)
    monkeypatch.setattr(offline, "_TROUBLES", {})


@pytest.fixture
def hub(online: None, monkeypatch: pytest.MonkeyPatch):
    """A hub whose headers do not end: the requests it has seen."""
    with rude(drips(OK, b"x-a: b\r\n" * 101)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server.requests


LOADS = {
    "text": lambda: load_config(TextPolicyConfig("a/b")),
    "flow": lambda: load_index("a/b"),
    "reward": lambda: encoder_of("a/b"),
    "open_clip": lambda: encoder_of("open_clip:hf-hub:a/b"),
    "file": lambda: hub_file("a/b", "x.safetensors", "checkpoint"),
}


@pytest.mark.parametrize("name", LOADS)
def test_a_hub_that_does_not_come_to_an_answer_is_one_sentence(hub: list[bytes], name: str):
    said = r"is no folder here, and the Hugging Face hub .* did not answer within 0\.2 s: check"
    refused(said, LOADS[name], error=FileNotFoundError)


def test_it_is_asked_once_and_never_for_what_is_here_or_forbidden(hub: list[bytes], tmp_path, monkeypatch: pytest.MonkeyPatch):
    for name in (str(tmp_path), "./nowhere"):
        offline.check_hub(name)
    assert hub == []
    for name in ("a/b", "c/d"):
        refused("did not answer", offline.check_hub, name, error=FileNotFoundError)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    offline.check_hub("e/f")
    assert len(hub) == 1


def test_a_hub_that_cannot_be_reached_is_one_sentence(online: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(offline, "ANSWER_S", 30.0)
    certificates.cache_clear()
    for address, variable, value, said in (
        ("http://a.host", "SSL_CERT_FILE", "nowhere.pem", "SSL_CERT_FILE in the environment .*No such file"),
        ("http://b.host", "ALL_PROXY", "socks9://127.0.0.1", "ALL_PROXY in the environment .*Unknown scheme"),
        ("http://c.host", "HTTP_PROXY", "http://me:word/@127.0.0.1", r"HTTP_PROXY in the environment .*\(no address\)"),
        (f"http://me:word@127.0.0.1:{free_ports(1)}", "NO_PROXY", "", "ConnectError"),
        ("no address at all", "NO_PROXY", "", "missing an 'http"),
        ("http://[::1", "NO_PROXY", "", r"(?<=reached \()Invalid IPv6 URL"),
    ):
        with monkeypatch.context() as told:
            told.setenv("HF_ENDPOINT", address)
            told.setenv(variable, value)
            caught = refused(f"cannot be reached .*{said}.*OFFLINE=1 to use", offline.check_hub, "a/b", error=FileNotFoundError)
        assert "word" not in str(caught.value)


def test_any_answer_will_do(online: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(offline, "ANSWER_S", 30.0)
    with rude(answers(503)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        offline.check_hub("a/b")
    assert [one.partition(b" HTTP")[0] for one in server.requests] == [b"HEAD /", b"GET /api/models?limit=1"]
    monkeypatch.setattr(offline, "ANSWER_S", 0.5)
    with rude(in_turn(answers(200), hears_nothing)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"{server.url}/")
        refused(r"did not answer within 0\.5 s: check", offline.check_hub, "a/b", error=FileNotFoundError)


LIMIT = 20
"""Bytes that a file may have."""


@contextmanager
def no_room() -> Iterator[None]:
    """No file may be longer than LIMIT; Python ignores the signal that comes with it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def export(folder: Path, write: Callable[[Path], object]) -> None:
    with whole_or_absent(folder / "out") as partial:
        write(partial)


def weights(file: Path) -> None:
    save_file({"w": torch.zeros(4096)}, file)


WRITES: dict[str, Callable[[Path], object]] = {
    "replace_text": lambda folder: replace_text(folder / "a.txt", "x" * 100),
    "a line of metrics": lambda folder: append_line(folder / "metrics.jsonl", {"text": "x" * 100}),
    "a new run": lambda folder: RunDir.create(folder / "run"),
    "a point of the arena": lambda folder: Lane(folder, "grpo", 0).add(Point(1.0, 1, {"a": 1.0})),
    "rows": lambda folder: write_jsonl({folder / "rows.jsonl": [{"text": "x" * 100}]}),
    "a clip": lambda folder: write_mp4(folder / "a.mp4", np.zeros((4, 32, 32, 3), np.uint8), 4),
    "an export": lambda folder: export(folder, lambda out: weights(out / "model.safetensors")),
    "an export by torch": lambda folder: export(folder, lambda out: torch.save(torch.zeros(4096), out / "a.pt")),
    "the cache": lambda folder: keep(folder / "model", "", "config.json", lambda out: weights(out / "model.safetensors")),
    "an environment": lambda folder: note_whole(Venv(folder, "1", "cpu")),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITES)
def test_a_file_that_does_not_fit_is_named_and_nothing_is_left(tmp_path: Path, name: str):
    with no_room(), pytest.raises(FullDiskError) as caught:
        WRITES[name](tmp_path)
    text = str(caught.value)
    assert str(tmp_path) in text and "could not be written (" in text and " bytes are free there): make room there, then " in text
    left = [file.name for file in tmp_path.rglob("*") if file.is_file() and file.name != "metrics.jsonl"]
    assert left == []
    WRITES[name](tmp_path)


def test_the_innermost_file_and_the_outermost_way_to_go_on(tmp_path: Path):
    with pytest.raises(FullDiskError, match=r"inner could not be written .*: make room there, then go on$"):  # noqa: SIM117
        with room_for(tmp_path, "go on"), room_for(tmp_path / "inner"):
            raise OSError(28, os.strerror(28))


@pytest.mark.parametrize("error", [OSError(13, "Permission denied"), ValueError("odd"), KeyboardInterrupt()])
def test_other_errors_stay_what_they_are(tmp_path: Path, error: BaseException):
    with pytest.raises(type(error)) as caught, room_for(tmp_path):
        raise error
    assert caught.value is error


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("runs/model", "runs/other", "data"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data" / "boxes.jsonl").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("runs/mdl", " (near: runs/model)"),
        ("runs/MODEL", " (near: runs/model)"),
        ("./rns/model", " (near: runs/model)"),
        ("rns/nothing/of/it", " (near: runs)"),
        ("data/box.jsonl", " (near: data/boxes.jsonl)"),
        ("runs/zebra", ""),
        ("runs/model", ""),
        ("data/boxes.jsonl/inside", ""),
        ("{here}/runs/modle", " (near: {here}/runs/model)"),
        ("Qwen/Qwen2.5-VL-7B-Instruct", ""),
        ("", ""),
    ],
)
def test_the_first_part_that_is_not_there_is_compared(here: Path, path: str, words: str):
    assert near(path.format(here=here)) == words.format(here=here)


@pytest.mark.usefixtures("here")
def test_a_folder_that_cannot_be_read_is_no_error_and_of_a_huge_one_only_some_entries_are_compared(monkeypatch):
    def refuse(path: Path) -> None:
        raise PermissionError(path)

    for owner, name, value in ((Path, "iterdir", refuse), (module, "LOOKED_AT", 0)):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, value)
            assert near("runs/mdl") == "", name


def test_links_that_lead_nowhere_or_back_are_named(here: Path):
    (here / "loop").symlink_to("loop")
    (here / "gone").symlink_to("nothing")
    (here / "fine").symlink_to("runs")
    assert near("loop") == near("loop/model") == " (loop is a link to loop, and leads back to itself)"
    assert near("gone/model") == " (gone is a link to nothing, which is not there)"
    assert near("fine/mdl") == " (near: fine/model)" and near("fine/model") == ""
