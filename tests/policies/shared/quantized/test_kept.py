"""Codes are made once and kept in the cache: the second start reads them, and what is not as it was written is made again."""

import json
import logging
import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmrl.lab.tiny.flow.pipelines import build
from mmrl.policies.shared.quantized import kept
from mmrl.policies.shared.quantized.kept import RECORD, CodesRecipe, description, is_whole
from mmrl.policies.shared.quantized.layer import base_of, digest
from mmrl.policies.shared.quantized.table import dynamic, files_in, nf4, pairs, quantize, read_codes, tensors_in
from tests.app.modality.test_merge import RealBytes
from tests.policies.flow.test_weights import in_4_bits as drawing
from tests.policies.text.test_quantized import in_4_bits
from tests.support.stored_codes import change_weights


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache that takes small models, too."""
    monkeypatch.setenv("MMRL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept, "WORTH_KEEPING", 0)
    return tmp_path / "cache"


def entries(cache: Path) -> list[Path]:
    return sorted(cache.glob("codes-*"))


def refuse(*_: Any) -> None:
    raise AssertionError("codes were made")


@pytest.mark.parametrize("family", ["qwen3_vl", "gemma3"])
def test_the_second_start_reads_what_the_first_wrote(tiny, family: str, cache: Path, monkeypatch: pytest.MonkeyPatch):
    first = in_4_bits(tiny(family))
    [entry] = entries(cache)
    monkeypatch.setattr(kept, "quantize", refuse)
    assert digest(in_4_bits(tiny(family)).net.model) == digest(first.net.model)
    assert [entry] == entries(cache)
    assert first.net.model.config.name_or_path == tiny(family), "an adapter names its base by it"
    assert (entry / "tokenizer.json").is_file() and "visual" not in json.loads((entry / "config.json").read_text())
    monkeypatch.undo()
    assert digest(in_4_bits(tiny(family)).net.model) == digest(first.net.model), "the same as without a cache"


def test_weights_in_bfloat16_have_the_same_codes_at_every_start(
    tiny, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """transformers makes numbers of the weights' type while it loads, where offsets and tables must be as they are."""
    folder = tmp_path / "narrow"
    shutil.copytree(tiny("qwen3_vl"), folder)
    change_weights(folder, lambda found: {name: weight.bfloat16() for name, weight in found.items()})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    first = digest(in_4_bits(str(folder)).net.model)
    for table in (nf4, pairs, dynamic):
        table.cache_clear()
    assert len(entries(cache)) == 1 and digest(in_4_bits(str(folder)).net.model) == first
    monkeypatch.undo()
    assert digest(in_4_bits(str(folder)).net.model) == first, "the same as without a cache"


