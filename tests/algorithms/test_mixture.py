"""Several data sets in fixed shares: exact shares, exact resume, sources kept apart."""

from collections import Counter
from collections.abc import Iterator
from itertools import islice

import pytest

from mmrl.algorithms.samplers.learned import Bandit, Thompson
from mmrl.algorithms.samplers.mixture import Balanced, Mixture
from mmrl.core.protocols import PromptSampler
from mmrl.core.types import Prompt
from mmrl.data.sources import Marking, Sources, StreamedSources, first_of_each, join_sources, mark_all

WEIGHTS = {"a": 0.5, "b": 0.3, "c": 0.2}


def prompts(count: int, **columns: object) -> list[Prompt]:
    return [Prompt(str(i), columns=columns) for i in range(count)]


def lists(weights: dict[str, float] | None = WEIGHTS) -> Sources:
    parts = {name: mark_all(prompts(size), Marking(name)) for name, size in (("a", 7), ("b", 5), ("c", 8))}
    made = join_sources(parts, weights)
    assert isinstance(made, Sources)
    return made


class Stream:
    def __iter__(self) -> Iterator[Prompt]:
        return iter(prompts(6))


def streams() -> StreamedSources:
    parts = {"a": mark_all(prompts(7), Marking("a")), "b": mark_all(Stream(), Marking("b"))}
    made = join_sources(parts, {"a": 0.5, "b": 0.5})
    assert isinstance(made, StreamedSources)
    return made


def test_a_prompt_says_where_it_is_from():
    whole = lists()
    assert len(whole) == 20
    assert (whole[0].id, whole[0].source, whole[0].columns["category"]) == ("a/0", "a", "a")
    assert [whole[i].id for i in (6, 7, 11, 12, -1)] == ["a/6", "b/0", "b/4", "c/0", "c/7"]
    assert [one.id for one in whole[5:8]] == ["a/5", "a/6", "b/0"]
    with pytest.raises(IndexError):
        whole[20]


def test_a_category_is_a_column_its_own_or_the_source():
    own, named = Marking("a")(Prompt("1", columns={"category": "x"})), Marking("a", "kind")(Prompt("1", columns={"kind": "y"}))
    assert (own.columns["category"], named.columns["category"]) == ("x", "y")
    with pytest.raises(ValueError, match="prompt '1' of the source 'a' has no column 'kind', its category"):
        Marking("a", "kind")(Prompt("1"))


def test_every_source_has_its_share_at_any_time():
    sampler = Mixture(lists())
    counts = Counter[str]()
    for n in range(1, 201):
        [prompt] = sampler.draw(1)
        counts[prompt.source] += 1
        assert all(abs(counts[name] - weight * n) < 1 for name, weight in WEIGHTS.items()), (n, counts)
    assert counts == {"a": 100, "b": 60, "c": 40}


def test_each_source_goes_through_all_of_its_prompts():
    sampler = Mixture(lists())
    drawn = [prompt.id for prompt in sampler.draw(70) if prompt.source == "a"]
    assert len(drawn) == 35
    assert all(len(set(drawn[i : i + 7])) == 7 for i in range(0, 35, 7)) and drawn[:7] != drawn[7:14]


def test_without_weights_a_source_is_as_large_as_it_is():
    drawn = Mixture(lists(None)).draw(20)
    assert len({prompt.id for prompt in drawn}) == 20


@pytest.mark.parametrize("make", [lists, streams])
def test_resumed_is_uninterrupted_and_the_seed_decides(make):
    whole, first, second = Mixture(make()), Mixture(make()), Mixture(make())
    assert isinstance(whole, PromptSampler)
    steps = [[one.id for one in whole.draw(6)] for _ in range(8)]
    assert [[one.id for one in first.draw(6)] for _ in range(3)] == steps[:3]
    second.load_state_dict(first.state_dict())
    assert [[one.id for one in second.draw(6)] for _ in range(5)] == steps[3:]
    assert [[one.id for one in Mixture(make(), 1).draw(6)]] != steps[:1]


def test_a_look_ahead_is_the_next_draw():
    sampler = Mixture(lists())
    for _ in range(5):
        ahead = [one.id for one in sampler.peek(7)]
        assert ahead == [one.id for one in sampler.draw(7)]


def test_a_look_ahead_ends_where_a_stream_would_be_read():
    sampler = Mixture(streams())
    assert [one.source for one in sampler.peek(4)] == ["a"]
    assert [one.source for one in sampler.draw(4)] == ["a", "b", "a", "b"]


def test_other_weights_or_sources_are_refused():
    state = Mixture(lists()).state_dict()
    with pytest.raises(ValueError, match=r"resume with the same \[\[data\]\] tables"):
        Mixture(lists({"a": 0.2, "b": 0.3, "c": 0.5})).load_state_dict(state)


def test_what_cannot_be_mixed_is_refused():
    with pytest.raises(ValueError, match=r"mixes several data sets, and there is one: write a \[\[data\]\] table for each"):
        Mixture(prompts(3))
    with pytest.raises(ValueError, match=r"the source 'b' of \[\[data\]\] is a stream.*give every \[\[data\]\] table a weight"):
        Mixture(StreamedSources(streams().parts))
    with pytest.raises(ValueError, match=r"the source 'b' of \[\[data\]\] has no prompts: check its path"):
        join_sources({"a": prompts(1), "b": []}, None)


def test_held_out_prompts_are_taken_in_turns():
    assert [one.id for one in first_of_each(lists(), 5)] == ["a/0", "b/0", "c/0", "a/1", "b/1"]
    assert len(first_of_each(lists(), 100)) == 20 and len(first_of_each(prompts(9), 4)) == 4
    assert [one.id for one in islice(streams(), 3)] == ["a/0", "b/0", "a/1"]


def test_learned_samplers_tell_sources_apart():
    bandit = Bandit(lists(None), temperature=0.1)
    for _ in range(10):
        drawn = bandit.draw(8)
        bandit.observe(drawn, [[1.0, 0.0] if one.source == "b" else [1.0, 1.0] for one in drawn])
    assert bandit.chances()["b"] > 0.99
    # ids of equal rows in different sources are different
    assert len(Thompson(lists(None))._places) == 20


def test_rare_classes_come_as_often_and_a_resumed_sampler_goes_on():
    made = [
        *prompts(9, kind="cat"),
        *(Prompt(f"d{i}", columns={"kind": "dog"}) for i in range(2)),
        Prompt("e", columns={"kind": 3}),
    ]
    sampler, again = (Balanced(made, 1, column="kind") for _ in range(2))
    drawn = sampler.draw(12)
    assert Counter(prompt.columns["kind"] for prompt in drawn) == {"cat": 4, "dog": 4, 3: 4}
    again.load_state_dict(sampler.state_dict())
    drawn += (more := sampler.draw(15))
    assert [one.id for one in again.peek(15)] == [one.id for one in more]
    assert len({one.id for one in drawn if one.columns["kind"] == "cat"}) == 9
    with pytest.raises(ValueError, match=r"prompt '0' has no column 'taste', which sampler\.column names as its class"):
        Balanced(prompts(2), 0, column="taste")
    with pytest.raises(ValueError, match="the data set is a stream"):
        Balanced(Stream(), 0, column="kind")
