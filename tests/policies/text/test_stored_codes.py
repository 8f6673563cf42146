"""Folders that others quantized by bitsandbytes are read as they are: the same codes, without the package."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mmrl.app.modality.merge import merge_adapter
from mmrl.policies.shared.quantized.layer import digest, nf4_layers
from mmrl.policies.text.dry_run import meta_model
from mmrl.policies.text.settings import EngineConfig, QuantizedSettings
from tests.attacks import codes, models
from tests.attacks.models import Damage
from tests.policies.text.test_quantized import LORA, in_4_bits, with_adapter
from tests.support.stored_codes import store_codes
from tests.support.text_policies import logprobs, make, mixed

LAYERS = r"^(?!.*visual).*layers\.\d+\..*_proj\.weight$"


@pytest.mark.parametrize(("family", "double"), [("qwen2_5_vl", True), ("qwen3_vl", False)])
def test_stored_codes_are_those_of_the_original_and_need_no_word(tiny, family: str, double: bool, tmp_path: Path):
    folder = str(store_codes(tiny(family), tmp_path / family, LAYERS, double))
    stored, made = with_adapter(make(folder, lora=LORA)), in_4_bits(tiny(family), quantized=QuantizedSettings(double=double))
    assert digest(stored.net.model) == digest(made.net.model)
    rollouts = stored.rollout(mixed())
    assert torch.equal(logprobs(stored, rollouts), logprobs(made, rollouts))
    planned, _ = meta_model(replace(stored.config, lora=None))
    plan = {name: (layer.weight.shape, layer.scales.dtype) for name, layer in nf4_layers(planned)}
    own = {name.removeprefix("base_model.model."): layer for name, layer in nf4_layers(stored.net.model)}
    assert plan == {name.removesuffix(".base_layer"): (layer.weight.shape, layer.scales.dtype) for name, layer in own.items()}


def test_an_adapter_is_merged_into_what_stored_codes_stand_for(tiny, tmp_path: Path):
    folder = str(store_codes(tiny("qwen3_vl"), tmp_path / "qwen3_vl", LAYERS))
    policy = with_adapter(make(folder, lora=LORA))
    rollouts = policy.rollout(mixed())
    policy.save(tmp_path / "merged")
    merge_adapter(tmp_path / "merged", folder)
    torch.testing.assert_close(logprobs(policy, rollouts), logprobs(make(str(tmp_path / "merged")), rollouts), atol=1e-5, rtol=0)


def other_values(found: dict[str, Tensor], name: str) -> None:
    found[f"{name}.quant_map"] = found[f"{name}.quant_map"].flip(0).contiguous()


def few_codes(found: dict[str, Tensor], name: str) -> None:
    found[name] = found[name][:-1].contiguous()


def other_kind(found: dict[str, Tensor], name: str) -> None:
    found[f"{name}.quant_state.bitsandbytes__fp4"] = found.pop(f"{name}.quant_state.bitsandbytes__nf4")


def spoilt(change: Callable[[dict[str, Tensor], str], object]) -> Damage:
    return partial(models.change, models.M, lambda weights: change(weights, models.Q))


CASES: dict[str, tuple[tuple[str, ...], Damage, bool]] = {
    **codes.CODES,
    "an offset below 0": (
        ("has scales from -2 to",),
        partial(models.change, models.M, codes.describe({"nested_offset": -2.0})),
        True,
    ),
    "other values": (("has codes that stand for other values",), spoilt(other_values), True),
    "few codes": (("of sizes (511, 16, 1), where 32 x 32 weights need (512, 16, 1)",), spoilt(few_codes), True),
    "another kind": (("is in FP4, and NF4 is read",), spoilt(other_kind), True),
}


@pytest.mark.parametrize("case", CASES)
def test_codes_that_are_not_as_they_should_be_are_refused_by_name(tiny, case: str, tmp_path: Path):
    words, damage, double = CASES[case]
    folder = store_codes(tiny("qwen2_5_vl"), tmp_path / "model", r"model\.layers\..*proj\.weight", double)
    damage(folder)
    with pytest.raises(ValueError, match=r"policy\.model") as caught:
        make(str(folder), lora=LORA)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_file_cut_short_and_weights_that_would_train_are_refused(tiny, tmp_path: Path):
    folder = store_codes(tiny("qwen3_vl"), tmp_path / "qwen3_vl", LAYERS)
    with pytest.raises(ValueError, match=r"is stored in 4 bits, which do not train: add \[policy.lora\]"):
        make(str(folder))
    with pytest.raises(ValueError, match=r"is stored in 4 bits, which vLLM cannot read: remove \[policy.engine\], or take"):
        make(str(folder), lora=LORA, engine=EngineConfig(url=("http://127.0.0.1:9",)))
    [file] = folder.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ValueError, match=r"its file .*model.safetensors is cut short or broken"):
        make(str(folder), lora=LORA)
