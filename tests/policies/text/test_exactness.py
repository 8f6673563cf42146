"""What is noted, read and computed by transformers alone are the same numbers, of every family; what trains; what is saved."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.masking_utils import causal_mask_function

from mmrl.core.ranks import Ranks
from mmrl.core.readings import ENTROPY, LOGPROBS, REF_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Prompt, Request
from mmrl.lab.tiny.text import vlms
from mmrl.policies.shared.dry_run import tensors_in
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.packed.attention import Packed, PackedMask
from mmrl.policies.text.policy import Sampling
from mmrl.policies.text.prompt.encode import stand_in_prompt
from mmrl.training.checkpoints.save import Checkpoints
from tests.support.ascent import climb
from tests.support.refused import refused
from tests.support.text_policies import (
    EVERY,
    FAMILIES,
    FP32_BOUND,
    LATE,
    assert_noted,
    bias_toward,
    fed_by,
    generated,
    gradients,
    ids_of,
    logprobs,
    make,
    mixed,
    picture,
    plain_logprobs,
    plain_model,
    prompts,
    relative_difference,
    stir,
    text_trace,
)

REST = [pytest.param(family, marks=pytest.mark.evidence) for family in LATE if family not in ("gemma4", "muse_glimmer")]


@pytest.mark.parametrize("family", EVERY)
def test_rollout_shared_and_repeated_readings_and_the_plain_model_agree(tiny, family):
    shared, repeated = make(tiny(family), prefix="auto"), make(tiny(family), prefix="repeated")
    rollouts = shared.rollout(mixed())
    assert rollouts.action_mask.sum() > 0
    alone = plain_logprobs(plain_model(tiny(family)), shared, rollouts)
    assert_noted(rollouts, logprobs(shared, rollouts), logprobs(repeated, rollouts), alone)
    assert relative_difference(gradients(shared, rollouts), gradients(repeated, rollouts)) < 1e-4
    shown = (picture(1), picture(2, 90, 40))
    both = [Prompt(str(i), "<image> or <image>?", pair) for i, pair in enumerate((shown, shown[::-1]))]
    turned = shared.rollout([Request(one, 1, group_id=i, role="injected", written="yes") for i, one in enumerate(both)])
    assert (logprobs(shared, turned).detach().diff(dim=0)).abs().max() > 1e-3, "swapping two pictures must be seen"


REPEATED = ("qwen3_5_moe", "lfm2_vl", "minicpmv4_6")


@pytest.mark.parametrize("family", LATE)
def test_sampled_read_again_and_transformers_alone_agree(tiny, family):
    """The vision part does not train, so each prompt is looked at once; caps and factors of the head are transformers' own."""
    policy = make(tiny(family), lora=LoraSettings(rank=2))
    rollouts = policy.rollout(mixed())
    assert policy.packs == text_trace(rollouts.trace).packed == (family not in REPEATED) and policy.net.features is not None
    assert_noted(rollouts, logprobs(policy, rollouts), plain_logprobs(plain_model(tiny(family)), policy, rollouts))
    policy.audit(rollouts)


def test_layers_without_keys_of_their_own_read_packed_rows_alike(tmp_path):
    """The later layers of Gemma 4 E4B take the keys of earlier ones, and cut masks to the queries whose logits are asked for."""
    folder, kinds = str(tmp_path / "gemma4"), ["sliding_attention", "full_attention"] * 2
    for part in vlms.gemma4(num_hidden_layers=4, num_kv_shared_layers=2, layer_types=kinds, global_head_dim=16):
        part.save_pretrained(folder)
    packed, repeated = (make(folder, prefix=prefix) for prefix in ("packed", "repeated"))
    checked = make(folder, prefix="packed", gradient_checkpointing=True)
    rollouts = packed.rollout(mixed())
    assert_noted(rollouts, *(logprobs(one, rollouts) for one in (packed, repeated, checked)))
    for other in (repeated, checked):
        assert relative_difference(gradients(packed, rollouts), gradients(other, rollouts)) < 1e-4
    with pytest.raises(TypeError, match="some queries of a packed row are asked for alone"):
        PackedMask(Packed(()), causal_mask_function, False)[:, :, -1:]


