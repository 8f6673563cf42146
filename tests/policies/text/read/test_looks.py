"""Readings that take a forward of their own: attention inside completions, and how likely true answers are behind them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from mmrl.core.readings import ATTENTION_DISTANCE, ATTENTION_INFLUENCE, BASE_PROBABILITY, LOGPROBS, REFERENCE_PROBABILITY
from mmrl.core.samples import answer_text
from mmrl.core.types import Observation, Prompt, Reading, Request, Rollouts
from mmrl.policies.text.parts import TextParts
from mmrl.policies.text.policy import Sampling, TextPolicy, TextPolicyConfig
from mmrl.policies.text.read.looks import RHYTHM, local_and_global, middle_layers
from mmrl.policies.text.write.generate import Completions, LocalGenerator
from mmrl.runtime.tensors import stack_ragged
from tests.support.text_policies import make, picture, text_trace
from tests.support.worlds import Inline

ANSWERED = [Prompt("a", "what is it?", (picture(0),), answer="cat"), Prompt("b", "how many?", answer=12)]
TEXTS = (
    "<think>so</think><answer>dog</answer>",
    "no tags",
    "<answer>x</answer> so <answer>y",
    "<think>hm, hm</think>\n<answer>",
)
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
    distance, influence = read(policy, rollouts, ATTENTION_DISTANCE, ATTENTION_INFLUENCE)
    before = policy.net.model.config.get_text_config()._attn_implementation
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
    assert policy.net.model.config.get_text_config()._attn_implementation == before


def test_attention_does_not_depend_on_the_rows_beside_it(policy: TextPolicy):
    rollouts = injected(policy)
    [first] = read(policy, rollouts, LOGPROBS)
    [whole] = read(policy, rollouts, ATTENTION_DISTANCE)
    rows = torch.tensor([2, 5])
    [some] = read(policy, rollouts.take(rows), ATTENTION_DISTANCE)
    torch.testing.assert_close(some, whole[rows], atol=2e-5, rtol=0)
    [again] = read(policy, rollouts, LOGPROBS)
    assert torch.equal(first, again), "other readings are as if nobody had looked"


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
    with pytest.raises(ValueError, match="attention_distance"):
        read(blind, injected(blind), ATTENTION_DISTANCE)


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
