"""Codes of 4 bits against those of bitsandbytes 0.50.2 (bitsandbytes.json), and against a search by hand."""

import json
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.policies.shared.quantized import table
from mmrl.policies.shared.quantized.table import Codes, dequantize, dynamic, nf4, quantize, round_weight

GOLD = json.loads((Path(__file__).parent / "bitsandbytes.json").read_text())


def weight(shape: str) -> Tensor:
    """The same numbers on every machine; those of the middle size hold blocks of zeros."""
    rows, columns = map(int, shape.split("x"))
    numbers = torch.arange(rows * columns, dtype=torch.int64) * 2654435761 % 4294967296
    found = (numbers.float() / 4294967296 - 0.5).view(rows, columns) * 0.1
    if shape == "16x24":
        found[3:7] = 0
    return found


def of_theirs(gold: dict[str, Any], codes: Tensor) -> Codes:
    return Codes(
        codes, torch.tensor(gold["scales"], dtype=torch.uint8), torch.tensor(gold["units"]), torch.tensor(gold["offset"])
    )


@pytest.mark.parametrize("shape", GOLD)
def test_codes_and_values_are_those_of_bitsandbytes(shape: str):
    gold, found = GOLD[shape], quantize(weight(shape))
    assert found.codes[:8].tolist() == gold["first"]
    assert sha256(found.codes.numpy().tobytes()).hexdigest() == gold["codes"]
    torch.testing.assert_close(found.units, torch.tensor(gold["units"]), rtol=1e-5, atol=1e-7)
    assert float(found.offset) == pytest.approx(gold["offset"], rel=1e-6)
    # theirs is not always the nearest of the 256 values
    apart = dynamic()[found.scales.int()] - dynamic()[torch.tensor(gold["scales"])]
    assert (apart.abs() * found.units).max() <= 0.02 * found.units.max()
    size = weight(shape).numel()
    values = dequantize(of_theirs(gold, found.codes), size, torch.float32)
    assert values[:6].tolist() == gold["some"] and sha256(values.numpy().tobytes()).hexdigest() == gold["values"]


def test_the_nearest_value_is_taken():
    numbers = weight("16x24")
    found = quantize(numbers)
    scale = dynamic()[found.scales.int()] * found.units + found.offset
    blocks = numbers.view(-1, 64)
    largest = blocks.abs().amax(1).clamp(min=1e-30)
    by_hand = ((blocks / largest[:, None])[..., None] - nf4()).abs().argmin(-1)
    expected = (nf4()[by_hand] * scale[:, None]).view(16, 24)
    assert torch.equal(round_weight(numbers), expected) and not round_weight(numbers)[3:5].any()
    assert 0.02 < float((expected - numbers).norm() / numbers.norm()) < 0.12


def test_chunks_give_the_same_values(monkeypatch: pytest.MonkeyPatch):
    numbers = torch.linspace(-1, 1, 40_000).view(200, 200) ** 3
    whole = round_weight(numbers)
    monkeypatch.setattr(table, "CHUNK", 64 * 256)
    assert torch.equal(round_weight(numbers), whole)
    assert torch.equal(dequantize(quantize(numbers), 40_000, torch.bfloat16).view(200, 200), whole.bfloat16())


def test_a_number_that_is_none_shows_in_the_offset():
    for bad in (torch.nan, torch.inf):
        numbers = weight("16x24")
        numbers[5, 5] = bad
        assert not quantize(numbers).offset.isfinite()


def test_a_tie_between_bytes_is_seen():
    """A byte holds the earlier weight in its higher half."""
    found = quantize(torch.tensor([[1.0, -1.0]]))
    assert found.codes.tolist() == [0xF0]
    turned = dequantize(replace(found, codes=torch.tensor([0x0F], dtype=torch.uint8)), 2, torch.float32)
    assert turned[0] < 0 < turned[1]
