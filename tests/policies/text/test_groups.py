"""Requests become groups; batches are cut by positions; traces are taken and joined."""

from collections import Counter

import pytest
import torch

from mmrl.core.readings import LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Batch, Prompt, Request, Rollouts
from mmrl.policies.text.policy import Sampling
from mmrl.policies.text.write.rollout import check_sampling
from tests.support.text_policies import (
    FP32_BOUND,
    ids_of,
    logprobs,
    make,
    mixed,
    picture,
    prompts,
    text_trace,
)

PROMPT = Prompt("p", "where?", (picture(0),))


def test_several_requests_may_add_to_one_group(tiny):
    policy = make(tiny("qwen3_vl"))
    requests = [
        Request(PROMPT, 2, group_id=5, seed=1),
        Request(prompts()[2], 1, group_id=3, seed=2),
        Request(PROMPT, 1, group_id=5, role="probe", seed=3),
        Request(PROMPT, 2, group_id=5, role="injected", written="[1, 2]"),
        Request(PROMPT, 1, group_id=5, seed=4),
    ]
    rollouts = policy.rollout(requests)
    assert [group.id for group in rollouts.groups] == [5, 3]
    assert [sample.role for sample in rollouts.groups[0].samples] == ["policy", "policy", "injected", "injected", "policy"]
    assert [sample.role for sample in rollouts.groups[0].probes["plain"]] == ["probe"]
    assert rollouts.groups[1].probes == {}
    assert rollouts.group_ids.tolist() == [5, 5, 3, 5, 5, 5]
    assert rollouts.sample_ids.tolist() == [0, 1, 0, 2, 3, 4]
    trace = text_trace(rollouts.trace)
    assert len(trace.prompts) == 2, "a prompt is encoded once, however many requests name it"
    for (_, sample), tokens, length in zip(rollouts.samples(), trace.tokens, trace.lengths, strict=True):
        assert list(ids_of(sample)) == tokens[:length].tolist()


def test_given_text_is_read_and_not_sampled(tiny):
    policy = make(tiny("qwen3_vl"))
    rollouts = policy.rollout([Request(PROMPT, 1, 0, role="injected", written="yes"), Request(PROMPT, 1, 0, seed=3)])
    given, drawn = rollouts.groups[0].samples
    stop = policy.eos_token_ids[0]
    assert given.text == "yes" and not given.truncated
    assert given.token_ids == (*policy.tokenizer("yes")["input_ids"], stop)
    assert rollouts.recorded[ROLLOUT_LOGPROBS].isnan().tolist() == [[True] * 6, [False] * 6]
    again = policy.rollout([Request(PROMPT, 1, 0, seed=3)])
    assert again.groups[0].samples[0] == drawn
    read = logprobs(policy, rollouts)
    assert read.isfinite().all() and (read[0, :4] < 0).all() and (read[0, 4:] == 0).all()
    with pytest.raises(ValueError, match="prompt 'p' holds the tokens"):
        policy.rollout([Request(PROMPT, 1, 0, role="injected", written="<|image_pad|>")])


def test_requests_nobody_can_serve_are_refused(tiny):
    policy = make(tiny("qwen3_vl"), {"ref"})
    for wrong, message in (
        (Request(PROMPT, 1, 0, view="shuffled"), "view 'shuffled'"),
        (Request(PROMPT, 1, 0, model="ema"), "weights 'ema'; this policy keeps policy, ref"),
        (Request(PROMPT, 1, 0, role="injected"), "'injected' but no text"),
    ):
        with pytest.raises(ValueError, match=message):
            policy.rollout([wrong])
    with pytest.raises(ValueError, match="group 0 holds prompts 'p' and 'none'"):
        policy.rollout([Request(PROMPT, 1, 0), Request(prompts()[2], 1, 0)])
    with pytest.raises(ValueError, match="not with dict"):
        check_sampling({"temperature": 0}, policy.config.sampling)
    rollouts = policy.rollout([Request(PROMPT, 1, 0)])
    with pytest.raises(ValueError, match="model 'ema'"):
        policy.read(rollouts.trace, [LOGPROBS._replace(model="ema")], rollouts.action_mask)


def test_no_requests_give_no_rows(tiny):
    policy = make(tiny("qwen3_vl"))
    empty, some = policy.rollout([]), policy.rollout(mixed())
    assert len(empty) == 0 and empty.groups == ()
    assert len(policy.join([empty.trace, some.trace])) == len(some)
    assert policy.read(empty.trace, [LOGPROBS], empty.action_mask)[LOGPROBS].shape == (0, 0)


def test_rows_can_be_taken_repeated_and_joined(tiny):
    policy = make(tiny("internvl"))
    a, b = policy.rollout(mixed()), policy.rollout(mixed(seed=50), Sampling(max_new_tokens=9))
    rows = torch.tensor([4, 0, 4, 2])
    taken = a.take(rows)
    torch.testing.assert_close(logprobs(policy, taken).detach(), a.recorded[ROLLOUT_LOGPROBS][rows], atol=FP32_BOUND, rtol=0)
    joined = policy.join([a.trace, text_trace(b.trace).take(rows), a.trace])
    mask = torch.arange(joined.tokens.shape[1]) < joined.lengths[:, None]
    read = policy.read(joined, [LOGPROBS], mask)[LOGPROBS].detach()
    n = len(a)
    torch.testing.assert_close(read[:n, :6], a.recorded[ROLLOUT_LOGPROBS], atol=FP32_BOUND, rtol=0)
    torch.testing.assert_close(read[n : n + 4], b.recorded[ROLLOUT_LOGPROBS][rows], atol=FP32_BOUND, rtol=0)
    assert torch.equal(read[n + 4 :], read[:n])
    assert len(joined.prompts) == 8, "prompts of the first trace occur twice and are kept once"
    with pytest.raises(ValueError, match="read whole"):
        a.trace.take(rows, slice(0, 2))


