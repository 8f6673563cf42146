"""Codes of 4 bits, layers and networks of them, against bitsandbytes 0.50.2; the cache that keeps them."""

import json
import logging
import multiprocessing
import shutil
import sys
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers.models.transformers.transformer_sd3 import SD3Transformer2DModel
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mmrl.lab.tiny.flow.pipelines import build
from mmrl.policies.shared.dry_run import fake_weights, size_of
from mmrl.policies.shared.quantized import kept, table
from mmrl.policies.shared.quantized.kept import RECORD, CodesRecipe, description, is_whole
from mmrl.policies.shared.quantized.layer import (
    Nf4Linear,
    Product,
    base_of,
    count_weights,
    digest,
    fast_product,
    nf4_layers,
    put_layers,
    set_kernels,
)
from mmrl.policies.shared.quantized.load import load_network
from tests.app.modality.test_merge import RealBytes
from tests.policies.flow.test_weights import in_4_bits as drawing
from tests.policies.text.test_quantized import in_4_bits
from tests.support.refused import refused
from tests.support.stored_codes import change_weights

GOLD = json.loads((Path(__file__).parent / "bitsandbytes.json").read_text())


def weight(shape: str) -> Tensor:
    """The same numbers on every machine; those of the middle size hold blocks of zeros."""
    rows, columns = map(int, shape.split("x"))
    numbers = torch.arange(rows * columns, dtype=torch.int64) * 2654435761 % 4294967296
    found = (numbers.float() / 4294967296 - 0.5).view(rows, columns) * 0.1
    if shape == "16x24":
        found[3:7] = 0
    return found


@pytest.mark.parametrize("shape", GOLD)
def test_codes_and_values_are_those_of_bitsandbytes(shape: str):
    gold, found = GOLD[shape], table.quantize(weight(shape))
    assert found.codes[:8].tolist() == gold["first"]
    assert sha256(found.codes.numpy().tobytes()).hexdigest() == gold["codes"]
    torch.testing.assert_close(found.units, torch.tensor(gold["units"]), rtol=1e-5, atol=1e-7)
    assert float(found.offset) == pytest.approx(gold["offset"], rel=1e-6)
    # theirs is not always the nearest of the 256 values
    apart = table.dynamic()[found.scales.int()] - table.dynamic()[torch.tensor(gold["scales"])]
    assert (apart.abs() * found.units).max() <= 0.02 * found.units.max()
    size = weight(shape).numel()
    scales = torch.tensor(gold["scales"], dtype=torch.uint8)
    theirs = table.Codes(found.codes, scales, torch.tensor(gold["units"]), torch.tensor(gold["offset"]))
    values = table.dequantize(theirs, size, torch.float32)
    assert values[:6].tolist() == gold["some"] and sha256(values.numpy().tobytes()).hexdigest() == gold["values"]


def test_chunks_give_the_same_values(monkeypatch: pytest.MonkeyPatch):
    numbers = torch.linspace(-1, 1, 40_000).view(200, 200) ** 3
    whole = table.round_weight(numbers)
    monkeypatch.setattr(table, "CHUNK", 64 * 256)
    assert torch.equal(table.round_weight(numbers), whole)
    assert torch.equal(table.dequantize(table.quantize(numbers), 40_000, torch.bfloat16).view(200, 200), whole.bfloat16())


def test_a_number_that_is_none_shows_in_the_offset():
    for bad in (torch.nan, torch.inf):
        numbers = weight("16x24")
        numbers[5, 5] = bad
        assert not table.quantize(numbers).offset.isfinite()


STORED = Path(__file__).parent / "bitsandbytes.safetensors"
"""Normal numbers times .05 of 48 x 128, 20 x 72, 300 x 64 and, with scales in float32, 16 x 128 weights; fourth rows are 0."""
READ = table.tensors_in([STORED])


@pytest.fixture(params=["float32", "bfloat16"])
def usual(request: pytest.FixtureRequest) -> Iterator[None]:
    """torch's usual type, which transformers sets to a model's own while it loads; no table was made before."""
    for made in (table.nf4, table.pairs, table.dynamic):
        made.cache_clear()
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, request.param))
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("usual")
@pytest.mark.parametrize("name", table.weights_in(READ))
def test_values_are_those_that_bitsandbytes_makes(name: str):
    with safe_open(STORED, framework="pt") as file:
        values = json.loads(file.metadata()["values"])
    (rows, columns), dtype = table.facts_of_weight(name, READ)
    codes = table.read_codes(name, READ)
    whole = table.dequantize(codes, rows * columns, torch.float32).view(rows, columns)
    assert sha256(whole.numpy().tobytes()).hexdigest() == values[name.removesuffix(".weight")]
    assert not whole[3].any() and 0.04 < whole.std() < 0.06
    written = table.tensors_of(name, codes, (rows, columns), dtype)
    theirs = {own: read(own) for own, read in READ.items() if own.startswith(name)}
    assert written.keys() == theirs.keys() and sum(map(table.is_part, written)) == len(written) - 1
    assert all(torch.equal(value, theirs[own]) for own, value in written.items())


