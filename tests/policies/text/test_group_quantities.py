"""Readings of whole groups and of answers: token divergence against a slow reference, tokens of the answer, masked views."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from mmrl.algorithms.samplers.base import Shuffled
from mmrl.core.readings import ENTROPY, LOGPROBS
from mmrl.core.types import Prompt, Reading, Request
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.read.looks import answer_span
from mmrl.training.optim import OptimizerSettings
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from mmrl.training.settings import TrainSettings
from mmrl.training.trainer import Trainer
from tests.support.presets import VIDEO as PRESETS
from tests.support.text_policies import make, picture, plain_model, text_trace

DIVERGENCE, ANSWER = Reading("group_divergence"), Reading("answer_mask")


HEAT = 0.3
"""So cold that the rows of a random model disagree: values of 10^4 to 10^5, which float32 logits give to 6e-7 of themselves."""


def cold_group(policy, count: int = 3):
    """One group whose rows end at different tokens, which a random model would not do by itself."""
    how = Sampling(max_new_tokens=6, temperature=HEAT)
    rollouts = policy.rollout(
        [Request(Prompt("one", "is <image> like <image>?", (picture(0), picture(1, 40, 40))), count, 0, seed=3)], how
    )
    lengths = torch.tensor([5, 2, 6][:count])
    return rollouts, rollouts.action_mask & (torch.arange(rollouts.action_mask.shape[1]) < lengths[:, None])


def slow_divergence(policy, rollouts, mask: torch.Tensor, folder: str) -> torch.Tensor:
    """Row by row through transformers alone, position by position; rows that have ended are uniform."""
    model, _ = plain_model(folder)
    trace, allowed = text_trace(rollouts.trace), ~policy.net.banned
    [prompt] = trace.prompts
    (rows, length), words = mask.shape, int(allowed.sum())
    logps = torch.full((rows, length, words), -math.log(words), dtype=torch.float64)
    for i in range(rows):
        ids = torch.cat([prompt.token_ids, trace.tokens[i]])[None]
        types = {"mm_token_type_ids": nn.functional.pad(torch.as_tensor(prompt.type_ids), (0, length))[None]}
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), **prompt.media, **types).logits[0]
        for t in range(length):
            if mask[i, t]:
                logps[i, t] = (logits[len(prompt) - 1 + t, allowed].double() / HEAT).log_softmax(-1)
    out = torch.zeros(length, dtype=torch.float64)
    for t in range(length):
        for i in range(rows):
            for v in range(words):
                d = min(max(sum(float(logps[j, t, v]) for j in range(rows)) / rows - float(logps[i, t, v]), -11.0), 11.0)
                out[t] += (math.exp(d) - d - 1) / rows
    return out


@pytest.mark.parametrize("chunk", [1, 10**9])
def test_divergence_by_a_loop(tiny, chunk):
    folder = tiny("qwen2_5_vl")
    policy = make(folder, logit_chunk=chunk)
    rollouts, mask = cold_group(policy)
    found = policy.read(rollouts.trace, [DIVERGENCE, LOGPROBS], mask)
    torch.testing.assert_close(
        found[DIVERGENCE][0].double(), slow_divergence(policy, rollouts, mask, folder), atol=1e-5, rtol=1e-5
    )
    assert (found[DIVERGENCE] == found[DIVERGENCE][0]).all()
    assert found[DIVERGENCE][0, 0] < 1e-3 < found[DIVERGENCE][0, 1:].min(), "all rows begin alike"
    assert torch.equal(found[LOGPROBS], policy.read(rollouts.trace, [LOGPROBS], mask)[LOGPROBS])
    assert torch.equal(policy.read(rollouts.trace, [DIVERGENCE], mask)[DIVERGENCE], found[DIVERGENCE])


def test_divergence_does_not_depend_on_the_order_of_rows(tiny):
    policy = make(tiny("smolvlm"))
    rollouts, mask = cold_group(policy)
    order = torch.tensor([2, 0, 1])
    moved = policy.read(rollouts.take(order).trace, [DIVERGENCE], mask[order])[DIVERGENCE]
    torch.testing.assert_close(moved, policy.read(rollouts.trace, [DIVERGENCE], mask)[DIVERGENCE][order], atol=1e-5, rtol=1e-5)
    other = policy.read(rollouts.trace, [DIVERGENCE], mask[order])[DIVERGENCE]
    assert not torch.allclose(other, moved, atol=1e-3), "which rows have ended where does matter"


@pytest.mark.parametrize(
    ("text", "inside"),
    [
        ("ab<answer>cde</answer>", "cde"),
        ("<answer>x</answer> no <answer>yz", "yz"),
        ("<answer></answer>", ""),
        ("no answer", ""),
        ("late <answer>", ""),
    ],
)
def test_answer_tokens(text, inside):
    pieces = [text[i : i + 1] for i in range(len(text))]

    def decode(tokens):
        return "".join(pieces[i] for i in tokens)

    begin, end = answer_span(list(range(len(pieces))), decode)
    assert decode(range(begin, end)) == inside


def test_answer_mask_of_a_given_completion(tiny):
    policy = make(tiny("qwen3_vl"))
    prompt = Prompt("a", "when?", (picture(0),))
    texts = ["so <answer>2 to 4</answer>", "2 to 4"]
    rollouts = policy.rollout([Request(prompt, 1, 0, role="injected", written=text) for text in texts])
    found = policy.read(rollouts.trace, [ANSWER, ENTROPY], rollouts.action_mask)[ANSWER]
    kept = [
        [int(t) for t, inside in zip(tokens, row, strict=True) if inside]
        for tokens, row in zip(text_trace(rollouts.trace).tokens, found, strict=True)
    ]
    assert policy.tokenizer.decode(kept[0]) == "2 to 4"
    assert kept[1] == []


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_take_a_step_on_a_real_model(tiny, name):
    algorithm = replace(PRESETS[name], group_size=4).with_length(8)
    config = TextPolicyConfig(tiny("qwen3_vl"), sampling=Sampling(max_new_tokens=8))
    policy = TextPolicy(config, algorithm.shadows, views=algorithm.views)
    prompts = [Prompt(str(i), "which?", (picture(i), picture(i + 5)), answer="A") for i in range(2)]
    rewards = RewardRunner([NamedReward("length", lambda group: [float(len(set(s.text or ""))) for s in group.samples])])
    settings = TrainSettings(steps=3, prompts_per_step=2, micro_batch=4000, optimizer=OptimizerSettings(lr=1e-3))
    trainer = Trainer(policy, algorithm, Shuffled(prompts), rewards, settings)
    metrics = [trainer.step() for _ in range(2)][-1]
    assert math.isfinite(metrics["loss"]) and metrics["policy/grad_norm"] > 0
    if name == "t_grpo":
        assert "reward/length@shuffled" in metrics