def test_parts_of_a_pipeline_are_kept_apart(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = str(build("flux", tmp_path / "flux"))
    base = base_of(*drawing(folder)._parts_in_4_bits())
    assert len(entries(cache)) == 3, "a transformer and two text encoders"
    monkeypatch.setattr(kept, "quantize", refuse)
    assert base_of(*drawing(folder)._parts_in_4_bits()) == base
    monkeypatch.undo()
    assert base_of(*drawing(folder)._parts_in_4_bits()) == base, "the same as without a cache"


def weights(folder: Path, count: int = 4, side: int = 64) -> CodesRecipe:
    """Files of one square weight each, and a norm."""
    torch.manual_seed(0)
    folder.mkdir()
    for i in range(count):
        save_file({f"{i}.weight": torch.randn(side, side), f"{i}.norm": torch.ones(side)}, folder / f"{i}.safetensors")
    (folder / "config.json").write_text("{}")
    files = sorted(folder.glob("*.safetensors"))
    return CodesRecipe(files, {f"{i}.weight" for i in range(count)}, True, description(True), "the model")


def test_files_hold_the_codes_of_the_weights_and_the_rest_as_it_was(cache: Path, tmp_path: Path):
    recipe = weights(tmp_path / "source")
    folder = recipe.folder()
    assert folder is not None
    read = tensors_in(files_in(folder, "model"))
    for i, file in enumerate(recipe.files):
        source = load_file(file)
        ours, made = read_codes(f"{i}.weight", read), quantize(source[f"{i}.weight"])
        assert all(torch.equal(getattr(ours, name), getattr(made, name)) for name in ("codes", "scales", "units", "offset"))
        assert torch.equal(read[f"{i}.norm"](f"{i}.norm"), source[f"{i}.norm"])


def cut(entry: Path) -> None:
    file = next(entry.glob("*.safetensors"))
    file.write_bytes(file.read_bytes()[:-9])


def flip(entry: Path) -> None:
    file = next(entry.glob("*.safetensors"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def forget(entry: Path) -> None:
    (entry / RECORD).unlink()


def other_format(entry: Path) -> None:
    record = json.loads((entry / RECORD).read_text())
    (entry / RECORD).write_text(json.dumps({**record, "format": 0}))


def other_model(entry: Path) -> None:
    record = json.loads((entry / RECORD).read_text())
    (entry / RECORD).write_text(json.dumps({**record, "key": "0123456789ab"}))


def strange(entry: Path) -> None:
    (entry / RECORD).write_text("[]")


@pytest.mark.parametrize("spoil", [cut, flip, forget, other_format, other_model, strange])
def test_an_entry_that_is_not_as_it_was_written_is_made_again(
    spoil: Any, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    recipe = weights(tmp_path / "source")
    folder = recipe.folder()
    assert folder is not None
    spoil(folder)
    with caplog.at_level(logging.WARNING):
        assert recipe.folder() == folder and is_whole(folder)
    assert [record.message for record in caplog.records] == [
        f"{folder} is damaged, or not of this mmrl: its codes are made again"
    ]


@pytest.mark.parametrize("stranger", ["link", "file"])
def test_without_a_place_in_the_cache_codes_are_made_at_every_start(
    stranger: str, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    recipe = weights(tmp_path / "source")
    folder = recipe.folder()
    assert folder is not None
    shutil.rmtree(folder)
    if stranger == "link":
        folder.symlink_to(tmp_path / "source")
    else:
        folder.write_text("mine")
    with caplog.at_level(logging.WARNING):
        assert recipe.folder() is None
    assert "they are made at every start" in caplog.text
    assert folder.is_symlink() or folder.read_text() == "mine"


def test_another_source_or_scale_has_another_entry(cache: Path, tmp_path: Path):
    recipe = weights(tmp_path / "source")
    first = recipe.folder()
    assert CodesRecipe(recipe.files, recipe.names, False, description(False), "the model").folder() != first
    save_file({"0.weight": torch.zeros(64, 64), "0.norm": torch.ones(64)}, recipe.files[0])
    assert recipe.folder() != first


def test_broken_files_are_refused_and_leave_nothing(cache: Path, tmp_path: Path):
    recipe = weights(tmp_path / "source")
    save_file({"0.weight": torch.full((64, 64), torch.nan)}, recipe.files[0])
    with pytest.raises(ValueError, match=r"the model holds NaN or infinity in 1 tensors \(0.weight\)"):
        recipe.folder()
    recipe.files[0].write_bytes(recipe.files[0].read_bytes()[:-9])
    with pytest.raises(ValueError, match=r"its file .*0.safetensors is cut short or broken"):
        recipe.folder()
    assert not [path for path in cache.iterdir() if path.is_dir()]


def make(recipe: CodesRecipe, gate: Any) -> None:
    kept.WORTH_KEEPING = 0
    gate.wait()
    assert recipe.folder() is not None


def test_processes_that_start_together_make_one_entry(cache: Path, tmp_path: Path):
    recipe, context = weights(tmp_path / "source"), multiprocessing.get_context("fork")
    gate = context.Barrier(3)
    workers = [context.Process(target=make, args=(recipe, gate)) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    [entry] = entries(cache)
    assert is_whole(entry) and {path.name for path in cache.iterdir()} == {entry.name, ".codes.lock"}


def test_the_memory_holds_the_codes_of_one_file(cache: Path, tmp_path: Path):
    recipe = weights(tmp_path / "source", count=8, side=256)
    with RealBytes() as live:
        recipe.folder()
    codes = sum(file.stat().st_size for file in recipe.files) // 4 // len(recipe.files)
    # 24 bytes a weight while one matrix is rounded, beside its float32 numbers
    assert live.peak < codes + 30 * 256**2 < 8 * 4 * 256**2
