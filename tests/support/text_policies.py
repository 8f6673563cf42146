"""Pictures, requests and comparisons shared by the tests of the text policy."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from mmrl.core.readings import LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Prompt, Request, Rollouts, Sample, Trace
from mmrl.lab.tiny.text.vlms import BY_RULE
from mmrl.policies.shared.weights import Decay
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.trace import TextTrace

FAMILIES = ("qwen2_5_vl", "qwen3_vl", "smolvlm", "internvl", "llava_onevision", "gemma3", "qwen3_5", "glm4v")
PACKING = tuple(family for family in FAMILIES if family != "qwen3_5")
"""Families whose language model reads packed rows."""
LATE = ("qwen3_5_moe", "glm4v_moe", "glm46v", *BY_RULE)
"""Families that share another's file, or follow the rule: one short test each, and all others among the evidence."""
EVERY = (*FAMILIES, *(pytest.param(family, marks=pytest.mark.evidence) for family in LATE))
FP32_BOUND = 2e-5


def picture(seed: int, width: int = 64, height: int = 48) -> Image.Image:
    return Image.fromarray(np.random.RandomState(seed).randint(0, 255, (height, width, 3), dtype=np.uint8))


def make(folder: str, shadows: Any = (), ema_decay: Decay = 0.5, **settings: Any) -> TextPolicy:
    settings.setdefault("sampling", Sampling(max_new_tokens=6))
    return TextPolicy(TextPolicyConfig(folder, **settings), shadows, ema_decay)


def stir(policy: TextPolicy, size: float = 0.05, seed: int = 1) -> None:
    """Move the weights that train, always alike."""
    numbers = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in policy.parameters():
            weight += size * torch.randn(weight.shape, generator=numbers)


def move(policy: TextPolicy, by: float = 0.1) -> None:
    """Move the weights that train, and count an update."""
    stir(policy, by, seed=3)
    policy.advance()


def generated(policy: TextPolicy, model: Any, fed: Any, length: int) -> tuple[int, ...]:
    """The likeliest tokens, by transformers' own loop."""
    banned = [[token] for token in sorted(policy.banned)]
    out = model.generate(**fed, max_new_tokens=length, do_sample=False, bad_words_ids=banned)
    return tuple(out[0, fed["input_ids"].shape[1] :].tolist())


def prompts() -> list[Prompt]:
    """One picture, two of different size inside the text, none, and a tall one."""
    return [
        Prompt("one", "what is it?", (picture(0),)),
        Prompt("two", "is <image> like <image>, or not?", (picture(1), picture(2, 90, 40))),
        Prompt("none", "hi"),
        Prompt("tall", "and this?", (picture(3, 40, 100),)),
    ]


def mixed(seed: int = 7) -> list[Request]:
    """Groups of different prompt length and size."""
    return [Request(prompt, 1 + i % 3, group_id=i, seed=seed + i) for i, prompt in enumerate(prompts())]


def asked(count: int = 4) -> list[Request]:
    """Groups of this many samples, one of each prompt."""
    return [Request(prompt, count, group_id=i, seed=70 + i) for i, prompt in enumerate(prompts())]


def text_trace(trace: Trace) -> TextTrace:
    assert isinstance(trace, TextTrace)
    return trace


def ids_of(sample: Sample) -> tuple[int, ...]:
    assert sample.token_ids is not None
    return sample.token_ids


def text_of(sample: Sample) -> str:
    assert sample.text is not None
    return sample.text


def samples_of(rollouts: Rollouts) -> list[Sample]:
    return [sample for _, sample in rollouts.samples()]


def logprobs(policy: TextPolicy, rollouts: Rollouts) -> Tensor:
    return policy.read(rollouts.trace, [LOGPROBS], rollouts.action_mask)[LOGPROBS]


def assert_noted(rollouts: Rollouts, *readings: Tensor) -> None:
    """Fail unless all these log-probabilities are those that were noted while sampling."""
    for found in readings:
        torch.testing.assert_close(rollouts.recorded[ROLLOUT_LOGPROBS], found.detach(), atol=FP32_BOUND, rtol=0)


