"""Readings beside log-probabilities: how far a group's rows disagree, tokens of answers, attention, true answers, scores."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from mmrl.core.readings import (
    ATTENTION_DISTANCE,
    ATTENTION_INFLUENCE,
    BASE_PROBABILITY,
    ENTROPY,
    LOGPROBS,
    REFERENCE_PROBABILITY,
    VALUE,
)
from mmrl.core.samples import answer_text
from mmrl.core.types import Group, Observation, Prompt, Reading, Request, Rollouts
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.parts import TextParts
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.read.evaluate import group_divergence
from mmrl.policies.text.read.looks import RHYTHM, answer_span, local_and_global, middle_layers
from mmrl.policies.text.write.generate import Completions, LocalGenerator
from mmrl.runtime.tensors import stack_ragged
from tests.support.faults import trainer_of
from tests.support.presets import VIDEO as PRESETS
from tests.support.refused import refused
from tests.support.text_policies import make, picture, plain_model, text_trace
from tests.support.worlds import Inline

ANSWERED = [Prompt("a", "what is it?", (picture(0),), answer="cat"), Prompt("b", "how many?", answer=12)]
TEXTS = ("<think>so</think><answer>dog</answer>", "no tags", "<answer>x</answer> so <answer>y", "<think>hm, hm</think>\n<answer>")
FAMILIES = ("qwen3_vl", "gemma3", "smolvlm")


def injected(policy: TextPolicy, texts: tuple[str, ...] = TEXTS) -> Rollouts:
    pairs = [(i, prompt, text) for i, prompt in enumerate(ANSWERED) for text in texts]
    requests = [Request(prompt, 1, group_id=i, role="injected", written=text) for i, prompt, text in pairs]
    return policy.rollout(requests)


def read(policy: TextPolicy, rollouts: Rollouts, *readings: Reading) -> list[Tensor]:
    asked = [reading._replace(model="policy") for reading in readings]
    with torch.no_grad():
        found = policy.read(rollouts.trace, asked, rollouts.action_mask)
    return [found[reading] for reading in asked]


@pytest.fixture(scope="module", params=FAMILIES)
def policy(request: pytest.FixtureRequest, tiny: Callable[[str], str]) -> TextPolicy:
    return make(tiny(request.param))


def eager_maps(policy: TextPolicy, rollouts: Rollouts, row: int) -> Tensor:
    """(layers x heads, t, t): the completion's part of transformers' own attention of one row without padding."""
    trace, model = text_trace(rollouts.trace), policy.net.model
    prompt, length = trace.prompts[int(trace.prompt_index[row])], int(trace.lengths[row])
    own = trace.tokens[row, :length]
    model.set_attn_implementation("eager")
    start = prompt.positions[:, -1:] if len(prompt.positions) == 1 else prompt.positions.amax((0, 1))[None, None].expand(3, 1)
    positions = torch.cat([prompt.positions, start + 1 + torch.arange(length)], dim=1)[:, None]
    types = {} if prompt.type_ids is None else policy.net.types(torch.nn.functional.pad(prompt.type_ids, (0, length))[None])
    out = policy.net.core(
        input_ids=torch.cat([prompt.token_ids, own])[None],
        position_ids=positions[0] if len(positions) == 1 else positions,
        output_attentions=True,
        use_cache=False,
        **types,
        **policy.family.collate([prompt.media] if prompt.media else []),
    )
    chosen = [out.attentions[layer] for layer in middle_layers(len(out.attentions))]
    return torch.cat([maps[0, :, -length:, -length:] for maps in chosen])


def test_attention_is_that_of_transformers(policy: TextPolicy):
    rollouts = injected(policy)
    before, [first] = policy.net.model.config.get_text_config()._attn_implementation, read(policy, rollouts, LOGPROBS)
    distance, influence = read(policy, rollouts, ATTENTION_DISTANCE, ATTENTION_INFLUENCE)
    assert policy.net.model.config.get_text_config()._attn_implementation == before
    assert torch.equal(read(policy, rollouts, LOGPROBS)[0], first), "other readings are as if nobody had looked"
    plain = make(str(policy.config.model))
    for row in (0, 3, 5):
        length = int(text_trace(rollouts.trace).lengths[row])
        with torch.no_grad():
            local, wide = local_and_global(eager_maps(plain, rollouts, row))
        for t in range(length):
            back = sum(float(local[t, s]) * min(t - s, 10) for s in range(t + 1))
            assert float(distance[row, t]) == pytest.approx(back, abs=2e-5)
            later = range(t + 10, min(length, t + 51))
            ahead = sum(float(wide[u, t]) for u in later) / max(1, len(later))
            assert float(influence[row, t]) == pytest.approx(ahead, abs=2e-5)
        assert not distance[row, length:].any()


def test_true_answers_are_read_in_place_of_given_ones(policy: TextPolicy):
    rollouts = injected(policy)
    probability, base = read(policy, rollouts, REFERENCE_PROBABILITY, BASE_PROBABILITY)
    assert (probability == probability[:, :1]).all(), "one value per row"
    assert probability[[1, 5], 0].tolist() == [-1.0, -1.0] == base[[1, 5], 0].tolist(), "no tags, nothing to replace"
    for i, prompt in enumerate(ANSWERED):
        truth = str(prompt.answer)
        count = len(policy.tokenizer(truth, add_special_tokens=False)["input_ids"])
        for k, text in ((0, "<think>so</think><answer>"), (2, "<answer>x</answer> so <answer>"), (3, TEXTS[3])):
            for found, before in ((probability, text), (base, "<answer>")):
                written = policy.rollout([Request(prompt, 1, group_id=0, role="injected", written=before + truth)])
                length = int(text_trace(written.trace).lengths[0])
                [logprobs] = read(policy, written, LOGPROBS)
                # the stop token is behind the answer
                expected = logprobs[0, length - 1 - count : length - 1].exp().mean()
                torch.testing.assert_close(found[4 * i + k, 0], expected, atol=2e-5, rtol=0)


def test_prompts_without_a_written_truth_are_refused():
    for answer in (None, ("a", "b"), True, "  "):
        with pytest.raises(ValueError, match=r"prompt 'x' has the answer .*needs a text or a number: give the data set answers"):
            answer_text(Prompt("x", answer=answer))


def test_models_that_cannot_show_attention_do_not_offer_it(tiny: Callable[[str], str], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("mmrl.policies.text.policy.shows_attention", lambda model: False)
    blind = make(tiny("qwen3_vl"))
    assert not blind.offers & RHYTHM
    refused("attention_distance", read, blind, injected(blind), ATTENTION_DISTANCE)


def test_five_layers_of_the_middle_third():
    assert middle_layers(36) == (12, 15, 18, 21, 24)
    assert middle_layers(2) == (0, 1) and middle_layers(1) == (0,)


def test_no_rows_are_read_without_a_forward(policy: TextPolicy):
    rollouts = injected(policy)
    nothing = rollouts.take(torch.zeros(0, dtype=torch.long))
    for found in read(policy, nothing, ATTENTION_DISTANCE, REFERENCE_PROBABILITY):
        assert found.shape == nothing.action_mask.shape
    assert replace(nothing, groups=()).groups == ()


@dataclass(frozen=True)
class Saying(LocalGenerator):
    """Says look, and once it was shown something a text."""

    text: str = ""

    def write(self, prompts: Any, prompt_index: Any, seeds: Any, sampling: Any) -> Completions:
        said = [self.host.tokenizer(self.text if prompts[i].begun else "look")["input_ids"] for i in prompt_index]
        tokens = stack_ragged([torch.tensor(row) for row in said])
        lengths = torch.tensor([len(row) for row in said])
        return Completions(tokens, torch.zeros(tokens.shape), lengths, torch.ones(len(said), dtype=torch.bool))


def test_of_an_episode_the_last_turn_is_rewritten(tiny: Callable[[str], str]):
    """Behind all that was shown, whatever tags that held; without its thought nothing was shown."""

    def played(text: str) -> tuple[TextPolicy, Rollouts]:
        worlds = Inline(lambda prompt, turns, seed: Observation("<answer> see", (picture(3),)) if len(turns) == 1 else None)
        parts = TextParts(generator=partial(Saying, text=text), worlds=worlds)
        player = TextPolicy(TextPolicyConfig(tiny("qwen3_vl"), sampling=Sampling(max_new_tokens=30)), parts=parts)
        return player, player.rollout([Request(ANSWERED[0], 1, 0)])

    episodes = [played(text) for text in ("so <answer>dog</answer>", "so <answer>cat", "none")]
    (behind, bare), (right, _), (never, lonely) = (read(*one, REFERENCE_PROBABILITY, BASE_PROBABILITY) for one in episodes)
    policy, rollouts = episodes[1]
    cat = len(policy.tokenizer("cat", add_special_tokens=False)["input_ids"])
    [logprobs] = read(policy, rollouts, LOGPROBS)
    length = int(text_trace(rollouts.trace).lengths[0])
    torch.testing.assert_close(behind[0, 0], logprobs[0, length - cat : length].exp().mean())
    torch.testing.assert_close(behind[0, 0], right[0, 0])
    alone = make(tiny("qwen3_vl"))
    plain = alone.rollout([Request(ANSWERED[0], 1, 0, role="injected", written="<answer>dog")])
    torch.testing.assert_close(bare[0, 0], read(alone, plain, BASE_PROBABILITY)[0][0, 0])
    assert float(never[0, 0]) == float(lonely[0, 0]) == -1


DIVERGENCE, ANSWER = Reading("group_divergence"), Reading("answer_mask")


HEAT = torch.tensor([0.3, 0.25, 0.4])
"""So cold that the rows of a random model disagree: values of 10^4 to 10^5, which float32 logits give to 6e-7 of themselves."""


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
                logps[i, t] = (logits[len(prompt) - 1 + t, allowed].double() / HEAT[i]).log_softmax(-1)
    out = torch.zeros(length, dtype=torch.float64)
    for t in range(length):
        for i in range(rows):
            for v in range(words):
                d = min(max(sum(float(logps[j, t, v]) for j in range(rows)) / rows - float(logps[i, t, v]), -11.0), 11.0)
                out[t] += (math.exp(d) - d - 1) / rows
    return out


@pytest.mark.parametrize("chunk", [1, 4096, 10**9])
def test_divergence_by_a_loop(tiny, chunk):
    folder = tiny("qwen2_5_vl")
    policy = make(folder, logit_chunk=chunk)
    how, shown = Sampling(max_new_tokens=6, temperature=0.3), (picture(0), picture(1, 40, 40))
    rollouts = policy.rollout([Request(Prompt("one", "is <image> like <image>?", shown), 3, 0, seed=3)], how)
    rollouts = replace(rollouts, trace=replace(text_trace(rollouts.trace), temperature=HEAT))
    # rows end at different tokens, which a random model would not do by itself
    mask = rollouts.action_mask & (torch.arange(rollouts.action_mask.shape[1]) < torch.tensor([[5], [2], [6]]))
    found = policy.read(rollouts.trace, [DIVERGENCE, LOGPROBS], mask)
    torch.testing.assert_close(
        found[DIVERGENCE][0].double(), slow_divergence(policy, rollouts, mask, folder), atol=1e-5, rtol=1e-5
    )
    assert (found[DIVERGENCE] == found[DIVERGENCE][0]).all()
    assert found[DIVERGENCE].min() > 1e-3, "rows of different temperatures disagree everywhere"
    assert torch.equal(found[LOGPROBS], policy.read(rollouts.trace, [LOGPROBS], mask)[LOGPROBS])
    assert torch.equal(policy.read(rollouts.trace, [DIVERGENCE], mask)[DIVERGENCE], found[DIVERGENCE])


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


def letters(group: Group) -> list[float]:
    return [float(len(set(sample.text or ""))) for sample in group.samples]


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_take_a_step_on_a_real_model(tiny, name):
    algorithm = replace(PRESETS[name], group_size=4).with_length(8)
    config = TextPolicyConfig(tiny("qwen3_vl"), sampling=Sampling(max_new_tokens=8))
    policy = TextPolicy(config, algorithm.shadows, views=algorithm.views)
    prompts = [Prompt(str(i), "which?", (picture(i), picture(i + 5)), answer="A") for i in range(2)]
    trainer = trainer_of(policy, algorithm, prompts, letters, steps=3, micro_batch=4000)
    metrics = [trainer.step() for _ in range(2)][-1]
    assert math.isfinite(metrics["loss"]) and metrics["policy/grad_norm"] > 0
    if name == "t_grpo":
        assert "reward/letters@shuffled" in metrics


def test_no_position_has_no_divergence():
    empty, mask = torch.zeros(2, 0, 5), torch.zeros(2, 0, dtype=torch.bool)
    assert group_divergence(lambda x, heat: x, empty, torch.ones(2), mask, torch.ones(4).bool(), 8).shape == (2, 0)


AXES = ("looks", "text")
READINGS = [Reading(f"score/{axis}") for axis in AXES]
ANSWERS = ("a red square", "no")


def scorer(folder: str, **settings: Any) -> TextPolicy:
    """A policy whose head is not 0."""
    policy = make(folder, scores=AXES, **settings)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in policy.net.model.score_head.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
    return policy


def given(policy: TextPolicy) -> Rollouts:
    prompt = Prompt("p", "what is it?", (picture(0),))
    return policy.rollout([Request(prompt, 1, 0, role="injected", written=text) for text in ANSWERS])


def scores(policy: TextPolicy, rollouts: Rollouts) -> torch.Tensor:
    """(rows, axes)."""
    found = policy.read(rollouts.trace, READINGS, rollouts.action_mask)
    assert all(torch.equal(values, values[:, :1].expand_as(values)) for values in found.values())
    return torch.stack([found[reading][:, 0] for reading in READINGS], dim=1)


def states(folder: str) -> list[torch.Tensor]:
    """(t, d) each: what transformers alone computes of a text behind its prompt."""
    model, processor = plain_model(folder)
    message = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what is it?"}]}]
    asked = processor.apply_chat_template(message, add_generation_prompt=True, tokenize=False)
    inputs = [processor(images=[picture(0)], text=[asked + text], return_tensors="pt") for text in ANSWERS]
    with torch.no_grad():
        return [model.model(**one).last_hidden_state[0] for one in inputs]


@pytest.mark.parametrize("family", ["qwen3_vl", "gemma3"])
def test_scores_are_the_head_on_the_state_that_predicts_the_end(tiny: Any, family: str):
    packed = scorer(tiny(family), prefix="packed")
    found = scores(packed, rollouts := given(packed))
    by_hand = torch.stack([packed.net.model.score_head(state[-1]) for state in states(tiny(family))])
    assert (found - by_hand).abs().max() < 1e-4
    repeated = scorer(tiny(family), prefix="repeated")
    assert (found - scores(repeated, given(repeated))).abs().max() < 1e-5
    assert (found[0] - found[1]).abs().min() > 1e-3, "texts differ"
    (gradient,) = torch.autograd.grad(scores(packed, rollouts)[0].sum(), [packed.net.model.score_head.weight])
    assert gradient.abs().max() > 0


@pytest.mark.parametrize("prefix", ["packed", "repeated"])
def test_values_are_the_head_on_every_state_that_predicts_a_token(tiny: Any, prefix: Any):
    policy = make(tiny("qwen3_vl"), prefix=prefix, scores=("other", "value"))
    head = policy.net.model.score_head
    with torch.no_grad():
        head.weight.copy_(torch.randn(head.weight.shape, generator=torch.Generator().manual_seed(3)))
    rollouts = given(policy)
    mask = rollouts.action_mask.clone()
    mask[0, 1] = False
    values = policy.read(rollouts.trace, [VALUE], mask)[VALUE]
    for i, state in enumerate(states(tiny("qwen3_vl"))):
        count = int(rollouts.action_mask[i].sum())
        expected = head(state[-count:])[:, 1].detach()
        expected = torch.where(mask[i, :count], expected, 0.0)
        assert (values[i, :count] - expected).abs().max() < 1e-4
    (gradient,) = torch.autograd.grad(values.sum(), [head.weight])
    assert gradient[1].abs().max() > 0 and not gradient[0].any()


@pytest.mark.parametrize("lora", [None, LoraSettings(rank=2)], ids=["all weights", "an adapter"])
def test_a_saved_head_is_loaded_and_a_fresh_one_scores_all_alike(tiny: Any, tmp_path: Path, lora: LoraSettings | None):
    fresh = make(tiny("qwen3_vl"), scores=AXES, lora=lora)
    assert not scores(fresh, given(fresh)).any()
    policy = scorer(tiny("qwen3_vl"), lora=lora)
    policy.save(tmp_path)
    assert (tmp_path / "score_head.safetensors").is_file() and not any("score_head" in name for name in held(tmp_path))
    if lora is None:
        again = make(str(tmp_path), scores=AXES)
        assert torch.equal(scores(again, given(again)), scores(policy, given(policy)))
        refused(r"scores looks, text: set policy.scores = \['looks', 'text'\]", make, str(tmp_path), scores=("text",))
    other = make(tiny("qwen3_vl"), scores=AXES, lora=lora)
    other.load_state_dict(policy.state_dict())
    assert torch.equal(scores(other, given(other)), scores(policy, given(policy)))


def held(folder: Path) -> list[str]:
    """The names of the weights of a model or an adapter."""
    from safetensors import safe_open

    names: list[str] = []
    for file in folder.glob("*model.safetensors"):
        with safe_open(file, framework="pt") as opened:
            names += opened.keys()
    assert names
    return names


@pytest.mark.parametrize("axes", [("a", "a"), ("",), ("a,b",)])
def test_axes_without_a_name_of_their_own_are_refused(axes: tuple[str, ...]):
    refused("name every axis once, without commas", make, "nowhere", scores=axes)
