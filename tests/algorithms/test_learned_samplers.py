"""Samplers that learn: they draw what teaches, resume exactly, and refuse data they cannot tell apart."""

import hashlib
import json
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from mmrl.algorithms.samplers.base import Shuffled
from mmrl.algorithms.samplers.learned import Bandit, Curriculum, Thompson, VarianceAware, largest
from mmrl.algorithms.samplers.tracked import Prioritized
from mmrl.app.plugins.resolve import load
from mmrl.core.protocols import PromptSampler
from mmrl.core.types import Prompt
from mmrl.training.checkpoints.state import copy_state
from tests.support.each import for_each

NUM, MIXED = 40, 4
PROMPTS = [Prompt(str(i), columns={"category": "mixed" if i < MIXED else "easy", "difficulty": i / NUM}) for i in range(NUM)]
MAKERS: dict[str, Callable[..., Any]] = {
    "Bandit/td": lambda seed=0: Bandit(PROMPTS, seed),
    "Bandit/ucb": lambda seed=0: Bandit(PROMPTS, seed, rule="ucb", temperature=0.1),
    "Thompson": lambda seed=0: Thompson(PROMPTS, seed),
    "Prioritized": lambda seed=0: Prioritized(PROMPTS, seed),
    "VarianceAware": lambda seed=0: VarianceAware(PROMPTS, seed),
    "Curriculum": lambda seed=0: Curriculum(PROMPTS, seed, edges=(0.2,), draws_per_stage=3),
}
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


@every
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
    part, rng = Thompson(PROMPTS[:5]), random.Random(0)
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
    with pytest.raises(ValueError, match="has seed 1, this run has 0"):
        make().load_state_dict(make(1).state_dict())


def share_of_mixed(drawn: list[list[str]]) -> float:
    flat = [int(name) < MIXED for step in drawn for name in step]
    return sum(flat) / len(flat)


@pytest.mark.parametrize("name", ["Bandit/td", "Bandit/ucb", "Thompson", "VarianceAware"])
def test_where_nine_of_ten_prompts_are_too_easy_it_draws_the_others(name: str):
    """Plain epochs give a tenth; every seed must give at least three times as much from the thirtieth step on."""
    plain = share_of_mixed(run(Shuffled(PROMPTS, 0), 60)[30:])
    assert plain < 0.12
    for seed in range(3):
        assert share_of_mixed(run(MAKERS[name](seed), 60)[30:]) > 0.3


def test_old_evidence_fades_so_that_prompts_come_back():
    part = Thompson(PROMPTS[:2], fade=0.5)
    part.learn({0: [True] * 8})
    before = part.right[0]
    for _ in range(6):
        part.learn({1: [True]})
    assert part.right[0] < before / 32


def test_samples_without_a_total_are_no_evidence():
    part = Thompson(PROMPTS)
    part.observe(PROMPTS[:1], [[float("nan"), 1.0]])
    assert (part.right[0], part.wrong[0]) == (0.8 + 1, 0.8)


def test_a_tracked_sampler_prefers_what_is_uncertain_and_draws_no_prompt_twice():
    """Weights are sqrt(v (1 - v)) + 0.05, v of sure prompts falls to nearly 1: mixed ones come more than twice as often."""
    part = Prioritized(PROMPTS, least=0.01)
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


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Bandit(PROMPTS, column="kind"), "no column 'kind', by which the sampler tells categories apart"),
        (lambda: Curriculum(PROMPTS, column="kind"), "None in column 'kind', by which the curriculum goes"),
        (lambda: Curriculum(PROMPTS, edges=(0.5, 0.2)), "give rising numbers"),
        (lambda: Curriculum(PROMPTS, edges=(-1.0,)), "no prompt has 'difficulty' <= -1, the first stage"),
        (lambda: Thompson([]), "needs all prompts before it draws"),
    ],
)
def test_data_it_cannot_use_is_refused(make: Callable[[], Any], said: str):
    with pytest.raises(ValueError, match=said):
        make()
