"""Files that bitsandbytes 0.50.2 wrote (bitsandbytes.safetensors) are read bit for bit, and written alike."""

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from mmrl.policies.shared.quantized.table import (
    dequantize,
    dynamic,
    facts_of_weight,
    is_part,
    method_of,
    nf4,
    pairs,
    read_codes,
    tensors_in,
    tensors_of,
    weights_in,
)

GOLD = Path(__file__).parent / "bitsandbytes.safetensors"
"""Normal numbers times .05 of 48 x 128, 20 x 72, 300 x 64 and, with scales in float32, 16 x 128 weights; fourth rows are 0."""
READ = tensors_in([GOLD])


@pytest.fixture(params=["float32", "bfloat16"])
def usual(request: pytest.FixtureRequest) -> Iterator[None]:
    """torch's usual type, which transformers sets to a model's own while it loads; no table was made before."""
    for made in (nf4, pairs, dynamic):
        made.cache_clear()
    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, request.param))
    yield
    torch.set_default_dtype(before)


@pytest.mark.usefixtures("usual")
@pytest.mark.parametrize("name", weights_in(READ))
def test_values_are_those_that_bitsandbytes_makes(name: str):
    with safe_open(GOLD, framework="pt") as file:
        values = json.loads(file.metadata()["values"])
    (rows, columns), dtype = facts_of_weight(name, READ)
    codes = read_codes(name, READ)
    whole = dequantize(codes, rows * columns, torch.float32).view(rows, columns)
    assert sha256(whole.numpy().tobytes()).hexdigest() == values[name.removesuffix(".weight")]
    assert not whole[3].any() and 0.04 < whole.std() < 0.06
    written = tensors_of(name, codes, (rows, columns), dtype)
    theirs = {own: read(own) for own, read in READ.items() if own.startswith(name)}
    assert written.keys() == theirs.keys() and sum(map(is_part, written)) == len(written) - 1
    assert all(torch.equal(value, theirs[own]) for own, value in written.items())


def test_the_method_is_read_from_configs_of_both_libraries():
    said = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    assert method_of({"quantization_config": said}) == "nf4" and method_of({}) is None
    assert method_of({"quantization_config": {**said, "bnb_4bit_quant_type": "fp4"}}) == "fp4"
    assert method_of({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}) == "bitsandbytes in 8 bits"
    assert method_of({"quantization_config": {"quant_method": "gptq"}}) == "gptq"