def batch_of(rollouts: Rollouts) -> Batch:
    ones = torch.ones(rollouts.action_mask.shape)
    row = torch.arange(len(rollouts))[:, None].expand_as(rollouts.action_mask)
    return Batch(rollouts, ones, ones, ones, {LOGPROBS: row})


def positions(part: Batch, packed: bool) -> int:
    """One forward's positions, padding included, counted from the trace's own tensors; last tokens are never fed."""
    trace = text_trace(part.rollouts.trace)
    if packed:
        prompts = sum(len(trace.prompts[i].token_ids) for i in trace.prompt_index.unique())
        return prompts + int((trace.lengths - 1).sum())
    return len(part) * (max(len(trace.prompts[i].token_ids) for i in trace.prompt_index) + int(trace.lengths.max()) - 1)


@pytest.mark.parametrize("prefix", ["packed", "repeated"])
@pytest.mark.parametrize("micro_batch", [1, 60, 150, 200, 100_000])
def test_every_row_is_in_one_part_within_the_budget(tiny, prefix, micro_batch):
    policy = make(tiny("qwen3_vl"), prefix=prefix)
    rollouts = policy.rollout([Request(prompt, 3 + i, i, seed=i) for i, prompt in enumerate(prompts())])
    for scope in ("action", "rollout"):
        parts = list(policy.split(batch_of(rollouts), micro_batch, scope))
        seen = Counter(row for part in parts for row in part.frozen[LOGPROBS][:, 0].tolist())
        assert seen == Counter(range(len(rollouts)))
        assert all(positions(part, prefix == "packed") <= micro_batch or len(part) == 1 for part in parts)
    assert (len(parts) == 1) == (micro_batch == 100_000)


def test_rows_of_a_prompt_stay_together_while_they_fit(tiny):
    policy = make(tiny("qwen3_vl"))
    rollouts = policy.rollout([Request(prompt, 4, i, seed=i) for i, prompt in enumerate(prompts())])
    batch = batch_of(rollouts).take(torch.randperm(len(rollouts), generator=torch.Generator().manual_seed(0)))
    for part in policy.split(batch, 130, "rollout"):
        assert all(count == 4 for count in Counter(part.rollouts.group_ids.tolist()).values())


def test_groups_and_batches_are_not_cut(tiny):
    policy = make(tiny("qwen3_vl"))
    rollouts = policy.rollout([Request(PROMPT, 3, 0), Request(PROMPT, 2, 1, seed=1), Request(prompts()[2], 2, 2, seed=2)])
    assert len(list(policy.split(batch_of(rollouts), 1, "batch"))) == 1
    parts = list(policy.split(batch_of(rollouts), 1, "group"))
    assert sorted(tuple(part.rollouts.group_ids.tolist()) for part in parts) == [(0, 0, 0), (1, 1), (2, 2)]


def test_the_gradient_does_not_depend_on_the_cut(tiny):
    policy = make(tiny("smolvlm"))
    rollouts = policy.rollout([Request(prompt, 3, i, seed=i) for i, prompt in enumerate(prompts())])
    share = torch.rand(rollouts.action_mask.shape, generator=torch.Generator().manual_seed(1))

    def gradient(micro_batch: int) -> torch.Tensor:
        for part in policy.split(Batch(rollouts, share, share, share), micro_batch, "rollout"):
            (part.share * logprobs(policy, part.rollouts)).sum().backward()
        found: list[torch.Tensor] = []
        for weight in policy.parameters():
            assert weight.grad is not None
            found.append(weight.grad.flatten())
            weight.grad = None
        return torch.cat(found)

    whole = gradient(100_000)
    for micro_batch in (1, 100, 300):
        assert (gradient(micro_batch) - whole).norm() / whole.norm() < 1e-4


def test_the_text_policy_keeps_the_promises_of_a_policy(tiny):
    from mmrl.core.protocols import Policy

    policy = make(tiny("qwen3_vl"), {"ref"})
    assert isinstance(policy, Policy)
    looks = {"reference_probability", "base_probability", "attention_distance", "attention_influence", "divergence", "overlap"}
    assert (
        policy.shadows == {"ref"} and policy.offers == {"logprobs", "entropy", "lead", "group_divergence", "answer_mask"} | looks
    )


def test_blanks_before_commas_and_question_marks_stay(tiny):
    """The text that rewards read is what the model wrote."""
    policy = make(tiny("qwen3_vl"))
    # some models' tokenizers say so
    policy.tokenizer.clean_up_tokenization_spaces = True
    policy.tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output = True
    text = "is it a cat , or do n't you know ?"
    assert policy.decode([policy.tokenizer(text)["input_ids"]]) == [text]
