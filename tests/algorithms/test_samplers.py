"""Samplers: epochs, streams, fixed shares, and those that learn; they resume exactly, and refuse data they cannot tell apart."""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest

from mmrl.algorithms.samplers.base import Shuffled, Streamed
from mmrl.algorithms.samplers.learned import Bandit, Curriculum, Prioritized, Thompson, VarianceAware, largest
from mmrl.algorithms.samplers.mixture import Balanced, Mixture
from mmrl.app.plugins.resolve import load
from mmrl.core.protocols import PromptSampler
from mmrl.core.types import Prompt
from mmrl.data.sources import Marking, Sources, StreamedSources, first_of_each, join_sources, mark_all
from mmrl.training.checkpoints.state import copy_state
from tests.support.each import for_each
from tests.support.refused import refused

PROMPTS = [Prompt(str(i)) for i in range(7)]


class Anew:
    """A stream that starts again each time it is read."""

    def __iter__(self) -> Iterator[Prompt]:
        yield from PROMPTS


def ids(prompts: list[Prompt]) -> list[str]:
    return [prompt.id for prompt in prompts]


SAMPLERS = {"shuffled": lambda seed=0: Shuffled(PROMPTS, seed), "streamed": lambda seed=0: Streamed(Anew(), seed, buffer_size=3)}
both = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)


@pytest.mark.parametrize("make", [lambda: Shuffled(PROMPTS, 3), lambda: Mixture(lists())], ids=["shuffled", "mixture"])
def test_peeking_moves_nothing(make):
    sampler = make()
    for size in (3, 5, 9, 7):
        ahead = ids(list(sampler.peek(size)))
        assert ids(list(sampler.peek(2))) == ahead[:2]
        assert ids(sampler.draw(size)) == ahead


@both
def test_every_epoch_holds_every_prompt_once_in_an_order_of_the_seed(make):
    sampler = make()
    assert isinstance(sampler, PromptSampler)
    drawn = [prompt for size in (3, 9, 2) for prompt in ids(sampler.draw(size))]
    assert sorted(drawn[:7]) == sorted(drawn[7:]) == ids(PROMPTS)
    assert drawn[:7] != drawn[7:] and drawn[:7] != ids(PROMPTS)
    assert ids(make(1).draw(20)) == ids(make(1).draw(20)) != ids(make(2).draw(20))


@both
@pytest.mark.parametrize("before", [0, 4, 7, 17])
def test_resumed_is_uninterrupted(make, before):
    through, first, resumed = make(), make(), make()
    expected = ids(through.draw(before))[before:] + ids(through.draw(10))
    first.draw(before)
    resumed.draw(5)
    resumed.load_state_dict(first.state_dict())
    assert ids(resumed.draw(10)) == expected
    assert resumed.state_dict() == through.state_dict()


def test_an_iterator_lasts_one_epoch_and_does_not_rewind():
    sampler = Streamed(iter(PROMPTS), buffer_size=2)
    state = sampler.state_dict()
    assert sorted(ids(sampler.draw(7))) == ids(PROMPTS)
    refused("cannot be rewound", sampler.load_state_dict, state)
    refused(r"gave nothing in epoch 1.*__iter__ starts anew", sampler.draw, 1)


def test_a_buffer_of_one_keeps_the_order():
    assert ids(Streamed(Anew(), buffer_size=1).draw(14)) == ids(PROMPTS) * 2


NUM, MIXED = 40, 4
KNOWN = [Prompt(str(i), columns={"category": "mixed" if i < MIXED else "easy", "difficulty": i / NUM}) for i in range(NUM)]
MAKERS: dict[str, Callable[..., Any]] = {
    "Bandit/td": lambda seed=0: Bandit(KNOWN, seed),
    "Bandit/ucb": lambda seed=0: Bandit(KNOWN, seed, rule="ucb", temperature=0.1),
    "Thompson": lambda seed=0: Thompson(KNOWN, seed),
    "Prioritized": lambda seed=0: Prioritized(KNOWN, seed),
    "VarianceAware": lambda seed=0: VarianceAware(KNOWN, seed),
    "Curriculum": lambda seed=0: Curriculum(KNOWN, seed, edges=(0.2,), draws_per_stage=3),
}
MIXTURES = {"lists": lambda seed=0: Mixture(lists(), seed), "streams": lambda seed=0: Mixture(streams(), seed)}
every = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)


def totals(prompts: Sequence[Prompt]) -> list[list[float]]:
    """All samples of easy prompts are right, half of those of the others."""
    return [[1.0, 1.0, 1.0, 1.0] if p.columns["category"] == "easy" else [1.0, 0.0, 1.0, 0.0] for p in prompts]


