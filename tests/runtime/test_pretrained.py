"""Weights that did not come whole from their checkpoint."""

import json
import logging

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mmrl.runtime.pretrained import broken_file, load_whole, readable, refuse_absurd_sizes, refuse_non_finite, refuse_other_keys


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


def test_many_tensors_are_counted():
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


def test_a_file_cut_short_is_named(tmp_path):
    file = tmp_path / "part" / "model.safetensors"
    file.parent.mkdir()
    save_file({"a": torch.ones(100)}, file)
    whole = file.read_bytes()
    assert broken_file(tmp_path) is None and broken_file(file) is None
    deep = b"[" * 5000 + b"]" * 5000
    for wrong in (whole[:-1], whole[:20], b"", b"\xff" * 100, whole + b"x", len(deep).to_bytes(8, "little") + deep):
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


def test_a_header_of_numbers_is_broken(tmp_path):
    file = tmp_path / "a.safetensors"
    for header in ({"a": 1}, {"a": {"data_offsets": [0]}}, {"a": {"data_offsets": "no"}}, [1]):
        text = json.dumps(header).encode()
        file.write_bytes(len(text).to_bytes(8, "little") + text)
        assert broken_file(tmp_path) == file


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
