"""Sampling: seeds, filters, what ends a completion."""

import pytest
import torch

from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Request
from mmrl.policies.text.policy import Sampling
from mmrl.policies.text.write.generate import draw, filter_probabilities, noise
from tests.support.text_policies import FP32_BOUND, bias_toward, hotter, ids_of, logprobs, make, mixed, prompts, text_of

PROBABILITIES = torch.tensor([[0.1, 0.4, 0.05, 0.3, 0.15]])


def kept(sampling: Sampling) -> list[int]:
    return filter_probabilities(PROBABILITIES.log(), sampling)[0].nonzero()[:, 0].tolist()


def test_filters_keep_what_they_say():
    assert kept(Sampling()) == [0, 1, 2, 3, 4]
    assert kept(Sampling(top_k=2)) == [1, 3]
    assert kept(Sampling(top_k=9)) == [0, 1, 2, 3, 4]
    assert kept(Sampling(top_p=0.6)) == [1, 3], "0.4 alone does not reach 0.6, 0.4 + 0.3 does"
    assert kept(Sampling(top_p=0.3)) == [1], "the token that crosses the bound stays"
    assert kept(Sampling(min_p=0.3)) == [1, 3, 4], "0.3 x 0.4 = 0.12"
    assert kept(Sampling(top_k=3, top_p=0.5)) == [1, 3], "top_p counts what top_k left: 0.4 / 0.85 is below one half"


def test_draw_inverts_the_cumulative_distribution():
    # Cumulative: 0.1 0.5 0.55 0.85 1.0
    points = torch.tensor([0.0, 0.099, 0.101, 0.499, 0.501, 0.56, 0.86, 1 - 2**-24])
    logits = PROBABILITIES.log().expand(len(points), -1)
    chosen, logprob = draw(logits, points, Sampling())
    assert chosen.tolist() == [0, 0, 1, 1, 2, 3, 4, 4]
    torch.testing.assert_close(logprob, PROBABILITIES[0].log()[chosen])
    filtered_tokens, noted = draw(logits, points, Sampling(top_k=2))
    assert set(filtered_tokens.tolist()) == {1, 3}
    torch.testing.assert_close(noted, PROBABILITIES[0].log()[filtered_tokens], msg="log-probabilities ignore the filters")
    assert draw(logits, None, Sampling(temperature=0.0))[0].tolist() == [1] * len(points)


def test_draws_follow_the_distribution():
    uniform = torch.rand(20000, generator=torch.Generator().manual_seed(0))
    chosen, _ = draw(PROBABILITIES.log().expand(len(uniform), -1), uniform, Sampling())
    frequencies = chosen.bincount(minlength=5) / len(uniform)
    torch.testing.assert_close(frequencies, PROBABILITIES[0], atol=0.015, rtol=0)


def test_noise_depends_on_seed_and_index_only():
    together = noise([(3, 0), (3, 1), (4, 0)], 5)
    assert torch.equal(noise([(3, 1)], 5)[0], together[1])
    assert torch.equal(noise([(3, 1)], 3)[0], together[1, :3])
    assert len(together.unique(dim=0)) == 3


@pytest.mark.parametrize("family", ["qwen3_vl", "smolvlm"])
def test_a_sample_alone_equals_the_same_sample_in_a_batch(tiny, family):
    policy = make(tiny(family), sampling=Sampling(max_new_tokens=12))
    batch = policy.rollout(mixed())
    request = mixed()[1]
    alone = policy.rollout([request])
    assert [s.token_ids for s in alone.groups[0].samples] == [s.token_ids for s in batch.groups[1].samples]
    assert len({s.token_ids for s in batch.groups[1].samples}) == request.count
    narrow = make(tiny(family), sampling=Sampling(max_new_tokens=12), rollout_rows=2).rollout(mixed())
    assert [g.samples for g in narrow.groups] == [g.samples for g in batch.groups]
    other = policy.rollout(mixed(seed=70))
    assert [g.samples for g in other.groups] != [g.samples for g in batch.groups]