def run(sampler: PromptSampler, steps: int, size: int = 6) -> list[list[str]]:
    drawn: list[list[str]] = []
    for _ in range(steps):
        prompts = sampler.draw(size)
        sampler.observe(prompts, totals(prompts))
        drawn.append([prompt.id for prompt in prompts])
    return drawn


@pytest.mark.parametrize("make", [*MAKERS.values(), *MIXTURES.values()], ids=[*MAKERS, *MIXTURES])
def test_resumed_is_uninterrupted_and_the_seed_decides(make: Callable[..., Any]):
    whole, first, second = make(), make(), make()
    assert isinstance(whole, PromptSampler)
    expected = run(whole, 12)
    run(first, 5)
    run(second, 2)
    second.load_state_dict(first.state_dict())
    assert run(second, 7) == expected[5:]
    assert run(make(1), 12) != expected


DRAWN = {
    "Bandit/td": "6482ede315",
    "Bandit/ucb": "e9e5ae41f4",
    "Thompson": "f0c9cbd1ff",
    "Prioritized": "7210e00c56",
    "VarianceAware": "9a52b8e056",
    "Curriculum": "dd7c62cb77",
}
"""A digest of what each draws in 12 steps of 50 prompts, more than there are."""


@for_each("name, digest", DRAWN.items())
def test_a_seed_draws_the_same_in_every_version_and_on_every_machine(name: str, digest: str):
    assert hashlib.sha256(repr(run(MAKERS[name](), 12, 50)).encode()).hexdigest()[:10] == digest


@every
def test_a_state_is_what_it_was_when_it_was_taken(make: Callable[..., Any]):
    part = make()
    run(part, 3)
    state, written = copy_state(part.state_dict(), hold=True), copy_state(part.state_dict())
    run(part, 3)
    assert copy_state(state) == written and json.loads(json.dumps(written)) == written


def test_thompson_draws_as_one_prompt_after_the_other_would():
    """Shares of 1,000 draws of one prompt, p from Beta(a, b), against as many by the plain loop; they differ by .022 or so."""
    right, wrong = [1.0, 0.3, 6.0, 2.0, 1e-4], [1.0, 0.3, 5.0, 9.0, 2.0]
    part, rng = Thompson(KNOWN[:5]), random.Random(0)
    part.right, part.wrong = np.array(right), np.array(wrong)
    found, expected = Counter(int(part.draw(1)[0].id) for _ in range(1000)), Counter[int]()
    for _ in range(1000):
        rates = [rng.betavariate(max(a, 1e-3), b) for a, b in zip(right, wrong, strict=True)]
        expected[max(range(5), key=lambda i: rates[i] * (1 - rates[i]))] += 1
    assert all(abs(found[i] - expected[i]) < 80 for i in range(5)) and len(expected) >= 4


def test_among_equal_chances_the_first_prompts_come_first():
    values = np.array([0.0, 2.0, 1.0, 2.0, 1.0])
    assert [largest(values, k)[:k].tolist() for k in (1, 3, 7)] == [[1], [1, 3, 2], [1, 3, 2, 4, 0]]


@every
def test_a_state_of_other_data_or_another_seed_is_refused(make: Callable[..., Any]):
    refused("has seed 1, this run has 0", make().load_state_dict, make(1).state_dict())


def share_of_mixed(drawn: list[list[str]]) -> float:
    flat = [int(name) < MIXED for step in drawn for name in step]
    return sum(flat) / len(flat)


@pytest.mark.parametrize("name", ["Bandit/td", "Bandit/ucb", "Thompson", "VarianceAware"])
def test_where_nine_of_ten_prompts_are_too_easy_it_draws_the_others(name: str):
    """Plain epochs give a tenth; every seed must give at least three times as much from the thirtieth step on."""
    plain = share_of_mixed(run(Shuffled(KNOWN, 0), 60)[30:])
    assert plain < 0.12
    for seed in range(3):
        assert share_of_mixed(run(MAKERS[name](seed), 60)[30:]) > 0.3


def test_old_evidence_fades_so_that_prompts_come_back():
    part = Thompson(KNOWN[:2], fade=0.5)
    part.learn({0: [True] * 8})
    before = part.right[0]
    for _ in range(6):
        part.learn({1: [True]})
    assert part.right[0] < before / 32


def test_samples_without_a_total_are_no_evidence():
    part = Thompson(KNOWN)
    part.observe(KNOWN[:1], [[float("nan"), 1.0]])
    assert (part.right[0], part.wrong[0]) == (0.8 + 1, 0.8)


