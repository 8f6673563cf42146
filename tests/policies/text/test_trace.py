"""Traces are joined, taken and made compact without a model: every row keeps its own prompt."""

from collections.abc import Sequence

import torch

from mmrl.policies.text.families import Family
from mmrl.policies.text.prompt.encode import Encoded
from mmrl.policies.text.trace import Inset, Insets, TextTrace, join

FAMILY = Family(None)


def encoded(name: str) -> Encoded:
    return Encoded(name, torch.tensor([1, 2]), torch.zeros(1, 2, dtype=torch.long))


def trace(prompts: Sequence[Encoded], rows: Sequence[int], tokens: list[list[int]], insets: Insets = ()) -> TextTrace:
    """Row i answers prompts[rows[i]] with tokens[i], all of full length."""
    lengths = torch.tensor([len(row) for row in tokens])
    given = tuple(prompts), torch.tensor(rows), torch.tensor(tokens), lengths, torch.ones(len(tokens)), 0 * lengths
    return TextTrace(*given, FAMILY, insets=insets)


def names(trace: TextTrace) -> list[str]:
    return [trace.prompts[i].prompt_id for i in trace.prompt_index.tolist()]


def test_rows_keep_their_prompts_where_rounds_have_different_ones():
    a, b, c = map(encoded, "abc")
    joined = join(
        [trace([a, b], [1, 0], [[1], [2]]), trace([c, b, c], [2, 1, 0], [[3, 4], [5, 6], [7, 8]]), trace([c], [0], [[9]])]
    )
    assert names(joined) == ["b", "a", "c", "b", "c", "c"]
    assert [prompt.prompt_id for prompt in joined.prompts] == ["a", "b", "c"]
    assert joined.tokens.tolist() == [[1, 0], [2, 0], [3, 4], [5, 6], [7, 8], [9, 0]]
    assert joined.lengths.tolist() == [1, 1, 2, 2, 2, 1]


def test_prompts_are_told_apart_by_identity_and_not_by_name():
    joined = join([trace([encoded("a")], [0], [[1]]), trace([encoded("a")], [0], [[2]])])
    assert joined.prompt_index.tolist() == [0, 1]


def test_a_compact_trace_holds_the_prompts_that_are_answered_and_no_common_padding():
    a, b, c = map(encoded, "abc")
    whole = trace([a, b, c], [2, 0, 2, 1], [[1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 1, 1]])
    some = whole.take(torch.tensor([2, 1, 0]))
    few = TextTrace(
        some.prompts, some.prompt_index, some.tokens, torch.tensor([2, 1, 2]), some.temperature, some.noted_from, FAMILY
    ).compact()
    assert names(few) == ["c", "a", "c"]
    assert len(few.prompts) == 2 and few.tokens.tolist() == [[7, 8], [4, 5], [1, 2]]


def test_rows_keep_their_pictures_when_traces_are_joined():
    one = Inset(0, {}, torch.zeros(1, 1, dtype=torch.long))
    bare, shown = (trace([encoded("p")], [0, 0], [[0] * 3] * 2, insets) for insets in ((), ((one,), ())))
    joined = join([bare, shown])
    assert joined.insets == ((), (), (one,), ()) and joined.take(torch.tensor([2, 0])).insets == ((one,), ())
    assert joined.take(torch.tensor([0, 3])).insets == () == join([bare, bare]).insets