def gap(policy: TextPolicy, rollouts: Rollouts) -> float:
    """The largest difference between log-probabilities as they were noted and as they are read again."""
    apart = logprobs(policy, rollouts).detach() - rollouts.recorded[ROLLOUT_LOGPROBS]
    return float(apart[rollouts.action_mask].abs().max())


def gradients(policy: TextPolicy, rollouts: Rollouts) -> dict[str, Tensor]:
    """The gradients of a sum with another weight for every token, so that no two can be mixed up unnoticed."""
    weights = torch.linspace(0.5, 1.5, rollouts.action_mask.numel()).reshape(rollouts.action_mask.shape)
    named = {name: weight for name, weight in policy.net.model.named_parameters() if weight.requires_grad}
    loss = (weights * logprobs(policy, rollouts)).sum()
    found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
    return {name: grad for name, grad in zip(named, found, strict=True) if grad is not None}


def relative_difference(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    difference = sum(float((a[name] - b[name]).pow(2).sum()) for name in a) ** 0.5
    return difference / sum(float(b[name].pow(2).sum()) for name in b) ** 0.5


def plain_model(folder: str) -> tuple[Any, Any]:
    """The model and the processor as transformers alone loads them."""
    from transformers import AutoModelForMultimodalLM, AutoProcessor

    processor = AutoProcessor.from_pretrained(folder)
    processor.chat_template = processor.chat_template or processor.tokenizer.chat_template
    return AutoModelForMultimodalLM.from_pretrained(folder).eval(), processor


def fed_by(processor: Any, prompt: Prompt) -> Any:
    """A prompt with pictures as transformers' own template feeds it."""
    pieces, pictures = prompt.text.split("<image>"), list(prompt.media)
    if len(pieces) == 1:
        pieces = [""] * len(pictures) + pieces
    content: list[dict[str, Any]] = []
    for i, piece in enumerate(pieces):
        content += [{"type": "image", "image": pictures[i - 1]}] if i else []
        content += [{"type": "text", "text": piece}] if piece else []
    options = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, "return_tensors": "pt"}
    return processor.apply_chat_template([{"role": "user", "content": content}], **options)


def plain_logprobs(
    plain: tuple[Any, Any],
    policy: TextPolicy,
    rollouts: Rollouts,
    feed: Callable[[Any, Prompt], Any] = fed_by,
    places: Callable[[Any, dict[str, Tensor]], dict[str, Tensor]] = lambda model, fed: {},
) -> Tensor:
    """Row by row through transformers' own chat template, processor and forward, with nothing of ours but the banned ids.

    Args:
        plain: a model and its processor.
        places: gives further inputs for all tokens of a row.
    """
    model, processor = plain
    out = torch.zeros(rollouts.action_mask.shape)
    for row, (group, sample) in enumerate(rollouts.samples()):
        fed, completion = dict(feed(processor, group.prompt)), torch.tensor([ids_of(sample)])
        start = fed["input_ids"].shape[1]
        fed["input_ids"] = torch.cat([fed["input_ids"], completion], 1)
        fed["attention_mask"] = torch.ones_like(fed["input_ids"])
        for name in {"mm_token_type_ids", "token_type_ids"} & fed.keys():
            fed[name] = torch.cat([fed[name], torch.zeros_like(completion)], 1)
        with torch.no_grad():
            logits = model(**fed, **places(model, fed), use_cache=False).logits[0, start - 1 : -1].float()
        logits[:, sorted(policy.banned)] = -torch.inf
        out[row, : completion.shape[1]] = logits.log_softmax(-1).gather(-1, completion[0][:, None])[:, 0]
    return out


def hotter(policy: TextPolicy, **sampling: Any) -> Sampling:
    return replace(policy.config.sampling, **sampling)


def bias_toward(policy: TextPolicy, tokens: list[int], amount: float = 50.0) -> Any:
    """Make the model want these tokens above all; the answer removes the bias."""

    def push(module: Any, inputs: Any, logits: Tensor) -> Tensor:
        bias = torch.zeros(logits.shape[-1])
        bias[tokens] = amount
        return logits + bias

    return policy.net.model.get_output_embeddings().register_forward_hook(push)