def test_a_tracked_sampler_prefers_what_is_uncertain_and_draws_no_prompt_twice():
    """Weights are sqrt(v (1 - v)) + 0.05, v of sure prompts falls to nearly 1: mixed ones come more than twice as often."""
    part = Prioritized(KNOWN, least=0.01)
    drawn = run(part, 60)
    assert all(len(set(step)) == len(step) for step in drawn)
    assert part.weights[0] > 2 * part.weights[NUM - 1]
    assert share_of_mixed(drawn[30:]) > 0.15


def test_a_curriculum_opens_stage_by_stage():
    drawn = run(MAKERS["Curriculum"](), 6)
    first, later = ({int(name) for step in steps for name in step} for steps in (drawn[:3], drawn[3:]))
    assert max(first) <= 0.2 * NUM < max(later)


WORLDS: dict[str, tuple[list[dict[str, int]], tuple[float, ...]]] = {
    "mazes": ([{}], (2.0, 5.0)),
    "small_counts": ([{}], (2.0, 4.0)),
    "screens": ([{"presses": presses} for presses in (1, 2, 3)], (1.0, 2.0)),
}
"""Data sets of worlds, the settings of each table, and the edges of a curriculum."""


@pytest.mark.parametrize("name", WORLDS)
def test_a_curriculum_goes_by_the_difficulty_of_worlds(name: str):
    settings, edges = WORLDS[name]
    prompts = [prompt for more in settings for prompt in load(name, "datasets")(size=48, **more)]
    sampler = Curriculum(prompts, edges=edges, draws_per_stage=4)
    stages = [[int(prompt.columns["difficulty"]) for _ in range(4) for prompt in sampler.draw(12)] for _ in range(3)]
    assert max(stages[0]) == edges[0] < max(stages[1]) == edges[1] < max(stages[2])
    assert max(map(min, stages)) <= edges[0], "what is easy stays"


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


def test_a_look_ahead_ends_where_a_stream_would_be_read():
    sampler = Mixture(streams())
    assert [one.source for one in sampler.peek(4)] == ["a"]
    assert [one.source for one in sampler.draw(4)] == ["a", "b", "a", "b"]


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


OTHER_WEIGHTS = {"a": 0.2, "b": 0.3, "c": 0.5}
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: Shuffled(PROMPTS[1:]).load_state_dict(Shuffled(PROMPTS).state_dict()), "num_prompts 7, this run has 6"),
    (
        lambda: Streamed(Anew(), buffer_size=4).load_state_dict(Streamed(Anew(), buffer_size=3).state_dict()),
        "buffer_size 3, this run has 4",
    ),
    (lambda: Shuffled([]), "the data set has no prompts"),
    (lambda: Streamed([]).draw(1), "gave nothing in epoch 0"),
    (lambda: Streamed(Anew(), buffer_size=0), "buffer_size is 0"),
    (lambda: Bandit(KNOWN, column="kind"), "no column 'kind', by which the sampler tells categories apart"),
    (lambda: Curriculum(KNOWN, column="kind"), "None in column 'kind', by which the curriculum goes"),
    (lambda: Curriculum(KNOWN, edges=(0.5, 0.2)), "give rising numbers"),
    (lambda: Curriculum(KNOWN, edges=(-1.0,)), "no prompt has 'difficulty' <= -1, the first stage"),
    (lambda: Thompson([]), "needs all prompts before it draws"),
    (lambda: Marking("a", "kind")(Prompt("1")), "prompt '1' of the source 'a' has no column 'kind', its category"),
    (
        lambda: Mixture(lists(OTHER_WEIGHTS)).load_state_dict(Mixture(lists()).state_dict()),
        r"resume with the same \[\[data\]\] tables",
    ),
    (lambda: Mixture(prompts(3)), r"several data sets, and there is one: write a \[\[data\]\] table for each"),
    (
        lambda: Mixture(StreamedSources(streams().parts)),
        r"'b' of \[\[data\]\] is a stream.*give every \[\[data\]\] table a weight",
    ),
    (lambda: join_sources({"a": prompts(1), "b": []}, None), r"the source 'b' of \[\[data\]\] has no prompts: check its path"),
    (
        lambda: Balanced(prompts(2), 0, column="taste"),
        r"prompt '0' has no column 'taste', which sampler\.column names as its class",
    ),
    (lambda: Balanced(Stream(), 0, column="kind"), "the data set is a stream"),
]


@pytest.mark.parametrize(("make", "said"), REFUSED)
def test_data_and_states_it_cannot_use_are_refused(make: Callable[[], Any], said: str):
    refused(said, make)