@pytest.mark.parametrize("family", EVERY)
def test_media_tokens_are_never_written(tiny, family):
    policy = make(tiny(family))
    forbidden = sorted(policy.media_token_ids)
    assert policy.family.image_token_id in forbidden
    hook = bias_toward(policy, forbidden)
    rollouts = policy.rollout(mixed())
    written = {token for _, sample in rollouts.samples() for token in ids_of(sample)}
    assert_noted(rollouts, logprobs(policy, rollouts))
    hook.remove()
    assert not written & {*forbidden, *policy.banned}
    assert rollouts.recorded[ROLLOUT_LOGPROBS].min() > -30, "the bias on banned tokens must not cost the others their probability"


@pytest.mark.parametrize("family", [*FAMILIES, "gemma4", "muse_glimmer", *REST])
def test_greedy_equals_generate(tiny, family):
    policy = make(tiny(family))
    model, processor = plain_model(tiny(family))
    prompt = prompts()[0]
    rollouts = policy.rollout([Request(prompt, 2, 0), Request(prompts()[2], 1, 1)], Sampling(temperature=0.0, max_new_tokens=8))
    expected = generated(policy, model, fed_by(processor, prompt), 8)
    assert [ids_of(sample) for sample in rollouts.groups[0].samples] == [expected] * 2


@pytest.mark.parametrize("chunk", [1, 10**9])
def test_the_gradient_of_weighed_entropies_is_finite_and_right(tiny, chunk):
    """Token by token, with weights from 1e-3 to 1e3: tokens that are never written have no part in it."""
    policy = make(tiny("qwen3_vl"), logit_chunk=chunk)
    rollouts = policy.rollout(mixed()[:2])
    head = policy.net.model.get_output_embeddings().weight
    mask, found = rollouts.action_mask, policy.read(rollouts.trace, [ENTROPY], rollouts.action_mask)[ENTROPY]
    each = torch.stack([torch.autograd.grad(one, head, retain_graph=True)[0] for one in found[mask]])
    assert each.isfinite().all() and each.abs().amax(dim=(1, 2)).min() > 0
    weights = torch.logspace(-3, 3, int(mask.sum()))
    entropy = policy.read(rollouts.trace, [ENTROPY], mask)[ENTROPY]
    whole = torch.autograd.grad((weights * entropy[mask]).sum(), head)[0]
    expected = (weights[:, None, None].double() * each).sum(0)
    torch.testing.assert_close(whole.double(), expected, atol=1e-4 * float(expected.abs().max()), rtol=0)


def test_entropy_is_that_of_the_distribution(tiny):
    policy = make(tiny("qwen3_vl"))
    rollouts = policy.rollout(mixed())
    plain = policy.read(rollouts.trace, [ENTROPY, LOGPROBS], rollouts.action_mask)
    # E over the vocabulary of -log p at the first token, from the log-probability of every token that may be written.
    allowed = [token for token in range(len(policy.tokenizer)) if token not in policy.banned]
    row = text_trace(rollouts.trace).take(torch.zeros(len(allowed), dtype=torch.long))
    row.tokens[:, 0] = torch.tensor(allowed)
    first = policy.read(row, [LOGPROBS], torch.ones(len(allowed), row.tokens.shape[1], dtype=torch.bool))[LOGPROBS][:, 0].detach()
    assert float(first.exp().sum()) == pytest.approx(1, abs=1e-5)
    assert float(plain[ENTROPY][0, 0].detach()) == pytest.approx(float(-(first.exp() * first).sum()), abs=1e-4)


def test_temperature_of_the_rollout_counts_in_the_reading(tiny):
    policy = make(tiny("qwen3_vl"), sampling=Sampling(temperature=0.7, max_new_tokens=5))
    hot, cold = policy.rollout(mixed()), policy.rollout(mixed(), Sampling(temperature=1.6, max_new_tokens=8))
    trace = policy.join([hot.trace, cold.trace])
    one, other = (torch.nn.functional.pad(x, (0, 3)) for x in (hot.recorded[ROLLOUT_LOGPROBS], hot.action_mask))
    noted, mask = torch.cat([one, cold.recorded[ROLLOUT_LOGPROBS]]), torch.cat([other, cold.action_mask])
    read = policy.read(trace, [LOGPROBS], mask)[LOGPROBS].detach()
    torch.testing.assert_close(read, noted, atol=FP32_BOUND, rtol=0)