def test_the_method_is_read_from_configs_of_both_libraries():
    said = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    assert table.method_of({"quantization_config": said}) == "nf4" and table.method_of({}) is None
    assert table.method_of({"quantization_config": {**said, "bnb_4bit_quant_type": "fp4"}}) == "fp4"
    eight = {"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}
    assert table.method_of(eight) == "bitsandbytes in 8 bits"
    assert table.method_of({"quantization_config": {"quant_method": "gptq"}}) == "gptq"


def pair(bias: bool = True) -> tuple[Nf4Linear, nn.Linear]:
    torch.manual_seed(0)
    plain = nn.Linear(24, 40, bias).requires_grad_(False)
    found, codes = Nf4Linear(plain), table.quantize(plain.weight)
    found.weight = nn.Parameter(codes.codes, requires_grad=False)
    found.scales, found.units, found.offset = codes.scales, codes.units, codes.offset
    plain.weight.copy_(found.whole(torch.float32))
    return found, plain


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("narrow", [False, True])
def test_product_and_gradient_are_those_of_the_rounded_layer(bias: bool, narrow: bool):
    found, plain = pair(bias)
    x, y = (torch.linspace(-1, 1, 2 * 3 * 24).view(2, 3, 24).requires_grad_() for _ in range(2))
    with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
        ours, theirs = found(x), plain(y)
    assert ours.dtype == theirs.dtype == (torch.bfloat16 if narrow else torch.float32)
    # two products of other shapes may add in other orders
    bound = 2e-2 if narrow else 1e-6
    torch.testing.assert_close(ours, theirs, atol=bound, rtol=bound)
    step = torch.linspace(0, 1, ours.numel()).view(ours.shape).to(ours.dtype)
    ours.backward(step)
    theirs.backward(step)
    torch.testing.assert_close(x.grad, y.grad, atol=bound, rtol=bound)


def test_it_moves_and_is_never_cast():
    found, _ = pair()
    before, name = found.whole(torch.float32), digest(nn.Sequential(found))
    found.to(torch.bfloat16)
    assert found.weight.dtype == torch.uint8 and found.units.dtype == torch.float32
    assert torch.equal(found.whole(torch.float32), before) and digest(nn.Sequential(found)) == name
    for part in (found.scales, found.units, found.offset):
        was = part.clone()
        part.view(-1)[0] += 1
        assert digest(nn.Sequential(found)) != name, "every part of the codes is in the hash"
        part.copy_(was)
    assert digest(nn.Sequential(found)) == name


def test_without_values_it_knows_its_sizes():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(128, 96), nn.Linear(96, 4))
    put_layers(model, ["0"])
    fake_weights(model)
    assert count_weights(model) == 128 * 96 + 96 + 96 * 4 + 4
    [(_, layer)] = nf4_layers(model)
    held = [layer.weight, layer.scales, layer.units, layer.offset]
    assert sum(one.numel() * one.element_size() for one in held) == 128 * 96 // 2 + 192 + 4 + 4
    assert model(torch.empty(5, 128)).shape == (5, 4)


class QuantState:
    """What bitsandbytes' operator is told about a weight, by its own words."""

    def __init__(self, absmax: Any, **more: Any) -> None:
        self.absmax, self.more = absmax, more

    def whole(self, packed: torch.Tensor) -> torch.Tensor:
        """The weight by bitsandbytes' rule: a scale of its own for each block, or one of 8 bits times a unit, and an offset."""
        scales, inner = self.absmax, self.more["state2"]
        if inner is not None:
            units = inner.absmax.repeat_interleave(inner.more["blocksize"])[: len(scales)]
            scales = inner.more["code"][scales.int()] * units + self.more["offset"]
        halves = torch.stack([packed >> 4, packed & 15], 1).flatten().int()
        rows, columns = self.more["shape"]
        spread = scales.repeat_interleave(self.more["blocksize"])[: rows * columns]
        return (self.more["code"][halves][: rows * columns] * spread).view(rows, columns)


