"""Pictures within completions are read as if the whole row were a prompt, packed or not, in whatever order rows are read."""

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch

from mmrl.core.readings import LOGPROBS
from mmrl.core.types import Prompt, Reading
from mmrl.policies.shared.lora import LoraSettings
from mmrl.policies.text.check.audit import audit
from mmrl.policies.text.policy import TextPolicy
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.policies.text.trace import Inset, TextTrace, numbers_of, offsets_of, types_of
from tests.support.text_policies import FP32_BOUND, make, picture

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


def shown_alone(policy: TextPolicy, one: Any) -> Any:
    return policy.encode(Prompt("alone", "<image>", (one,))).media


def cut(policy: TextPolicy, whole: Encoded, said: list[int]) -> tuple[Encoded, list[int], Inset]:
    """The row up to the end of its first picture as a prompt; the rest as a completion with a picture in it."""
    marks = (whole.token_ids == policy.family.image_token_id).nonzero()[:, 0]
    second = int(marks[len(marks) - num_marks(policy, whole) :][0])
    start, stop, last = second, int(marks[-1]) + 1, first_end(policy, whole) + 2
    assert whole.prompt is not None
    types = whole.type_ids
    prompt = replace(
        whole,
        token_ids=whole.token_ids[:last],
        positions=whole.positions[:, :last],
        type_ids=None if types is None else types[:last],
        media=shown_alone(policy, whole.prompt.media[0]),
    )
    inset = Inset(
        start - last,
        shown_alone(policy, whole.prompt.media[1]),
        whole.positions[:, start:stop] - (whole.positions[:, start - 1 : start] + 1),
        None if types is None else types[start:stop],
    )
    return prompt, [*whole.token_ids[last:].tolist(), *said], inset


def num_marks(policy: TextPolicy, whole: Encoded) -> int:
    """Placeholders of the second picture."""
    assert whole.prompt is not None
    alone = policy.encode(Prompt("alone", "<image>", whole.prompt.media[1:]))
    return int((alone.token_ids == policy.family.image_token_id).sum())


def first_end(policy: TextPolicy, whole: Encoded) -> int:
    """The last placeholder of the first picture."""
    marks = (whole.token_ids == policy.family.image_token_id).nonzero()[:, 0]
    return int(marks[len(marks) - num_marks(policy, whole) - 1])


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
def test_a_picture_within_a_completion_is_read_as_one_of_the_prompt(
    tiny: Any, family: str, packed: bool, lora: LoraSettings | None
):
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
    with pytest.raises(ValueError, match="a completion holds the media tokens"):
        audit(replace(trace, insets=()))
    late = replace(inset, start=inset.start + 1)
    with pytest.raises(ValueError, match=f"from token {late.start} of a completion on, its text holds .* image placeholders"):
        audit(replace(trace, insets=((late,),)))


def test_what_follows_a_picture_is_read_behind_its_largest_position():
    grid = torch.tensor([[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 0, 1]])
    two = Inset(1, {}, grid, torch.ones(4, dtype=torch.long)), Inset(6, {}, grid[:, :2], None)
    offsets = offsets_of(((), two), (3, 2, 9))
    assert offsets[:, 0].tolist() == [list(range(9))] * 3
    assert offsets[:, 1].tolist() == [
        [0, 1, 1, 1, 1, 3, 4, 4, 6],
        [0, 1, 1, 2, 2, 3, 4, 4, 6],
        [0, 1, 2, 1, 2, 3, 4, 5, 6],
    ]
    assert types_of(((), two), (2, 6)).tolist() == [[0] * 6, [0, 1, 1, 1, 1, 0]]
    assert list(map(list, numbers_of(((), two), 2, 3))) == [[], [3, 4]] and list(map(list, numbers_of((), 2, 3))) == [[], []]