def test_logits_exist_for_one_chunk_of_trained_positions_at_a_time(tiny):
    vocabulary = len(make(tiny("qwen3_vl")).net.banned)
    policy = make(tiny("qwen3_vl"), logit_chunk=5 * vocabulary + 3, sampling=Sampling(max_new_tokens=9))
    rollouts = policy.rollout(mixed())
    sizes: list[int] = []
    hook = policy.net.model.get_output_embeddings().register_forward_hook(lambda m, i, out: sizes.append(out.shape[:-1].numel()))
    chunked = gradients(policy, rollouts)
    hook.remove()
    actions = int(rollouts.action_mask.sum())
    assert max(sizes) == 5
    assert sum(sizes) == 2 * actions, "once forward, once again for the gradient, prompt positions never"
    whole = make(tiny("qwen3_vl"))
    assert relative_difference(chunked, gradients(whole, rollouts)) < 1e-5


def test_pictures_pass_the_vision_tower_once_per_prompt(tiny):
    for prefix in ("packed", "repeated"):
        policy = make(tiny("qwen3_vl"), prefix=prefix)
        patches: list[int] = []
        policy.net.core.visual.register_forward_hook(
            lambda m, args, kwargs, out, seen=patches: seen.append(len(args[0])), with_kwargs=True
        )
        rollouts = policy.rollout([Request(prompts()[0], 4, 0), Request(prompts()[1], 3, 1)])
        each = sum(len(prompt.media["pixel_values"]) for prompt in text_trace(rollouts.trace).prompts)
        assert patches == [each]
        logprobs(policy, rollouts)
        assert patches == [each, each]


def test_values_are_finite_where_nothing_is_trained(tiny):
    policy = make(tiny("smolvlm"))
    rollouts = policy.rollout(mixed())
    nothing = torch.zeros_like(rollouts.action_mask)
    values = policy.read(rollouts.trace, [LOGPROBS, ENTROPY], nothing)
    for value in values.values():
        assert value.shape == nothing.shape and value.isfinite().all()
    (values[LOGPROBS] * 0).sum().backward()
    assert all(weight.grad is None or (weight.grad == 0).all() for weight in policy.parameters())


@pytest.mark.parametrize("family", EVERY)
def test_rows_without_pictures_reach_the_vision_weights_that_pictures_reach(tiny, family):
    """Wrappers for many processes hang when one of them leaves weights out."""
    policy = make(tiny(family))
    pictured, plain = policy.rollout([Request(prompts()[0], 1, 0)]), policy.rollout([Request(prompts()[2], 2, 0)])
    before = gradients(policy, plain)
    policy.net.stand_in, policy.net.passes = policy.encode(stand_in_prompt(policy.family)).media, lambda count: max(1, count)
    after = gradients(policy, plain)
    assert after.keys() == gradients(policy, pictured).keys() > before.keys()
    assert all((after[name] == 0).all() for name in after.keys() - before.keys())
    assert relative_difference({name: after[name] for name in before}, before) < 1e-6


TEXT = ("qwen3", "llama")
SYSTEM = "Be short."


def requests() -> list[Request]:
    """Groups of different size; one prompt is much longer than the others."""
    texts = ["hi", "what is 3 + 4?", "and " * 20 + "?"]
    return [Request(Prompt(str(i), text), 1 + i, i, seed=i) for i, text in enumerate(texts)]


def fed_text(tokenizer: Any, prompt: Prompt) -> Any:
    """The tokenizer's own chat."""
    chat = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": prompt.text}]
    text = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    return tokenizer(text, add_special_tokens=False, return_tensors="pt")


@pytest.mark.parametrize("model", TEXT)
def test_rollouts_both_readings_and_transformers_alone_agree(tiny, model):
    packed, repeated = (make(tiny(model), prefix=prefix, system_prompt=SYSTEM) for prefix in ("packed", "repeated"))
    rollouts = packed.rollout(requests())
    assert text_trace(rollouts.trace).packed
    plain = AutoModelForCausalLM.from_pretrained(tiny(model)).eval(), AutoTokenizer.from_pretrained(tiny(model))
    alone = plain_logprobs(plain, packed, rollouts, fed_text)
    assert_noted(rollouts, logprobs(packed, rollouts), logprobs(repeated, rollouts), alone)
    assert relative_difference(gradients(packed, rollouts), gradients(repeated, rollouts)) < 1e-4