@pytest.mark.parametrize("double", [True, False])
def test_fast_kernels_are_told_the_same_weight(double: bool, monkeypatch: pytest.MonkeyPatch):
    def matmul_4bit(x: Any, packed: Any, quant_state: Any, bias: Any) -> torch.Tensor:
        assert packed.shape[0] == 1 and packed.dtype == torch.uint8 and quant_state.more["quant_type"] == "nf4"
        return nn.functional.linear(x, quant_state.whole(packed.flatten()), bias)

    functional = SimpleNamespace(QuantState=QuantState)
    monkeypatch.setitem(sys.modules, "bitsandbytes", SimpleNamespace(matmul_4bit=matmul_4bit, functional=functional))
    monkeypatch.setitem(sys.modules, "bitsandbytes.functional", functional)
    torch.manual_seed(0)
    plain = nn.Linear(24, 40)
    layer = Nf4Linear(plain, double)
    layer.take(table.quantize(plain.weight, double))
    set_kernels(nn.Sequential(layer), "fast")
    assert layer.fast
    x = torch.randn(3, 24)
    torch.testing.assert_close(fast_product(x, layer.bias, layer), nn.functional.linear(x, layer.whole(x.dtype), layer.bias))
    assert torch.equal(layer(x), Product.apply(x, layer.bias, layer)), "on a card alone"


AT_A_TIME = 24
"""Bytes a weight while one matrix is rounded: its numbers in float32, their shares of a scale, and the index of each code."""


@pytest.mark.parametrize("files", [1, 8])
def test_beside_the_result_one_matrix_is_held(files: int, tmp_path: Path):
    torch.manual_seed(0)
    shape: dict[str, Any] = {"num_layers": 6, "num_attention_heads": 4, "attention_head_dim": 16, "in_channels": 4}
    sizes: dict[str, Any] = {"joint_attention_dim": 32, "caption_projection_dim": 64, "pooled_projection_dim": 32}
    network = SD3Transformer2DModel(**shape, **sizes, sample_size=8, out_channels=4, pos_embed_max_size=8)
    whole, largest = size_of(network.parameters()), max(weight.numel() for weight in network.parameters())
    network.save_pretrained(tmp_path, max_shard_size=2 * whole // files)
    found = table.files_in(tmp_path, table.NETWORK)
    assert (len(found) > 1) == (files > 1)
    del network
    with RealBytes() as live:
        loaded = load_network(SD3Transformer2DModel, tmp_path, found, torch.float32, True, "the network")
    held = size_of(loaded.parameters()) + sum(layer.num_bytes - layer.weight.numel() for _, layer in nf4_layers(loaded))
    assert live.peak < held + AT_A_TIME * largest < whole


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


def test_weights_in_bfloat16_have_the_same_codes_every_time(tiny, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """transformers makes numbers of the weights' type while it loads, where offsets and tables must be as they are."""
    folder = tmp_path / "narrow"
    shutil.copytree(tiny("qwen3_vl"), folder)
    change_weights(folder, lambda found: {name: weight.bfloat16() for name, weight in found.items()})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    first = digest(in_4_bits(str(folder)).net.model)
    for made in (table.nf4, table.pairs, table.dynamic):
        made.cache_clear()
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
    read = table.tensors_in(table.files_in(folder, "model"))
    for i, file in enumerate(recipe.files):
        source = load_file(file)
        ours, made = table.read_codes(f"{i}.weight", read), table.quantize(source[f"{i}.weight"])
        assert all(torch.equal(getattr(ours, name), getattr(made, name)) for name in ("codes", "scales", "units", "offset"))
        assert torch.equal(read[f"{i}.norm"](f"{i}.norm"), source[f"{i}.norm"])


def edit(entry: Path, name: str, change: Callable[[bytes], bytes]) -> None:
    file = next(entry.glob(name))
    file.write_bytes(change(file.read_bytes()))


def other_record(**entries: Any) -> Callable[[Path], None]:
    return lambda entry: edit(entry, RECORD, lambda content: json.dumps({**json.loads(content), **entries}).encode())


SPOILT: dict[str, Callable[[Path], None]] = {
    "cut": lambda entry: edit(entry, "*.safetensors", lambda content: content[:-9]),
    "a bit": lambda entry: edit(entry, "*.safetensors", lambda content: content[:-1] + bytes([content[-1] ^ 1])),
    "no record": lambda entry: (entry / RECORD).unlink(),
    "other format": other_record(format=0),
    "other model": other_record(key="0123456789ab"),
    "no table": lambda entry: edit(entry, RECORD, lambda content: b"[]"),
}


@pytest.mark.parametrize("spoil", SPOILT.values(), ids=SPOILT)
def test_an_entry_that_has_changed_is_made_again(spoil: Any, cache: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture):
    recipe = weights(tmp_path / "source")
    folder = recipe.folder()
    assert folder is not None
    spoil(folder)
    with caplog.at_level(logging.WARNING):
        assert recipe.folder() == folder and is_whole(folder)
    assert [one.message for one in caplog.records] == [f"{folder} is damaged, or not of this mmrl: its codes are made again"]


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
    refused(r"the model holds NaN or infinity in 1 tensors \(0.weight\)", recipe.folder)
    recipe.files[0].write_bytes(recipe.files[0].read_bytes()[:-9])
    refused(r"its file .*0.safetensors is cut short or broken", recipe.folder)
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
