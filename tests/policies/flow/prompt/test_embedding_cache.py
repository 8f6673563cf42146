"""Embeddings of prompts: names that tell these apart, a life between runs, the files that made them, and damaged ones."""

import logging
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mmrl.app.commands.kept import clear, listing
from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Prompt
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.prompt import embedding_cache
from mmrl.policies.flow.prompt.embedding_cache import EmbeddingCache, digest_of
from mmrl.policies.flow.prompt.encode import key_of
from mmrl.runtime import cache as runtime_cache
from mmrl.runtime.cache import entries
from tests.support.flow_policies import FAMILIES, PLANS, make, prompts, requests

CPU = torch.device("cpu")
TEXTS = [prompt.text for prompt in prompts()]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def counting(policy: FlowPolicy, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that the policy's text encoders read from now on."""
    read: list[str] = []
    encode = type(policy.family).encode

    def noted(self: object, text: str, device: torch.device) -> object:
        read.append(text)
        return encode(policy.family, text, device)

    monkeypatch.setattr(type(policy.family), "encode", noted)
    return read


@pytest.mark.parametrize("family", FAMILIES)
def test_a_second_run_encodes_nothing_and_draws_the_same(tiny, monkeypatch, family):
    first = make(tiny(family), embeddings="disk", guidance=3.0)
    drawn = first.rollout(requests(), PLANS["flow_grpo"])
    second = make(tiny(family), embeddings="disk", guidance=3.0)
    read = counting(second, monkeypatch)
    again = second.rollout(requests(), PLANS["flow_grpo"])
    assert read == []
    assert torch.equal(drawn.recorded[ROLLOUT_LOGPROBS], again.recorded[ROLLOUT_LOGPROBS])
    plain = make(tiny(family), embeddings="memory", guidance=3.0).rollout(requests(), PLANS["flow_grpo"])
    assert torch.equal(drawn.recorded[ROLLOUT_LOGPROBS], plain.recorded[ROLLOUT_LOGPROBS])


def test_mmrls_cache_shows_them_and_removes_them(tiny, cache):
    make(tiny("sd3"), embeddings="disk").encoder(TEXTS, CPU)
    (entry,) = entries()
    assert entry.path.name.startswith("embeddings-") and entry.path.name in listing()
    assert len(list(entry.path.iterdir())) == len(TEXTS)
    clear([entry.path.name])
    assert entry.path.is_dir(), "this process uses it"
    os.close(runtime_cache._held.pop(entry.path))
    clear([entry.path.name])
    assert not list(cache.iterdir())


def test_other_files_and_settings_have_embeddings_of_their_own(tiny, tmp_path, monkeypatch):
    folder = tmp_path / "sd3"
    shutil.copytree(tiny("sd3"), folder)
    weights = folder / "text_encoder" / "model.safetensors"

    def opened(**settings: Any) -> str:
        disk = make(str(folder), embeddings="disk", **settings).encoder.disk
        assert disk is not None
        return disk.folder.name

    names = [opened(), opened(max_prompt_tokens=4)]
    assert opened() == names[0], "the same again"
    assert opened(height=32) == names[0] and opened(guidance=1.0) == names[0], "these have nothing to do with texts"
    status, content = weights.stat(), bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    names.append(opened())
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    names.append(opened())
    versions = embedding_cache.importlib.metadata.version
    monkeypatch.setattr(embedding_cache.importlib.metadata, "version", lambda one: "9" if one == "diffusers" else versions(one))
    names.append(opened())
    assert len(set(names)) == 5


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "foreign", "no digest"])
def test_a_damaged_file_is_made_again(tiny, monkeypatch, caplog, damage):
    from safetensors.torch import save_file

    policy = make(tiny("sd3"), embeddings="disk")
    (wanted,) = policy.encoder(TEXTS[:1], CPU)
    assert policy.encoder.disk is not None
    (file,) = policy.encoder.disk.folder.iterdir()
    content = file.read_bytes()
    if damage == "no digest":
        save_file({name: value.contiguous() for name, value in wanted.items()}, file)
    else:
        flipped = content[:-1] + bytes([content[-1] ^ 64])
        file.write_bytes({"cut": content[:-9], "flipped": flipped, "empty": b"", "foreign": b"x" * 99}[damage])
    again = make(tiny("sd3"), embeddings="disk")
    read = counting(again, monkeypatch)
    with caplog.at_level(logging.WARNING, logger="mmrl"):
        (found,) = again.encoder(TEXTS[:1], CPU)
    assert read == TEXTS[:1] and "is damaged" in caplog.text
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert file.read_bytes() == content, "and kept again"


