"""Weights that did not come whole from their checkpoint, and a hub that does not answer: one sentence, soon."""

import json
import logging

import huggingface_hub.constants  # noqa: F401 - read once, before the tests below change the environment
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mmrl.policies.flow.loading import load_index
from mmrl.policies.text.loading import load_config
from mmrl.policies.text.settings import TextPolicyConfig
from mmrl.runtime.net import offline
from mmrl.runtime.pretrained import broken_file, load_whole, readable, refuse_absurd_sizes, refuse_non_finite, refuse_other_keys
from mmrl.serving.files import hub_file
from mmrl.serving.scorers.encoders import encoder_of
from tests.support.ports import free_ports
from tests.support.rude_servers import answers, hears_nothing, rude


def loader(model=None, log=None, **report):
    """A `from_pretrained` that reports these keys."""

    def load(source, output_loading_info):
        assert output_loading_info
        if log:
            logging.getLogger("transformers.modeling_utils").warning(log)
        keys = {"missing_keys": set(), "unexpected_keys": [], "mismatched_keys": []}
        return model or nn.Linear(2, 2), keys | report

    return load


def test_a_whole_checkpoint_is_loaded():
    model = nn.Linear(2, 2)
    tables = ["text.position_ids", "rotary.inv_freq"]
    assert load_whole(loader(model, unexpected_keys=tables), "x", "policy.model 'x'") is model


def test_tensors_that_do_not_fit_are_named():
    keys = {"missing_keys": {"b", "a"}, "unexpected_keys": ["c"], "mismatched_keys": [("d", (1,), (2,))]}
    said = r"policy.model 'x' .* the class Linear: tensors 2 missing \(a, b\); 1 unexpected \(c\); 1 of another shape \(d\): "
    with pytest.raises(ValueError, match=said):
        load_whole(loader(**keys), "x", "policy.model 'x'")
    for word, key in (("missing", "missing_keys"), ("unexpected", "unexpected_keys"), ("of another shape", "mismatched_keys")):
        with pytest.raises(ValueError, match=word):
            load_whole(loader(**{key: ["k"]}), "x", "place")
    with pytest.raises(ValueError, match=r"5 missing \(0, 1, 2, \.\.\.\)"):
        refuse_other_keys(map(str, range(5)), (), (), "place", "CLIP")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_weights_that_are_not_finite_are_named(dtype, value):
    model = nn.Linear(3, 2).to(dtype)
    model.weight.data[1, 2] = value
    with pytest.raises(ValueError, match=r"NaN or infinity in 1 tensors \(weight\)"):
        load_whole(loader(model), "x", "place")


def test_whatever_cannot_be_infinite_is_fine():
    largest = torch.full((2, 2), torch.finfo(torch.bfloat16).max, dtype=torch.bfloat16)
    refuse_non_finite([("a", torch.zeros(0)), ("b", torch.ones(2, dtype=torch.int8)), ("c", largest)], "place")


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
    """A hub that accepts connections and says nothing: the requests it has seen."""
    with rude(hears_nothing) as server:
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
def test_a_silent_hub_is_one_sentence(hub: list[bytes], name: str):
    said = r"is no folder here, and the Hugging Face hub .* did not answer within 0\.2 s: check"
    with pytest.raises(FileNotFoundError, match=said):
        LOADS[name]()


def test_it_is_asked_once(hub: list[bytes]):
    for name in ("a/b", "c/d"):
        with pytest.raises(FileNotFoundError, match="did not answer"):
            offline.check_hub(name)
    assert len(hub) == 1


def test_nothing_is_asked_for_what_is_here_or_forbidden(hub: list[bytes], tmp_path, monkeypatch: pytest.MonkeyPatch):
    offline.check_hub(str(tmp_path))
    offline.check_hub("./nowhere")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    offline.check_hub("a/b")
    assert hub == []


def test_a_hub_that_cannot_be_reached_is_one_sentence(online: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(offline, "ANSWER_S", 30.0)
    for address, reason in ((f"http://127.0.0.1:{free_ports(1)}", "refused"), ("no address at all", "unknown url type")):
        monkeypatch.setenv("HF_ENDPOINT", address)
        with pytest.raises(FileNotFoundError, match=f"cannot be reached .*{reason}.*HF_HUB_OFFLINE=1 to use"):
            offline.check_hub("a/b")


def test_any_answer_will_do(online: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(offline, "ANSWER_S", 30.0)
    with rude(answers(503)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        offline.check_hub("a/b")
    assert len(server.requests) == 1
