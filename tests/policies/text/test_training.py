"""LoRA, frozen parts, shadows, checkpointing, half precision, saving."""

import pytest
import torch

from mmrl.core.readings import LOGPROBS, REF_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.policies.text.policy import LoraSettings, Sampling
from tests.support.ascent import climb
from tests.support.text_policies import (
    EVERY,
    FAMILIES,
    FP32_BOUND,
    gradients,
    logprobs,
    make,
    mixed,
    prompts,
    relative_difference,
)

LORA = LoraSettings(rank=4)
RISE = 0.1
"""In nats, of some 180."""


def step(policy, rollouts) -> None:
    optimizer = torch.optim.SGD(policy.parameters(), lr=1e-2)
    (-logprobs(policy, rollouts).sum()).backward()
    optimizer.step()
    optimizer.zero_grad()
    policy.advance()


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("family", EVERY)
def test_a_step_raises_the_log_probability_and_the_reference_stays(tiny, family, lora):
    policy = make(tiny(family), {"ref"}, lora=lora)
    rollouts = policy.rollout(mixed())
    before = logprobs(policy, rollouts)
    climb(before.sum(), policy.parameters(), rise=RISE)
    policy.advance()
    after = policy.read(rollouts.trace, [LOGPROBS, REF_LOGPROBS], rollouts.action_mask)
    torch.testing.assert_close(after[REF_LOGPROBS], before.detach(), atol=FP32_BOUND, rtol=0)
    assert not after[REF_LOGPROBS].requires_grad
    assert 0.5 * RISE < after[LOGPROBS].sum() - before.sum() < 1.5 * RISE


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("family", EVERY)
def test_gradient_checkpointing_changes_nothing(tiny, family, lora):
    plain, saving = make(tiny(family), lora=lora), make(tiny(family), lora=lora, gradient_checkpointing=True)
    rollouts = plain.rollout(mixed())
    saving.load_state_dict(plain.state_dict())
    again = saving.rollout(mixed())
    assert [g.samples for g in again.groups] == [g.samples for g in rollouts.groups]
    torch.testing.assert_close(logprobs(saving, rollouts).detach(), rollouts.recorded[ROLLOUT_LOGPROBS], atol=FP32_BOUND, rtol=0)
    ran: list[bool] = []
    hook = saving.net.core.register_forward_pre_hook(lambda module, args: ran.append(module.training))
    assert relative_difference(gradients(saving, rollouts), gradients(plain, rollouts)) < 1e-4
    hook.remove()
    assert ran == [True], "checkpointing only acts in training mode"
    assert not saving.net.training
    layers = [m for m in saving.net.modules() if getattr(m, "gradient_checkpointing", False)]
    assert layers


@pytest.mark.parametrize("lora", [None, LORA], ids=["full", "lora"])
@pytest.mark.parametrize("family", ["qwen3_vl", "smolvlm"])
def test_half_precision_stays_near_its_rollout(tiny, family, lora):
    policy = make(tiny(family), dtype="bfloat16", lora=lora)
    rollouts = policy.rollout(mixed())
    read = logprobs(policy, rollouts)
    assert read.dtype == torch.float32 and rollouts.recorded[ROLLOUT_LOGPROBS].dtype == torch.float32
    difference = (read.detach() - rollouts.recorded[ROLLOUT_LOGPROBS]).abs().max()
    # Measured: 0.03 and less; one rounding of a logit near 2 is 2**-7 = 0.008.
    assert difference < 0.1
    full = make(tiny(family))
    assert 1e-4 < (read.detach() - logprobs(full, rollouts).detach()).abs().max() < 0.3
    assert all(weight.dtype == torch.float32 for weight in policy.parameters())
    frozen = {weight.dtype for weight in policy.net.model.parameters() if not weight.requires_grad}
    assert frozen == (set() if lora is None else {torch.bfloat16})
    assert all(grad.dtype == torch.float32 and grad.isfinite().all() for grad in gradients(policy, rollouts).values())


def names(policy) -> set[str]:
    return {name for name, weight in policy.net.model.named_parameters() if weight.requires_grad}


@pytest.mark.parametrize("family", EVERY)
def test_parts_can_be_frozen(tiny, family):
    everything = names(make(tiny(family)))
    parts = {part: everything - names(make(tiny(family), freeze=(part,))) for part in ("vision", "projector", "language")}
    assert all(parts.values())
    assert sum(map(len, parts.values())) == len(everything) == len(set().union(*parts.values())), "the parts cover the model"
    first = everything - names(make(tiny(family), freeze=("layers:0-0",)))
    assert first and first < parts["language"] and all(".layers.0." in name for name in first)