def test_it_stops_at_its_share_of_the_cache(tiny, monkeypatch, caplog):
    make(tiny("sd3"), embeddings="disk").encoder(TEXTS[:1], CPU)
    size = entries()[0].num_bytes
    clear([])
    monkeypatch.setenv("MMRL_CACHE_GB", str(5 * size / 1e9))
    policy = make(tiny("sd3"), embeddings="disk")
    with caplog.at_level(logging.INFO, logger="mmrl"):
        assert len(policy.encoder(TEXTS, CPU)) == 3
    assert len(list(entries()[0].path.iterdir())) == 2 and "no more embeddings are kept" in caplog.text
    again = make(tiny("sd3"), embeddings="disk").encoder.disk
    assert again is not None and again.room < size
    monkeypatch.setenv("MMRL_CACHE_GB", "0")
    unbounded = make(tiny("sd3"), embeddings="disk").encoder.disk
    assert unbounded is not None and unbounded.room == float("inf")


def test_without_a_folder_to_write_a_run_goes_on(tiny, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING, logger="mmrl"):
        assert len(make(tiny("sd3"), embeddings="disk").encoder(TEXTS, CPU)) == 3
    assert caplog.text.count("set MMRL_CACHE to a folder that can be written") == 1


def test_half_written_files_are_not_read(cache):
    disk = EmbeddingCache(cache / "embeddings-0123456789ab")
    disk.write("a cat", "cpu", {"embeds": torch.ones(3)})
    (file,) = disk.folder.iterdir()
    file.rename(file.with_name(f".{file.name}.77"))
    assert disk.read("a cat", "cpu") is None


def test_embeddings_belong_to_a_kind_of_device(cache):
    disk = EmbeddingCache(cache / "embeddings-0123456789ab")
    disk.write("a cat", "cuda", {"embeds": torch.ones(3, dtype=torch.bfloat16), "pooled": torch.zeros(0)})
    assert disk.read("a cat", "cpu") is None and disk.read("a dog", "cuda") is None
    found = disk.read("a cat", "cuda")
    assert found is not None and found["embeds"].dtype == torch.bfloat16 and found["pooled"].shape == (0,)


def test_a_digest_is_of_names_types_shapes_and_values():
    made = {
        digest_of(condition)
        for condition in (
            {"a": torch.zeros(4)},
            {"b": torch.zeros(4)},
            {"a": torch.zeros(2, 2)},
            {"a": torch.zeros(4, dtype=torch.int32)},
            {"a": torch.tensor([0.0, 0, 0, 1])},
        )
    }
    assert len(made) == 5


def test_small_text_encoders_leave_the_disk_alone(tiny, cache, monkeypatch):
    assert make(tiny("sd3")).encoder.disk is None and not cache.exists()
    monkeypatch.setattr(embedding_cache, "WORTH_KEEPING", 1000)
    assert make(tiny("sd3")).encoder.disk is not None
    assert make(tiny("sd3"), embeddings="memory").encoder.disk is None


def test_what_is_embedded_alike_has_one_name_and_nothing_else_has():
    red, blue = (Image.new("RGB", (8, 8), color) for color in ("red", "blue"))
    edit = Prompt("0", "make it blue", media=(red,))
    assert key_of("a cat") == key_of(Prompt("0", "a cat")) == "a cat"
    assert key_of(replace(edit, id="1", answer="blue", media=(red.copy(),))) == key_of(edit)
    others = ({"text": "make it red"}, {"media": (blue,)}, {"media": (red, red)}, {"columns": {"width": 64, "height": 32}})
    for other in others:
        assert key_of(replace(edit, **other)) != key_of(edit), other