def test_a_completion_ends_at_the_stop_token(tiny):
    policy = make(tiny("qwen3_vl"), sampling=Sampling(max_new_tokens=16))
    (stop,) = policy.eos_token_ids
    hook = bias_toward(policy, [stop], 4.0)
    rollouts = policy.rollout([Request(prompt, 6, i, seed=i) for i, prompt in enumerate(prompts())])
    read = logprobs(policy, rollouts).detach()
    hook.remove()
    torch.testing.assert_close(rollouts.recorded[ROLLOUT_LOGPROBS], read, atol=FP32_BOUND, rtol=0)
    lengths = rollouts.action_mask.sum(1)
    assert len(lengths.unique()) > 3, "rows must end at different steps for this test to mean anything"
    for (_, sample), length in zip(rollouts.samples(), lengths.tolist(), strict=True):
        assert len(ids_of(sample)) == length
        assert stop not in ids_of(sample)[:-1]
        assert sample.truncated == (ids_of(sample)[-1] != stop)
        assert not sample.truncated or length == 16
    assert rollouts.truncated().tolist() == [sample.truncated for _, sample in rollouts.samples()]


def test_finished_rows_leave_the_cache(tiny):
    policy = make(tiny("llava_onevision"), sampling=Sampling(max_new_tokens=24))
    widths: list[int] = []
    policy.net.model.get_output_embeddings().register_forward_pre_hook(lambda module, args: widths.append(len(args[0])))
    hook = bias_toward(policy, list(policy.eos_token_ids), 3.5)
    rollouts = policy.rollout([Request(prompt, 8, i, seed=i) for i, prompt in enumerate(prompts())])
    widths, steps = widths[:], len(widths)
    assert widths[0] == 32 and widths[-1] <= 4 and steps == rollouts.action_mask.shape[1]
    read = logprobs(policy, rollouts).detach()
    hook.remove()
    torch.testing.assert_close(rollouts.recorded[ROLLOUT_LOGPROBS], read, atol=FP32_BOUND, rtol=0)


def test_a_completion_ends_with_a_stop_text(tiny):
    policy = make(tiny("qwen3_vl"))
    x, y = (policy.tokenizer.convert_tokens_to_ids(letter) for letter in "xy")
    hook = bias_toward(policy, [x, y])
    stopping = hotter(policy, max_new_tokens=40, stop=("xyx", "yyyy"))
    rollouts = policy.rollout([Request(prompts()[0], 12, 0, seed=5)], stopping)
    hook.remove()
    texts = [text_of(sample) for _, sample in rollouts.samples()]
    assert len(set(map(len, texts))) > 2
    for (_, sample), text in zip(rollouts.samples(), texts, strict=True):
        assert not sample.truncated
        assert text.endswith(("xyx", "yyyy"))
        assert not any(stop in text[:-1] for stop in stopping.stop)


def test_a_cut_completion_is_truncated_and_a_stop_at_the_last_token_is_not(tiny):
    policy = make(tiny("qwen3_vl"))
    (x,) = (policy.tokenizer.convert_tokens_to_ids(letter) for letter in "x")
    hook = bias_toward(policy, [x])
    cut = policy.rollout([Request(prompts()[2], 1, 0)], hotter(policy, max_new_tokens=3))
    ended = policy.rollout([Request(prompts()[2], 1, 0)], hotter(policy, max_new_tokens=3, stop=("xxx",)))
    hook.remove()
    assert [r.groups[0].samples[0].text for r in (cut, ended)] == ["xxx", "xxx"]
    assert [r.groups[0].samples[0].truncated for r in (cut, ended)] == [True, False]


def test_filters_restrict_what_is_written(tiny):
    policy = make(tiny("qwen3_vl"))
    greedy = policy.rollout([Request(prompts()[0], 1, 0)], hotter(policy, temperature=0.0))
    narrow = policy.rollout([Request(prompts()[0], 5, 0, seed=9)], hotter(policy, top_k=1))
    assert {s.token_ids for s in narrow.groups[0].samples} == {greedy.groups[0].samples[0].token_ids}
    wide = policy.rollout([Request(prompts()[0], 5, 0, seed=9)])
    assert len({s.token_ids for s in wide.groups[0].samples}) == 5


@pytest.mark.parametrize(
    ("name", "value"),
    {"temperature": -1.0, "top_p": 0.0, "max_new_tokens": 0, "stop": ("",)}.items(),
)
def test_impossible_sampling_is_refused(name, value):
    with pytest.raises(ValueError, match=rf"(?i)sampling\.{name}"):
        Sampling(**{name: value})