@pytest.mark.parametrize("family", FAMILIES)
def test_automatic_adapters_sit_in_the_language_model_only(tiny, family):
    found = {name for name, weight in make(tiny(family), lora=LORA).net.model.named_parameters() if weight.requires_grad}
    layers = {name.split(".lora_")[0].rsplit(".", 1)[-1] for name in found}
    attention, mlp = {"q_proj", "k_proj", "v_proj", "o_proj"}, {"gate_proj", "up_proj", "down_proj"}
    linear = {"in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "out_proj"}
    own = {"qwen3_5": attention | mlp | linear, "glm4v": attention | {"gate_up_proj", "down_proj"}}
    assert layers == own.get(family, attention | mlp)
    assert all(name.startswith(("model.language_model", "model.text_model")) for name in found)
    # two layers, their linear maps, A and B
    assert len(found) == {"qwen3_5": 2 * (3 + 5 + 3 + 4), "glm4v": 2 * 6 * 2}.get(family, 2 * 7 * 2)


@pytest.mark.parametrize("family", EVERY)
def test_saved_weights_load_in_their_own_library(tiny, family, tmp_path):
    policy = make(tiny(family))
    rollouts = policy.rollout(mixed())
    step(policy, rollouts)
    policy.save(tmp_path / "full")
    loaded = make(str(tmp_path / "full"))
    torch.testing.assert_close(logprobs(loaded, rollouts), logprobs(policy, rollouts), atol=1e-6, rtol=0)


def test_a_saved_adapter_loads_in_peft_and_as_a_start(tiny, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForImageTextToText

    policy = make(tiny("qwen3_vl"), lora=LORA)
    rollouts = policy.rollout(mixed())
    step(policy, rollouts)
    policy.save(tmp_path)
    expected = logprobs(policy, rollouts).detach()
    started = make(tiny("qwen3_vl"), {"ref"}, lora=LoraSettings(adapter=str(tmp_path)))
    values = started.read(rollouts.trace, [LOGPROBS, REF_LOGPROBS], rollouts.action_mask)
    torch.testing.assert_close(values[LOGPROBS].detach(), expected)
    torch.testing.assert_close(values[REF_LOGPROBS], expected, msg="the reference is the adapter training started from")
    assert names(started) == names(policy)
    reloaded = PeftModel.from_pretrained(AutoModelForImageTextToText.from_pretrained(tiny("qwen3_vl")), tmp_path)
    base = make(tiny("qwen3_vl"))
    ids = base.encode(prompts()[2]).token_ids[None]
    with torch.no_grad():
        torch.testing.assert_close(reloaded(input_ids=ids).logits, policy.net.model(input_ids=ids).logits)
        assert (reloaded(input_ids=ids).logits - base.net.model(input_ids=ids).logits).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"freeze": ("vision", "projector", "language")}, "leaves nothing to train"),
        ({"freeze": ("visual",)}, "choose from vision, projector, language and layers:FIRST-LAST"),
        ({"freeze": ("layers:7-9",)}, "no weights in 'layers:7-9'"),
        ({"shadows": {"old"}}, "shadows"),
    ],
)
def test_contradicting_settings_are_refused(tiny, settings, said):
    with pytest.raises(ValueError, match=said):
        make(tiny("qwen3_vl"), **settings)
    with pytest.raises(FileNotFoundError, match="adapter"):
        make(tiny("qwen3_vl"), lora=LoraSettings(adapter="./nowhere"))


def test_dropout_in_a_config_is_switched_off(tiny, tmp_path):
    from transformers import AutoModelForImageTextToText, AutoProcessor

    model = AutoModelForImageTextToText.from_pretrained(tiny("qwen3_vl"))
    model.config.text_config.attention_dropout = 0.5
    model.save_pretrained(tmp_path)
    AutoProcessor.from_pretrained(tiny("qwen3_vl")).save_pretrained(tmp_path)
    policy = make(str(tmp_path), gradient_checkpointing=True, sampling=Sampling(max_new_tokens=6))
    rollouts = policy.rollout(mixed())
    torch.testing.assert_close(logprobs(policy, rollouts).detach(), rollouts.recorded[ROLLOUT_LOGPROBS], atol=FP32_BOUND, rtol=0)
