"""Completions behind their prompt in one packed row are read as if each had a row of its own."""

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmrl.core.readings import ENTROPY, LOGPROBS, REF_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Prompt, Request, Rollouts
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.packed import attention
from mmrl.policies.text.packed.row import worth_packing
from mmrl.policies.text.policy import Sampling, TextPolicy
from mmrl.policies.text.read import packable
from mmrl.policies.text.read.packable import prepare_packing
from mmrl.policies.text.settings import TextPolicyConfig
from tests.support.text_policies import PACKING, gradients, logprobs, make, mixed, picture, text_trace

LONG = "the quick brown fox jumps over the lazy dog and then it sleeps for a while in the shade. " * 2
CLOSE = 1e-12
"""In float64, where a mistake is all that can be larger: sums in another order were off by 5e-15. In float32, every
operation rounds log-probabilities of 8 to 16, as InternVL's are, by 1e-6: there both ways were 4e-6 apart."""


def requests() -> list[Request]:
    """Groups of 3, 2, 1 and 4 ragged completions, one of them empty, behind prompts with 1, 2, 0 and 1 pictures."""
    prompts = [
        Prompt("one", "what is it?", (picture(0),)),
        Prompt("two", LONG + "is <image> like <image>, or not?", (picture(1), picture(2, 90, 40))),
        Prompt("none", "hi"),
        Prompt("tall", "and this? " + LONG, (picture(3, 40, 100),)),
    ]
    texts = [["yes", "no, not at all; " * 6, ""], ["a" * 90, "b"], ["c" * 40], ["d", "e" * 7, "f" * 25, "g" * 25]]
    return [
        Request(prompt, 1, group_id=i, role="injected", written=text)
        for i, (prompt, some) in enumerate(zip(prompts, texts, strict=True))
        for text in some
    ]


def in_float64(policy: TextPolicy) -> Rollouts:
    """The rollouts of `requests`, whose readings are computed in float64 from now on."""
    trace = text_trace((rollouts := policy.rollout(requests())).trace)
    policy.net.double()
    media = [{name: x.double() if x.is_floating_point() else x for name, x in one.media.items()} for one in trace.prompts]
    prompts = tuple(replace(one, media=double) for one, double in zip(trace.prompts, media, strict=True))
    return replace(rollouts, trace=replace(trace, prompts=prompts, temperature=trace.temperature.double()))


def without_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms and logits are computed in float32 on purpose: in float64 here, or their rounding would hide everything below it."""
    to = torch.Tensor.to

    def double(value: object) -> object:
        return torch.float64 if value is torch.float32 else value

    def to_double(x: Tensor, *given: Any, **named: Any) -> Tensor:
        return to(x, *map(double, given), **{name: double(value) for name, value in named.items()})  # type: ignore[arg-type]

    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    monkeypatch.setattr(torch.Tensor, "to", to_double)


def read(policy: TextPolicy, rollouts: Rollouts, packed: bool) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Log-probabilities and entropies, and the gradients of a sum with another weight for every one of them."""
    trace, mask = replace(text_trace(rollouts.trace), packed=packed), rollouts.action_mask
    found = policy.read(trace, [LOGPROBS, ENTROPY], mask)
    weights = torch.linspace(0.25, 0.75, mask.numel()).reshape(mask.shape)
    loss = (weights * (found[LOGPROBS] + found[ENTROPY])).sum()
    named = {name: weight for name, weight in policy.net.model.named_parameters() if weight.requires_grad}
    parts = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    values = {reading.quantity: value.detach() for reading, value in found.items()}
    return values, {name: part for name, part in zip(named, parts, strict=True) if part is not None}