@pytest.mark.parametrize("model", TEXT)
def test_an_adapter_trains_the_reference_stays_and_the_folder_loads_in_transformers(tiny, model, tmp_path: Path):
    policy = make(tiny(model), {"ref"}, lora=LoraSettings(rank=2))
    rollouts = policy.rollout(requests())
    before = logprobs(policy, rollouts)
    climb(before.sum(), policy.parameters(), rise=0.1)
    policy.advance()
    after = policy.read(rollouts.trace, [LOGPROBS, REF_LOGPROBS], rollouts.action_mask)
    assert 0.05 < after[LOGPROBS].sum() - before.sum() < 0.15
    torch.testing.assert_close(after[REF_LOGPROBS], before.detach(), atol=FP32_BOUND, rtol=0)
    policy.save(tmp_path)
    again = make(tiny(model), lora=LoraSettings(rank=2, adapter=str(tmp_path)))
    torch.testing.assert_close(logprobs(again, rollouts), after[LOGPROBS], atol=FP32_BOUND, rtol=0)


def test_a_picture_is_refused_by_the_name_of_its_prompt(tiny):
    with pytest.raises(ValueError, match=r"prompt 'p3': qwen3 takes text alone: use a vision-language model"):
        make(tiny("qwen3")).encode(Prompt("p3", "what?", (picture(0),)))


LORA = LoraSettings(rank=4)
RISE = 0.1
"""In nats, of some 180."""


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
    assert_noted(rollouts, logprobs(saving, rollouts))
    ran: list[bool] = []
    hook = saving.net.core.register_forward_pre_hook(lambda module, args: ran.append(module.training))
    assert relative_difference(gradients(saving, rollouts), gradients(plain, rollouts)) < 1e-4
    hook.remove()
    assert ran == [True] and not saving.net.training, "checkpointing only acts in training mode"
    assert any(getattr(module, "gradient_checkpointing", False) for module in saving.net.modules())


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
    found = names(make(tiny(family), lora=LORA))
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
    stir(policy)
    policy.save(tmp_path / "full")
    loaded = make(str(tmp_path / "full"))
    torch.testing.assert_close(logprobs(loaded, rollouts), logprobs(policy, rollouts), atol=1e-6, rtol=0)


def test_a_saved_adapter_loads_in_peft_and_as_a_start(tiny, tmp_path):
    from peft import PeftModel

    policy = make(tiny("qwen3_vl"), lora=LORA)
    rollouts = policy.rollout(mixed())
    stir(policy)
    policy.save(tmp_path)
    expected = logprobs(policy, rollouts).detach()
    started = make(tiny("qwen3_vl"), {"ref"}, lora=LoraSettings(adapter=str(tmp_path)))
    values = started.read(rollouts.trace, [LOGPROBS, REF_LOGPROBS], rollouts.action_mask)
    torch.testing.assert_close(values[LOGPROBS].detach(), expected)
    torch.testing.assert_close(values[REF_LOGPROBS], expected, msg="the reference is the adapter training started from")
    assert names(started) == names(policy)
    reloaded = PeftModel.from_pretrained(plain_model(tiny("qwen3_vl"))[0], tmp_path)
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
    refused(said, make, tiny("qwen3_vl"), **settings)
    refused("adapter", make, tiny("qwen3_vl"), error=FileNotFoundError, lora=LoraSettings(adapter="./nowhere"))


def test_dropout_in_a_config_is_switched_off(tiny, tmp_path):
    model, processor = plain_model(tiny("qwen3_vl"))
    model.config.text_config.attention_dropout = 0.5
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    policy = make(str(tmp_path), gradient_checkpointing=True, sampling=Sampling(max_new_tokens=6))
    rollouts = policy.rollout(mixed())
    assert_noted(rollouts, logprobs(policy, rollouts))


def test_a_policy_whose_copies_rest_reads_the_same(tiny):
    read: list[Tensor] = []
    for place in ("device", "cpu"):
        policy = make(tiny("smolvlm"), {"ref"}, copies_on=place)
        rollouts = policy.rollout([Request(prompt, 1, i) for i, prompt in enumerate(prompts()[:2])])
        stir(policy)
        reading = next(iter(rollouts.recorded))._replace(model="ref")
        read.append(policy.read(rollouts.trace, [reading], rollouts.action_mask)[reading])
        assert policy.weights.shadows["ref"].rest == place
    assert torch.equal(*read)


def test_the_state_of_the_second_process_holds_no_weights(tmp_path: Path, tiny):
    policy = make(tiny("smolvlm"))
    policy.ranks.rank = 1
    assert not list(tensors_in(policy.state_dict()))
    policy.ranks.rank = 0
    Checkpoints(tmp_path).save(1, {"index": 1, "policy": policy.state_dict()}, Ranks())
    loaded = Checkpoints(tmp_path).load(1)["policy"]["weights"]
    assert {name: x.shape for name, x in loaded.items()} == {name: x.shape for name, x in policy.weights.named.items()}
