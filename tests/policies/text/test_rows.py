"""Rows of a trace: requests become groups, batches are cut by positions, traces are taken and joined, pictures stand within."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from mmrl.core.readings import LOGPROBS, ROLLOUT_LOGPROBS
from mmrl.core.types import Batch, Prompt, Reading, Request, Rollouts
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.check.audit import audit
from mmrl.policies.text.families import Family
from mmrl.policies.text.policy import Sampling, TextPolicy
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.policies.text.trace import Inset, Insets, TextTrace, join, numbers_of, offsets_of, types_of
from mmrl.policies.text.write.rollout import check_sampling
from tests.support.refused import refused
from tests.support.text_policies import FP32_BOUND, ids_of, logprobs, make, mixed, picture, prompts, text_trace

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
    refused("prompt 'p' holds the tokens", policy.rollout, [Request(PROMPT, 1, 0, role="injected", written="<|image_pad|>")])


def test_requests_nobody_can_serve_are_refused(tiny):
    policy = make(tiny("qwen3_vl"), {"ref"})
    for wrong, message in (
        (Request(PROMPT, 1, 0, view="shuffled"), "view 'shuffled'"),
        (Request(PROMPT, 1, 0, model="ema"), "weights 'ema'; this policy keeps policy, ref"),
        (Request(PROMPT, 1, 0, role="injected"), "'injected' but no text"),
    ):
        refused(message, policy.rollout, [wrong])
    refused("group 0 holds prompts 'p' and 'none'", policy.rollout, [Request(PROMPT, 1, 0), Request(prompts()[2], 1, 0)])
    refused("not with dict", check_sampling, {"temperature": 0}, policy.config.sampling)
    rollouts = policy.rollout([Request(PROMPT, 1, 0)])
    refused("model 'ema'", policy.read, rollouts.trace, [LOGPROBS._replace(model="ema")], rollouts.action_mask)


def test_no_requests_give_no_rows(tiny):
    policy = make(tiny("qwen3_vl"))
    empty, some = policy.rollout([]), policy.rollout(mixed())
    assert len(empty) == 0 and empty.groups == ()
    assert len(policy.join([empty.trace, some.trace])) == len(some)
    assert policy.read(empty.trace, [LOGPROBS], empty.action_mask)[LOGPROBS].shape == (0, 0)


def test_rows_can_be_taken_repeated_and_joined(tiny):
    policy = make(tiny("internvl"))
    a, b = policy.rollout(mixed()), policy.rollout(mixed(seed=50)[::-1], Sampling(max_new_tokens=9))
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
    assert len(joined.prompts) == 8, "prompts of the first trace are kept once; those of the second have their names alone"
    lengths = text_trace(a.trace).lengths
    assert torch.equal(joined.lengths, torch.cat([lengths, text_trace(b.trace).lengths[rows], lengths]))
    refused("read whole", a.trace.take, rows, slice(0, 2))


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


def test_what_belongs_together_is_not_cut(tiny):
    """Rows of a prompt while they fit, groups and batches always."""
    policy = make(tiny("qwen3_vl"))
    rollouts = policy.rollout([Request(prompt, 4, i, seed=i) for i, prompt in enumerate(prompts())])
    batch = batch_of(rollouts).take(torch.randperm(len(rollouts), generator=torch.Generator().manual_seed(0)))
    for part in policy.split(batch, 130, "rollout"):
        assert all(count == 4 for count in Counter(part.rollouts.group_ids.tolist()).values())
    assert len(list(policy.split(batch, 1, "batch"))) == 1
    of_one_prompt = [Request(PROMPT, count, i, seed=i) for i, count in enumerate((3, 2))]
    parts = policy.split(batch_of(policy.rollout([*of_one_prompt, Request(prompts()[2], 2, 2, seed=2)])), 1, "group")
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


FAMILY = Family(None)


def encoded(name: str) -> Encoded:
    return Encoded(name, torch.tensor([1, 2]), torch.zeros(1, 2, dtype=torch.long))


def small(prompts: Sequence[Encoded], rows: Sequence[int], tokens: list[list[int]], insets: Insets = ()) -> TextTrace:
    """Row i answers prompts[rows[i]] with tokens[i], all of full length."""
    lengths = torch.tensor([len(row) for row in tokens])
    given = tuple(prompts), torch.tensor(rows), torch.tensor(tokens), lengths, torch.ones(len(tokens)), 0 * lengths
    return TextTrace(*given, FAMILY, insets=insets)


def names(small: TextTrace) -> list[str]:
    return [small.prompts[i].prompt_id for i in small.prompt_index.tolist()]


def test_a_compact_trace_holds_the_prompts_that_are_answered_and_no_common_padding():
    a, b, c = map(encoded, "abc")
    whole = small([a, b, c], [2, 0, 2, 1], [[1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 1, 1]])
    some = whole.take(torch.tensor([2, 1, 0]))
    few = replace(some, lengths=torch.tensor([2, 1, 2])).compact()
    assert names(few) == ["c", "a", "c"]
    assert len(few.prompts) == 2 and few.tokens.tolist() == [[7, 8], [4, 5], [1, 2]]


def test_rows_keep_their_pictures_when_traces_are_joined():
    one = Inset(0, {}, torch.zeros(1, 1, dtype=torch.long))
    bare, shown = (small([encoded("p")], [0, 0], [[0] * 3] * 2, insets) for insets in ((), ((one,), ())))
    joined = join([bare, shown])
    assert joined.insets == ((), (), (one,), ()) and joined.take(torch.tensor([2, 0])).insets == ((one,), ())
    assert joined.take(torch.tensor([0, 3])).insets == () == join([bare, bare]).insets


FAMILIES = [
    *product(("qwen2_5_vl", "qwen3_vl", "internvl", "smolvlm"), (False, True), (None,)),
    *product(("qwen3_vl", "smolvlm"), (False, True), (LoraSettings(rank=4),)),
    ("qwen3_omni_moe_thinker", True, None),
    ("gemma3", False, None),
]
"""Gemma looks at pictures in both directions, which the masks of a packed row know of prompts alone."""
SIZES = [(64, 48), (48, 96), (90, 40), (64, 48)]
SAID = [" it is blue", " yes", " there are two of them, I think", " no"]


def rows_of(policy: TextPolicy) -> list[tuple[Encoded, list[int]]]:
    """Whole rows as prompts with two pictures, and what the policy says behind each."""
    first = [picture(i // 2) for i in range(4)]
    prompts = [
        Prompt(f"row {i}", "what is <image> like? and " + "look " * i + "<image>, then?", (first[i], picture(7 + i, *size)))
        for i, size in enumerate(SIZES)
    ]
    said = [policy.tokenizer(text, add_special_tokens=False)["input_ids"] for text in SAID]
    return [(policy.encode(prompt), tokens) for prompt, tokens in zip(prompts, said, strict=True)]


def cut(policy: TextPolicy, whole: Encoded, said: list[int]) -> tuple[Encoded, list[int], Inset]:
    """The row up to the end of its first picture as a prompt; the rest as a completion with a picture in it."""
    assert whole.prompt is not None
    first, second = (policy.encode(Prompt("alone", "<image>", (one,))) for one in whole.prompt.media)
    marks = (whole.token_ids == policy.family.image_token_id).nonzero()[:, 0]
    count, types = int((second.token_ids == policy.family.image_token_id).sum()), whole.type_ids
    start, stop, last = int(marks[-count]), int(marks[-1]) + 1, int(marks[-count - 1]) + 2
    prompt = replace(
        whole,
        token_ids=whole.token_ids[:last],
        positions=whole.positions[:, :last],
        type_ids=None if types is None else types[:last],
        media=first.media,
    )
    positions = whole.positions[:, start:stop] - (whole.positions[:, start - 1 : start] + 1)
    inset = Inset(start - last, second.media, positions, None if types is None else types[start:stop])
    return prompt, [*whole.token_ids[last:].tolist(), *said], inset


def trace_of(policy: TextPolicy, prompts: list[Encoded], rows: list[list[int]], **changes: Any) -> TextTrace:
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)
    index, lengths = changes.pop("prompt_index", torch.arange(len(rows))), torch.tensor([len(row) for row in rows])
    return TextTrace(tuple(prompts), index, tokens, lengths, torch.ones(len(rows)), 0 * lengths, policy.family, **changes)


def read(policy: TextPolicy, trace: TextTrace, said: list[list[int]]) -> list[torch.Tensor]:
    """Log-probabilities of what the policy said, which is the end of each row."""
    place = torch.arange(trace.tokens.shape[1])
    mask = torch.stack([(place < n) & (place >= n - len(own)) for n, own in zip(trace.lengths.tolist(), said, strict=True)])
    values = policy.read(trace, [Reading(*LOGPROBS)], mask)[LOGPROBS].detach()
    return [row[chosen] for row, chosen in zip(values, mask, strict=True)]


@pytest.mark.parametrize(("family", "packed", "lora"), FAMILIES)
def test_a_picture_in_a_completion_is_read_as_one_of_the_prompt(tiny: Any, family: str, packed: bool, lora: LoraSettings | None):
    policy = make(tiny(family), lora=lora)
    assert (policy.net.features is None) == (lora is None), "what does not train is looked at once and kept"
    rows = rows_of(policy)
    said = [tokens for _, tokens in rows]
    expected = read(policy, trace_of(policy, [whole for whole, _ in rows], said), said)
    parts = [cut(policy, whole, tokens) for whole, tokens in rows]
    # two rows answer each prompt, and rows of other lengths stand between them
    prompts, index = [parts[0][0], parts[2][0]], torch.tensor([0, 0, 1, 1])
    insets = tuple((inset,) for _, _, inset in parts)
    trace = trace_of(policy, prompts, [row for _, row, _ in parts], prompt_index=index, insets=insets, packed=packed)
    order = torch.tensor([2, 0, 3, 1])
    for some, picked in ((trace, range(4)), (trace.take(order), order.tolist()), (trace.take(order[:1]).compact(), [2])):
        audit(some)
        found = read(policy, some, [said[i] for i in picked])
        for i, one in zip(picked, found, strict=True):
            torch.testing.assert_close(one, expected[i], atol=FP32_BOUND, rtol=0)
    swapped = replace(trace, insets=(insets[3], *insets[1:3], insets[0]))
    assert not torch.allclose(read(policy, swapped, said)[0], expected[0], atol=10 * FP32_BOUND), "pictures are looked at"


def test_a_completion_whose_picture_does_not_fit_is_found(tiny: Any):
    policy = make(tiny("qwen2_5_vl"))
    prompt, row, inset = cut(policy, *rows_of(policy)[1])
    trace = trace_of(policy, [prompt], [row], insets=((inset,),))
    refused("a completion holds the media tokens", audit, replace(trace, insets=()))
    late = replace(inset, start=inset.start + 1)
    with pytest.raises(ValueError, match=f"from token {late.start} of a completion on, its text holds .* image placeholders"):
        audit(replace(trace, insets=((late,),)))


def test_what_follows_a_picture_is_read_behind_its_largest_position():
    grid = torch.tensor([[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 0, 1]])
    two = Inset(1, {}, grid, torch.ones(4, dtype=torch.long)), Inset(6, {}, grid[:, :2], None)
    offsets = offsets_of(((), two), (3, 2, 9))
    assert offsets[:, 0].tolist() == [list(range(9))] * 3
    assert offsets[:, 1].tolist() == [[0, 1, 1, 1, 1, 3, 4, 4, 6], [0, 1, 1, 2, 2, 3, 4, 4, 6], [0, 1, 2, 1, 2, 3, 4, 5, 6]]
    assert types_of(((), two), (2, 6)).tolist() == [[0] * 6, [0, 1, 1, 1, 1, 0]]
    assert list(map(list, numbers_of(((), two), 2, 3))) == [[], [3, 4]] and list(map(list, numbers_of((), 2, 3))) == [[], []]