def worst(mine: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The largest relative difference of one weight's gradient, without those that are 0: of vision towers' key biases."""
    assert mine.keys() == theirs.keys()
    largest = max(float(gradient.norm()) for gradient in theirs.values())
    real = [name for name, gradient in theirs.items() if float(gradient.norm()) > 1e-6 * largest]
    assert len(real) > 0.8 * len(theirs)
    return max(float((mine[name] - theirs[name]).norm() / theirs[name].norm()) for name in real)


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=4)], ids=["full", "lora"])
@pytest.mark.parametrize("family", PACKING)
def test_log_probabilities_entropies_and_every_gradient_are_those_of_repeated_prompts(tiny, family, lora, monkeypatch):
    policy = make(tiny(family), lora=lora, gradient_checkpointing=True)
    for name, weight in policy.net.model.named_parameters():
        if "lora_B" in name:
            nn.init.normal_(weight, std=0.1)
    rollouts = in_float64(policy)
    without_float32(monkeypatch)
    values, grads = read(policy, rollouts, packed=False)
    for checkpointing in (True, False):
        policy.config = replace(policy.config, gradient_checkpointing=checkpointing)
        mine, own = read(policy, rollouts, packed=True)
        for quantity, expected in values.items():
            torch.testing.assert_close(mine[quantity], expected, atol=CLOSE, rtol=0)
        assert worst(own, grads) < CLOSE


def test_all_modules_are_put_into_training_mode_for_checkpointing_alone(tiny, monkeypatch):
    """A walk over hundreds of modules, twice a reading."""
    policy = make(tiny("qwen2_5_vl"))
    rollouts, modes = policy.rollout(requests()), list[bool]()
    monkeypatch.setattr(policy.net, "train", lambda mode=True: modes.append(mode) or policy.net)
    read(policy, rollouts, packed=True)
    assert modes == []
    policy.config = replace(policy.config, gradient_checkpointing=True)
    read(policy, rollouts, packed=True)
    assert modes == [True, False]


def test_windows_and_pictures_seen_in_both_directions_are_kept(tiny, monkeypatch):
    """Gemma 3: with a layer's own rule ignored, the values are others; with masks of few queries each, they are not."""
    policy = make(tiny("gemma3"))
    rollouts = in_float64(policy)
    with torch.no_grad():
        expected = logprobs(policy, replace(rollouts, trace=replace(text_trace(rollouts.trace), packed=False)))
        monkeypatch.setattr(attention, "QUERIES", 7)
        monkeypatch.setattr(attention, "COPIES", 300)
        torch.testing.assert_close(logprobs(policy, rollouts), expected, atol=1e-5, rtol=0)
        monkeypatch.setattr(attention.PackedMask, "of", lambda *_: None)
        assert (logprobs(policy, rollouts) - expected).abs().max() > 0.1


def test_sampling_and_saving_do_not_know_of_packed_rows(tiny, tmp_path: Path):
    packed, repeated = make(tiny("qwen2_5_vl"), prefix="packed"), make(tiny("qwen2_5_vl"), prefix="repeated")
    one, two = packed.rollout(mixed()), repeated.rollout(mixed())
    assert [group.samples for group in one.groups] == [group.samples for group in two.groups]
    assert torch.equal(one.recorded[ROLLOUT_LOGPROBS], two.recorded[ROLLOUT_LOGPROBS])
    config = packed.net.model.config
    assert config.text_config._attn_implementation == attention.NAME
    assert config.vision_config._attn_implementation == "sdpa"
    packed.save(tmp_path)
    assert attention.NAME not in (tmp_path / "config.json").read_text()


def test_old_new_and_reference_take_the_way_that_was_settled_for_the_rollout(tiny):
    policy = make(tiny("smolvlm"), {"ref"}, dtype="bfloat16")
    lonely = policy.rollout([Request(Prompt("hi", "hi"), 1, 0, role="injected", written="a" * 200)])
    trace = text_trace(lonely.trace)
    assert not trace.packed and not worth_packing(trace)
    shared = text_trace(policy.rollout(requests()).trace)
    assert shared.packed and text_trace(policy.join([trace, shared])).packed
    seen: list[bool] = []
    run = policy.run
    policy.run = lambda work: (seen.append(work.row is not None), run(work))[1]  # type: ignore[method-assign]
    for some, packed in ((shared.take(torch.tensor([0])), True), (trace, False)):
        mask = torch.ones(some.tokens.shape, dtype=torch.bool)
        with torch.no_grad():
            policy.read(some, [LOGPROBS, REF_LOGPROBS], mask)
        policy.read(some, [LOGPROBS], mask)
        assert seen == [packed] * 3
        seen.clear()


def test_no_position_is_padding_and_no_prompt_is_fed_twice(tiny):
    policy = make(tiny("internvl"))
    rollouts = policy.rollout(requests())
    fed: list[int] = []
    policy.net.core.register_forward_pre_hook(lambda _, args, kwargs: fed.append(kwargs["input_ids"].numel()), with_kwargs=True)
    logprobs(policy, rollouts)
    trace = text_trace(rollouts.trace)
    assert fed == [sum(map(len, trace.prompts)) + int((trace.lengths - 1).sum())]


def with_text(**settings: Any) -> Any:
    """A small Qwen2.5-VL whose language model is configured like this."""
    from transformers import AutoModelForImageTextToText, Qwen2_5_VLConfig

    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "vocab_size": 64, "num_attention_heads": 4}
    sizes |= {"bos_token_id": 1, "eos_token_id": 2}
    text = {
        **sizes,
        "num_key_value_heads": 2,
        "rope_parameters": {"rope_type": "default", "mrope_section": [2, 1, 1]},
        **settings,
    }
    vision = {"hidden_size": 16, "intermediate_size": 16, "depth": 1, "num_heads": 2, "out_hidden_size": 32}
    torch.manual_seed(0)
    return AutoModelForImageTextToText.from_config(Qwen2_5_VLConfig(text_config=text, vision_config=vision)).eval()


