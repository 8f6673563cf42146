"""Weights: adapters, full training, shadows, what is left in files; and generators in 4 bits, which are the rounded ones."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmrl.app.modality.merge import merge_lora
from mmrl.core.readings import LOGPROBS, REF_LOGPROBS
from mmrl.flow.plan import evaluation_plan
from mmrl.policies.flow.dry_run import FlowDryRun, encoders_of
from mmrl.policies.flow.in_4_bits import parts_in_4_bits
from mmrl.policies.flow.policy import FlowPolicy
from mmrl.policies.flow.settings import FlowPolicyConfig, FlowQuantizedSettings
from mmrl.policies.shared.dry_run import size_of
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.shared.quantized.layer import base_of, nf4_layers
from tests.support.ascent import climb
from tests.support.flow_policies import (
    FAMILIES,
    LORA,
    PLANS,
    batch_of,
    gradients,
    latents,
    logprobs,
    make,
    relative_difference,
    requests,
    stir,
)
from tests.support.pipelines import load_pipeline
from tests.support.refused import refused
from tests.support.stored_codes import store_codes

RISE = 1e-3
BOTH = FlowQuantizedSettings(("transformer", "text_encoders"))
WAN = {"wan_a14b": "wan"}
LATE = ("wan", "flux2", "flux2_klein", "z_image", "sana", "krea2", "chroma", "lumina2", "sd15", "sdxl")


def weights_of(pipeline: Any) -> dict[str, torch.Tensor]:
    return dict(pipeline.transformer.state_dict())


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_step_raises_the_log_probability_and_the_reference_stays(tiny, family, lora):
    policy = make(tiny(family), ["ref"], lora=lora)
    rollouts = policy.rollout(requests(), PLANS["flow_grpo"])
    reference = policy.read(rollouts.trace, [REF_LOGPROBS], rollouts.action_mask)[REF_LOGPROBS]
    before = logprobs(policy, rollouts)
    found = torch.autograd.grad(before.sum(), list(policy.weights.named.values()), retain_graph=True, allow_unused=True)
    assert [name for name, gradient in zip(policy.weights.named, found, strict=True) if gradient is None] == []
    climb(before.sum(), policy.parameters(), rise=RISE)
    policy.advance()
    after = policy.read(rollouts.trace, [LOGPROBS, REF_LOGPROBS], rollouts.action_mask)
    assert 0.5 * RISE < after[LOGPROBS].sum() - before.sum() < 1.5 * RISE
    assert torch.equal(after[REF_LOGPROBS], reference)
    assert not after[REF_LOGPROBS].requires_grad


@pytest.mark.parametrize("family", FAMILIES)
def test_automatic_adapters_sit_where_the_papers_put_them(tiny, family):
    policy = make(tiny(family))
    found = {name.split(".lora_")[0].split(".", 3)[3] for name in policy.weights.named}
    attention = {
        f"attn.{name}" for name in ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
    }
    forward = {
        "sd3": set(),
        "flux": {"ff.net.0.proj", "ff.net.2", "ff_context.net.0.proj", "ff_context.net.2"},
        "qwen_image": {"img_mlp.net.0.proj", "img_mlp.net.2", "txt_mlp.net.0.proj", "txt_mlp.net.2"},
    }[family]
    assert found == attention | forward


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_adapter_loads_in_diffusers_and_as_a_start(tiny, family, dtype, tmp_path):
    policy = make(tiny(family), dtype=dtype)
    stir(policy, 0.5)
    policy.save(tmp_path)
    pipeline = load_pipeline(tiny(family))
    base = {name: value.clone() for name, value in weights_of(pipeline).items()}
    pipeline.load_lora_weights(tmp_path)
    adapter = pipeline.transformer.peft_config["default_0"]
    assert (adapter.r, adapter.lora_alpha) == (4, 4)
    trained = {name: value for name, value in weights_of(policy.pipeline).items() if "lora_" in name}
    found = {name.replace("default_0", "default"): value for name, value in weights_of(pipeline).items() if "lora_" in name}
    assert trained.keys() == found.keys()
    scale = LORA.alpha / LORA.rank
    for name, value in trained.items():
        torch.testing.assert_close(found[name].float(), value * scale if "lora_B" in name else value)
    pipeline.unload_lora_weights()
    assert all(torch.equal(value, base[name]) for name, value in weights_of(pipeline).items())
    started = FlowPolicy(replace(policy.config, lora=LoraSettings(adapter=str(tmp_path))), ["ref"])
    assert started.weights.named.keys() == policy.weights.named.keys()
    plan, asked = PLANS["flow_grpo"], requests(count=1)
    rollouts = policy.rollout(asked, plan)
    values = started.read(rollouts.trace, [LOGPROBS, REF_LOGPROBS], rollouts.action_mask)
    torch.testing.assert_close(values[LOGPROBS].detach(), logprobs(policy, rollouts).detach(), atol=1e-5, rtol=0)
    assert torch.equal(values[REF_LOGPROBS], values[LOGPROBS].detach()), "the reference is the adapter training started from"


def in_4_bits(folder: str, shadows: Any = (), **settings: Any) -> FlowPolicy:
    return make(folder, shadows, **({"weights": "nf4", "quantized": BOTH} | settings))


def rounded(folder: str, policy: FlowPolicy, target: Path) -> str:
    """The pipeline with the weights that codes stand for."""
    shutil.copytree(folder, target)
    for name, part in policy.pipeline.components.items():
        if not isinstance(part, torch.nn.Module) or not any(nf4_layers(part)):
            continue
        plain: Any = type(part)
        whole = plain.from_pretrained(target / name)
        with torch.no_grad():
            for own, layer in nf4_layers(part):
                whole.get_submodule(own.removesuffix(".base_layer")).weight.copy_(layer.whole(torch.float32))
        whole.save_pretrained(target / name)
    return str(target)


@pytest.mark.parametrize("family", [*FAMILIES, *WAN, *(pytest.param(family, marks=pytest.mark.evidence) for family in LATE)])
def test_draws_reads_and_learns_as_the_rounded_pipeline(tiny, family, tmp_path):
    policy = in_4_bits(tiny(family), ["ref"])
    twin = make(rounded(tiny(family), policy, tmp_path / family), ["ref"])
    plan = PLANS[WAN.get(family, "flow_grpo")]
    asked = requests(num_prompts=1)
    torch.testing.assert_close(latents(policy, asked, plan), latents(twin, asked, plan), atol=1e-5, rtol=1e-5)
    rollouts = policy.rollout(asked, plan)
    torch.testing.assert_close(logprobs(policy, rollouts), logprobs(twin, rollouts), atol=1e-6, rtol=0)
    ours, theirs = (one.read(rollouts.trace, [REF_LOGPROBS], rollouts.action_mask)[REF_LOGPROBS] for one in (policy, twin))
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    assert relative_difference(gradients(policy, [batch_of(rollouts)]), gradients(twin, [batch_of(rollouts)])) < 1e-6
    with torch.no_grad():
        assert (logprobs(make(tiny(family)), rollouts) - logprobs(policy, rollouts)).abs().max() > 1e-4, "4 bits round"


@pytest.mark.parametrize("family", ["sd3", "qwen_image"])
def test_a_merged_pipeline_draws_as_it_did(tiny, family, tmp_path):
    policy = in_4_bits(tiny(family))
    stir(policy, 0.5)
    policy.save(tmp_path / family)
    merge_lora(tmp_path / family, policy.config)
    merged = make(str(tmp_path / family))
    asked, plan = requests(num_prompts=1, count=2), evaluation_plan(3)
    for weight in merged.parameters():
        weight.data.zero_()
    torch.testing.assert_close(latents(merged, asked, plan), latents(policy, asked, plan), atol=1e-4, rtol=1e-4)


def test_an_adapter_goes_on_beside_the_same_codes_alone(tiny):
    state = in_4_bits(tiny("sd3")).state_dict()
    in_4_bits(tiny("sd3")).load_state_dict(state)
    one_scale = replace(BOTH, double=False)
    for other in (
        in_4_bits(tiny("sd3"), quantized=one_scale),
        in_4_bits(tiny("sd3"), quantized=FlowQuantizedSettings()),
        make(tiny("sd3")),
    ):
        refused(r"belongs to other weights in 4 bits than those of policy.model .*sd3", other.load_state_dict, state)


def test_codes_come_from_the_stored_numbers_and_plans_count_their_bytes(tiny):
    for quantized, each in ((BOTH, 0.516), (replace(BOTH, double=False), 0.5625)):
        wide, narrow = (in_4_bits(tiny("flux"), dtype=dtype, quantized=quantized) for dtype in ("float32", "bfloat16"))
        assert base_of(*wide._parts_in_4_bits()) == base_of(*narrow._parts_in_4_bits())
        planned, held = FlowDryRun(narrow.config), dict(nf4_layers(narrow.net.transformer))
        assert {name: layer.num_bytes for name, layer in nf4_layers(planned.network)} == {
            name: layer.num_bytes for name, layer in held.items()
        }
        assert size_of(planned.network.parameters()) == size_of(narrow.net.transformer.parameters())
        linear = sum(layer.size for layer in held.values())
        assert sum(layer.num_bytes for layer in held.values()) == pytest.approx(each * linear, rel=0.15), "blocks are small here"
        readers = narrow.family.text_encoders.items()
        kept = {
            name: size_of(part.parameters()) + sum(layer.num_bytes - layer.weight.numel() for _, layer in nf4_layers(part))
            for name, part in readers
        }
        assert encoders_of(narrow.config, type(narrow.family)) == kept


@pytest.mark.parametrize("double", [True, False])
def test_stored_codes_are_taken_as_they_are(tiny, double, tmp_path):
    folder = tmp_path / "flux"
    shutil.copytree(tiny("flux"), folder)
    for name, pattern in (
        ("transformer", r"\.weight$"),
        ("text_encoder_2", r"(?:SelfAttention\.[qkvo]|DenseReluDense\..*)\.weight"),
    ):
        shutil.rmtree(folder / name)
        store_codes(Path(tiny("flux")) / name, folder / name, pattern, double)
    stored = make(str(folder))
    made = in_4_bits(tiny("flux"), quantized=replace(BOTH, double=double))
    names = ["transformer", "text_encoder_2"]
    assert [base_of(getattr(stored.pipeline, one)) for one in names] == [base_of(getattr(made.pipeline, one)) for one in names]
    refused(r"\(transformer\) is stored in 4 bits, which do not train: add \[policy.lora\]", make, str(folder), lora=None)
    config = json.loads((folder / "transformer" / "config.json").read_text())
    config["quantization_config"]["quant_method"] = "torchao"
    (folder / "transformer" / "config.json").write_text(json.dumps(config))
    refused(r"\(transformer\) is quantized already, by torchao: take the original", make, str(folder))


def test_what_a_folder_lacks_is_refused_by_name(tiny, tmp_path):
    folder = tmp_path / "sd3"
    shutil.copytree(tiny("sd3"), folder)
    [file] = (folder / "transformer").glob("*.safetensors")
    weights = load_file(file)
    name = next(name for name in sorted(weights) if name.endswith("to_q.weight"))
    save_file({**weights, name: weights[name] * torch.nan}, file)
    refused(r"\(transformer\) holds NaN or infinity in 1 tensors \(.*to_q.weight\)", in_4_bits, str(folder))
    save_file({key: value for key, value in weights.items() if key != name} | {"more": weights[name]}, file)
    refused(r"tensors 1 missing \(.*to_q.weight\); 1 unexpected \(more\)", in_4_bits, str(folder))
    index = json.loads((folder / "model_index.json").read_text())
    bare = {key: [None, None] if key.startswith("text_encoder") else value for key, value in index.items()}
    with pytest.raises(ValueError, match=r"parts holds 'text_encoders', and policy.model 'm' has none"):
        parts_in_4_bits(FlowPolicyConfig("m", weights="nf4", lora=LORA, quantized=BOTH), bare, ["transformer"])
