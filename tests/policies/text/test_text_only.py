"""Language models without eyes: the easiest sanity check of a run. Rollouts, readings and transformers alone agree."""

from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.core.readings import LOGPROBS, REF_LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Prompt, Request
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.loading import load_config
from mmrl.policies.text.policy import Sampling, TextPolicyConfig
from tests.support.ascent import climb
from tests.support.text_policies import (
    FP32_BOUND,
    generated,
    gradients,
    ids_of,
    logprobs,
    make,
    picture,
    plain_logprobs,
    relative_difference,
    text_trace,
)

TEXT = ("qwen3", "llama")
SYSTEM = "Be short."


def requests() -> list[Request]:
    """Groups of different size; one prompt is much longer than the others."""
    texts = ["hi", "what is 3 + 4?", "and " * 20 + "?"]
    return [Request(Prompt(str(i), text), 1 + i, i, seed=i) for i, text in enumerate(texts)]


def plain(folder: str) -> tuple[Any, Any]:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def fed_by(tokenizer: Any, prompt: Prompt, system: str = SYSTEM) -> Any:
    """The tokenizer's own chat."""
    chat = [{"role": "system", "content": system}] if system else []
    text = tokenizer.apply_chat_template(
        [*chat, {"role": "user", "content": prompt.text}], add_generation_prompt=True, tokenize=False
    )
    return tokenizer(text, add_special_tokens=False, return_tensors="pt")


@pytest.mark.parametrize("model", TEXT)
def test_rollouts_both_readings_and_transformers_alone_agree(tiny, model):
    packed, repeated = (make(tiny(model), prefix=prefix, system_prompt=SYSTEM) for prefix in ("packed", "repeated"))
    rollouts = packed.rollout(requests())
    assert text_trace(rollouts.trace).packed
    noted = rollouts.recorded[ROLLOUT_LOGPROBS]
    for expected in (
        logprobs(packed, rollouts),
        logprobs(repeated, rollouts),
        plain_logprobs(plain(tiny(model)), packed, rollouts, fed_by),
    ):
        torch.testing.assert_close(noted, expected.detach(), atol=FP32_BOUND, rtol=0)
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


def test_greedy_writes_what_transformers_writes(tiny):
    policy = make(tiny("llama"))
    model, tokenizer = plain(tiny("llama"))
    prompt = Prompt("a", "hello")
    rollouts = policy.rollout([Request(prompt, 1, 0)], Sampling(temperature=0.0, max_new_tokens=8))
    assert ids_of(rollouts.groups[0].samples[0]) == generated(policy, model, fed_by(tokenizer, prompt, ""), 8)


def test_a_picture_is_refused_by_the_name_of_its_prompt(tiny):
    with pytest.raises(ValueError, match=r"prompt 'p3': qwen3 takes text alone: use a vision-language model"):
        make(tiny("qwen3")).encode(Prompt("p3", "what?", (picture(0),)))


def test_models_that_do_not_write_are_refused_before_weights_load(tmp_path: Path):

    from transformers import CLIPConfig

    CLIPConfig().save_pretrained(tmp_path / "clip")
    with pytest.raises(ValueError, match="is of type clip, which does not write text"):
        load_config(TextPolicyConfig(str(tmp_path / "clip")))


def test_a_model_whose_layers_lie_elsewhere_is_refused(tmp_path: Path):
    from transformers import GPT2Config, GPT2LMHeadModel

    from mmrl.lab.tiny.byte_tokens import byte_tokenizer
    from mmrl.lab.tiny.text.llms import turns

    tokenizer = byte_tokenizer({})
    tokenizer.chat_template = turns()
    tokenizer.save_pretrained(tmp_path)
    GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2)).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="gpt2 keeps its layers elsewhere than other language models"):
        make(str(tmp_path))