def hybrid() -> Any:
    """A small Qwen3.5, most of whose layers have a state instead of attention."""
    from transformers import AutoModelForImageTextToText, Qwen3_5Config

    heads: dict[str, Any] = {
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
    }
    text = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4, "vocab_size": 300}
    text |= {"num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1, **heads}
    vision = {"hidden_size": 32, "intermediate_size": 64, "depth": 1, "num_heads": 2, "out_hidden_size": 32}
    ids: dict[str, Any] = {"image_token_id": 290, "video_token_id": 291, "vision_start_token_id": 292, "vision_end_token_id": 293}
    return AutoModelForImageTextToText.from_config(Qwen3_5Config(text_config=text, vision_config=vision, **ids)).eval()


class Remembering(nn.Module):
    """A layer that hands on the mean of all tokens so far, beside its attention."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, hidden: Tensor) -> Tensor:
        out = self.inner(hidden)
        return out + hidden.cumsum(1) / 4


def with_memory(model: Any) -> Any:
    layer = model.model.language_model.layers[1]
    layer.mlp = Remembering(layer.mlp)
    return model


def with_own_attention(model: Any) -> Any:
    """A layer that passes its input on, and asks nobody's attention."""
    layer = model.model.language_model.layers[1].self_attn
    layer.forward = lambda hidden_states, **_: (hidden_states, None)
    return model


REFUSED = {
    "has layers of the kind linear_attention": hybrid,
    "caps the logits of attention": lambda: with_text(attn_logit_softcapping=30.0),
    "reads a packed row otherwise than two rows": lambda: with_memory(with_text()),
    r"cannot read a packed row \(1 of the model's 2 layers": lambda: with_own_attention(with_text()),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_models_that_cannot_are_found_before_training(reason, caplog, monkeypatch):
    monkeypatch.setattr(packable, "SEEN", frozenset())
    model = REFUSED[reason]()
    config = TextPolicyConfig("m")
    kind = model.config.model_type
    with pytest.raises(ValueError, match=rf"policy\.prefix is 'packed', but {kind} {reason}.*set policy\.prefix = 'auto'"):
        prepare_packing(model, replace(config, prefix="packed"))
    with caplog.at_level(logging.WARNING, "mmrl"):
        assert not prepare_packing(model, config)
    (message,) = [record.getMessage() for record in caplog.records if record.name == "mmrl"]
    assert message.startswith(kind) and "completions are read with their prompt repeated" in message
    assert model.config.get_text_config()._attn_implementation == "sdpa"
    assert not prepare_packing(model, replace(config, prefix="repeated"))


def test_models_that_nobody_has_seen_are_tried_and_others_can(monkeypatch):
    monkeypatch.setattr(packable, "SEEN", frozenset())
    model = with_text()
    assert prepare_packing(model, TextPolicyConfig("m", prefix="packed"))


def test_another_attention_is_no_error_unless_packed_rows_are_asked_for(tiny, caplog):
    with caplog.at_level(logging.WARNING, "mmrl"):
        policy = make(tiny("qwen3_vl"), attn_implementation="eager")
    assert not policy.packs and "computes attention with 'eager'" in caplog.text
    rollouts = policy.rollout(mixed())
    assert not text_trace(rollouts.trace).packed and gradients(policy, rollouts)


def test_layers_that_go_around_the_attention_stop_the_reading(tiny):
    policy = make(tiny("qwen3_vl"), prefix="packed", sampling=Sampling(max_new_tokens=3))
    rollouts = policy.rollout(mixed())
    policy.net.core.language_model.layers[0].self_attn.forward = lambda hidden_states, **_: (hidden_states, None)
    with pytest.raises(RuntimeError, match=r"1 of the model's 2 layers .* set policy\.prefix = 'repeated'"):
        logprobs(policy, rollouts)
