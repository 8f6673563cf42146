"""A model in 4 bits is the model with rounded weights and nothing else, whoever made its codes, and whatever computes it."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mmrl.app.modality.merge import merge_adapter
from mmrl.core.readings import REF_LOGPROBS
from mmrl.policies.shared.dry_run import size_of
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.shared.quantized.layer import HostEmbedding, Nf4Linear, digest, host_weights, nf4_layers
from mmrl.policies.text.dry_run import meta_model
from mmrl.policies.text.families import family_of
from mmrl.policies.text.loading import layers_to_quantize, load_config
from mmrl.policies.text.policy import TextPolicy
from mmrl.policies.text.settings import EngineConfig, QuantizedSettings, TextPolicyConfig
from tests.attacks import models
from tests.attacks.models import Damage
from tests.support.refused import refused
from tests.support.stored_codes import store_codes
from tests.support.text_policies import (
    EVERY,
    FP32_BOUND,
    assert_noted,
    gradients,
    logprobs,
    make,
    mixed,
    plain_model,
    relative_difference,
)

LORA = LoraSettings(rank=4, alpha=8)


def in_4_bits(folder: str, **settings: Any) -> TextPolicy:
    return with_adapter(make(folder, weights="nf4", lora=LORA, **settings))


def with_adapter(policy: TextPolicy) -> TextPolicy:
    """The policy with an adapter that adds something, always the same."""
    numbers = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for _, weight in sorted(policy.net.model.named_parameters()):
            if weight.requires_grad:
                weight.copy_(0.1 * torch.randn(weight.shape, generator=numbers))
    return policy


def rounded(folder: str, policy: TextPolicy, target: Path) -> str:
    """A folder of the model with the weights that codes stand for."""
    model, _ = plain_model(folder)
    with torch.no_grad():
        for name, layer in nf4_layers(policy.net.model):
            plain = name.removeprefix("base_model.model.").removesuffix(".base_layer")
            model.get_submodule(plain).weight.copy_(layer.whole(torch.float32))
    shutil.copytree(folder, target)
    model.save_pretrained(target)
    return str(target)


@pytest.mark.parametrize("family", [one for one in EVERY if "qwen3_5_moe" not in str(one)])
def test_reads_writes_and_learns_as_the_rounded_model(tiny, family, tmp_path):
    policy = in_4_bits(tiny(family), shadows=("ref",))
    bare = rounded(tiny(family), policy, tmp_path / "rounded")
    twin = with_adapter(make(bare, lora=LORA))
    rollouts = policy.rollout(mixed())
    assert_noted(rollouts, logprobs(policy, rollouts))
    torch.testing.assert_close(logprobs(policy, rollouts), logprobs(twin, rollouts), atol=1e-6, rtol=0)
    assert relative_difference(gradients(policy, rollouts), gradients(twin, rollouts)) < 1e-6
    reference = policy.read(rollouts.trace, [REF_LOGPROBS], rollouts.action_mask)[REF_LOGPROBS]
    torch.testing.assert_close(reference, logprobs(make(bare), rollouts).detach(), atol=1e-6, rtol=0)
    with torch.no_grad():
        assert (logprobs(make(tiny(family), lora=LORA), rollouts) - logprobs(twin, rollouts)).abs().max() > 1e-3, "4 bits round"


def test_packed_rows_and_checkpointing_change_nothing(tiny):
    one = in_4_bits(tiny("qwen3_vl"), prefix="packed")
    other = in_4_bits(tiny("qwen3_vl"), prefix="repeated", gradient_checkpointing=True)
    rollouts = one.rollout(mixed())
    torch.testing.assert_close(logprobs(one, rollouts), logprobs(other, rollouts), atol=FP32_BOUND, rtol=0)
    assert relative_difference(gradients(one, rollouts), gradients(other, rollouts)) < 1e-4


def test_codes_come_from_the_stored_numbers_whatever_the_policy_computes_in(tiny):
    wide, narrow = (in_4_bits(tiny("qwen3_vl"), dtype=dtype) for dtype in ("float32", "bfloat16"))
    assert digest(wide.net.model) == digest(narrow.net.model)
    kept = {name: weight.dtype for name, weight in narrow.net.model.named_parameters()}
    assert kept.pop("model.language_model.embed_tokens.weight") == torch.bfloat16
    assert {dtype for name, dtype in kept.items() if "lora" in name} == {torch.float32}


def test_vision_and_head_stay_as_they_are_unless_vision_is_named(tiny):
    named = [name for name, _ in nf4_layers(in_4_bits(tiny("qwen2_5_vl")).net.model)]
    assert named and all(".language_model." in name for name in named)
    both = in_4_bits(tiny("qwen2_5_vl"), quantized=QuantizedSettings(("language", "vision")))
    assert {name for name, _ in nf4_layers(both.net.model)} > set(named)
    assert not isinstance(both.net.model.get_output_embeddings(), Nf4Linear)


def test_adapters_of_frozen_layers_do_not_train(tiny):
    def trained(policy: TextPolicy) -> set[str]:
        return {name for name, weight in policy.net.model.named_parameters() if weight.requires_grad}

    whole, part = (trained(in_4_bits(tiny("qwen3_vl"), freeze=freeze)) for freeze in ((), ("layers:0-0",)))
    assert part and whole - part == {name for name in whole if ".layers.0." in name}
    assert part == trained(make(tiny("qwen3_vl"), lora=LORA, freeze=("layers:0-0",)))
    refused(r"policy.freeze = \['language'\] leaves nothing to train", in_4_bits, tiny("qwen3_vl"), freeze=("language",))


def test_an_adapter_goes_on_beside_the_same_codes_alone(tiny, tmp_path):
    policy = in_4_bits(tiny("qwen3_vl"))
    state = policy.state_dict()
    in_4_bits(tiny("qwen3_vl")).load_state_dict(state)
    for other in (
        in_4_bits(tiny("qwen3_vl"), quantized=QuantizedSettings(("language", "vision"))),
        make(tiny("qwen3_vl"), lora=LORA),
    ):
        refused(r"belongs to other weights in 4 bits than those of policy.model .*qwen3_vl", other.load_state_dict, state)


def test_an_adapter_merged_into_the_rounded_model_answers_as_it_did(tiny, tmp_path):
    policy = in_4_bits(tiny("qwen3_vl"))
    rollouts = policy.rollout(mixed())
    policy.save(tmp_path / "merged")
    merge_adapter(tmp_path / "merged", tiny("qwen3_vl"), parts=("language",))
    torch.testing.assert_close(logprobs(policy, rollouts), logprobs(make(str(tmp_path / "merged")), rollouts), atol=1e-5, rtol=0)
    policy.save(tmp_path / "other")
    merge_adapter(tmp_path / "other", tiny("qwen3_vl"))
    assert (logprobs(policy, rollouts) - logprobs(make(str(tmp_path / "other")), rollouts)).abs().max() > 1e-3


def test_weights_that_are_no_numbers_are_refused(tiny, tmp_path):
    folder = Path(shutil.copytree(tiny("qwen3_vl"), tmp_path / "broken"))
    [file] = folder.glob("*.safetensors")
    weights = load_file(file)
    name = next(name for name in sorted(weights) if "q_proj" in name)
    weights[name][0, 0] = torch.nan
    save_file(weights, file, {"format": "pt"})
    refused(r"holds NaN or infinity in 1 tensors \(.*q_proj.weight\)", make, str(folder), weights="nf4", lora=LORA)


def test_experts_that_are_one_tensor_are_refused_before_weights_load(tiny):
    class Experts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.language_model = nn.ModuleDict({"q_proj": nn.Linear(8, 8)})
            self.language_model.register_parameter("experts", nn.Parameter(torch.empty(4, 8, 8)))
            self.config = SimpleNamespace(model_type="many_experts")

        def get_output_embeddings(self) -> None:
            return None

    family = family_of(load_config(TextPolicyConfig(tiny("qwen3_vl"))))
    with pytest.raises(ValueError, match=r"80% of what many_experts would quantize lies in experts that are one tensor"):
        layers_to_quantize(Experts(), family, ("language",))
    refused(r"parts holds 'vision', where many_experts has no linear layers", layers_to_quantize, Experts(), family, ("vision",))


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


MAP, STATE = f"{models.Q}.quant_map", f"{models.Q}.quant_state.bitsandbytes__"


def spoilt(change: Callable[[dict[str, Tensor]], object]) -> Damage:
    return partial(models.change, models.M, change)


CASES: dict[str, tuple[tuple[str, ...], Damage, bool]] = {
    **models.CODES,
    "an offset below 0": (("has scales from -2 to",), spoilt(models.describe({"nested_offset": -2.0})), True),
    "other values": (
        ("has codes that stand for other values",),
        spoilt(lambda found: found.update({MAP: found[MAP].flip(0).contiguous()})),
        True,
    ),
    "few codes": (
        ("of sizes (511, 16, 1), where 32 x 32 weights need (512, 16, 1)",),
        spoilt(lambda found: found.update({models.Q: found[models.Q][:-1].contiguous()})),
        True,
    ),
    "FP4": (("is in FP4, and NF4 is read",), spoilt(lambda found: found.update({f"{STATE}fp4": found.pop(f"{STATE}nf4")})), True),
}


@pytest.mark.parametrize("case", CASES)
def test_codes_that_are_not_as_they_should_be_are_refused_by_name(tiny, case: str, tmp_path: Path):
    words, damage, double = CASES[case]
    folder = store_codes(tiny("qwen2_5_vl"), tmp_path / "model", r"model\.layers\..*proj\.weight", double)
    damage(folder)
    caught = refused(r"policy\.model", make, str(folder), lora=LORA)
    assert all(word in str(caught.value) for word in words), caught.value


def test_a_file_cut_short_and_weights_that_would_train_are_refused(tiny, tmp_path: Path):
    folder = store_codes(tiny("qwen3_vl"), tmp_path / "qwen3_vl", LAYERS)
    refused(r"is stored in 4 bits, which do not train: add \[policy.lora\]", make, str(folder))
    with pytest.raises(ValueError, match=r"is stored in 4 bits, which vLLM cannot read: remove \[policy.engine\], or take"):
        make(str(folder), lora=LORA, engine=EngineConfig(url=("http://127.0.0.1:9",)))
    [file] = folder.glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-100])
    refused(r"its file .*model.safetensors is cut short or broken", make, str(folder), lora=LORA)


HOST = QuantizedSettings(embeddings="host")


def test_rows_are_those_of_the_table_and_the_table_stays():
    table = nn.Embedding(5, 3)
    found = nn.Sequential(HostEmbedding(table), nn.Linear(3, 2))
    ids = torch.tensor([[4, 0], [2, 2]])
    assert torch.equal(found[0](ids), table(ids))
    found.to("meta")
    assert found[1].weight.is_meta and table.weight.device.type == "cpu"
    assert list(host_weights(found)) == [table.weight]
    found.to(torch.bfloat16)
    assert table.weight.dtype == torch.float32


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llava_onevision"])
def test_a_policy_reads_writes_and_learns_as_before(tiny, family: str):
    far, near = in_4_bits(tiny(family), quantized=HOST), in_4_bits(tiny(family))
    rollouts = near.rollout(mixed())
    other = far.rollout(mixed())
    assert [one.token_ids for _, one in other.samples()] == [one.token_ids for _, one in rollouts.samples()]
    assert torch.equal(logprobs(far, rollouts), logprobs(near, rollouts))
    assert relative_difference(gradients(far, rollouts), gradients(near, rollouts)) == 0
    planned, _ = meta_model(far.config)
    assert size_of(host_weights(planned)) == size_of(host_weights(far.net.model)) > 0
    far.load_state_dict(near.state_dict())


def test_a_head_that_is_the_same_table_keeps_it_on_the_device(tiny):
    config = TextPolicyConfig(tiny("gemma3"), weights="nf4", lora=LORA, quantized=HOST)
    for build in (TextPolicy, meta_model):
        refused(r"embeddings is 'host', and the head of policy.model .*gemma3.*is the same table", build, config)
