"""Answers of rewards and what becomes of them, at the ends of floats and where other projects went wrong; previews of samples."""

import asyncio
import math
import threading
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from mmrl.algorithms.advantages.group import GroupNorm, LeaveOneOut
from mmrl.algorithms.presets import PRESETS
from mmrl.answers.boxes.box import Box
from mmrl.app.plugins.resolve import load
from mmrl.core.types import Group, Observation, Prompt, Request, Rollouts, Sample, Scored, Status, Turn
from mmrl.flow.schedules import Full
from mmrl.training.collect import score_previews
from mmrl.training.rewards.calls import Calling
from mmrl.training.rewards.runner import NamedReward, RewardError, RewardRunner, Transform, refuse_overflow
from tests.support import rows as made
from tests.support.each import for_each
from tests.support.flow_fakes import FakeFlowPolicy, nearness, prompts
from tests.support.refused import refused
from tests.support.rows import Nothing
from tests.support.trainers import make_trainer


def group(count: int = 4, id: int = 0) -> Group:
    return Group(id, Prompt(f"p{id}", "?"), tuple(Sample(text=str(i)) for i in range(count)))


def ones(g: Group) -> list[float]:
    return [1.0] * len(g.samples)


def run(function, groups=None, **kwargs):
    return RewardRunner([NamedReward("mine", function, **kwargs)]).score(groups or [group()])


def test_values_and_parts_reach_their_sample():
    [table] = run(lambda g: [Scored(float(s.text), {"twice": 2.0 * float(s.text)}) for s in g.samples])
    assert table.values[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0]
    assert [parts["mine/twice"] for parts in table.parts] == [0.0, 2.0, 4.0, 6.0]


def test_async_rewards_run_together():
    running, all_run = list[int](), asyncio.Event()

    async def slow(g: Group) -> list[float]:
        running.append(g.id)
        if len(running) == 5:
            all_run.set()
        await asyncio.wait_for(all_run.wait(), 60)
        return [1.0] * len(g.samples)

    tables = run(slow, [group(2, i) for i in range(5)])
    assert all(table.values.eq(1).all() for table in tables)


def test_none_for_a_whole_group_is_na_for_part_of_it_failed_and_nan_is_failed_not_zero():
    [table] = run(lambda g: [None] * 4)
    assert (table.status == Status.NA).all() and table.values.isnan().all()
    [table] = run(lambda g: [math.nan, 1.0, 1.0, 1.0])
    assert table.status[0, 0] == Status.FAILED and math.isnan(table.values[0, 0])
    [table] = run(lambda g: [None, 1.0, 1.0, 1.0])
    assert table.status[:, 0].tolist() == [Status.FAILED, Status.OK, Status.OK, Status.OK]
    with pytest.raises(RewardError, match="None is for whole groups, since samples without a score cannot be compared"):
        run(lambda g: [None, 1.0, 1.0, 1.0], max_failed=0.0)


def test_numbers_by_name_are_parts_and_their_sum_counts():
    one, two = {"right": 1.0, "short": 0.25}, {"score": 0.5, "right": np.float32(1.0)}
    [table] = run(lambda g: [one, two, {"right": math.nan}, one])
    assert table.values[:, 0].tolist()[:2] == [1.25, 0.5] and table.status[:, 0].tolist() == [0, 0, Status.FAILED, 0]
    assert table.parts[0] == {"mine/right": 1.0, "mine/short": 0.25} and table.parts[1] == {"mine/right": 1.0}
    for broken in ({}, {"right": "B"}, {"score": "B"}, {"score": 1.0, "said": "B"}):
        refused("numbers by name", run, lambda g, broken=broken: [broken] * 4, error=RewardError)


@dataclass(frozen=True)
class Named:
    """Answers each sample with numbers by name."""

    pointwise = True

    def __call__(self, g: Group) -> list[dict[str, float]]:
        return [{"right": 1.0, "short": 0.25} for _ in g.samples]


@for_each("call", [Calling(cache=8), Calling(where="thread")])
def test_numbers_by_name_survive_a_cache_and_a_thread(call):
    runner = RewardRunner([NamedReward("mine", Named(), call=call)])
    for _ in range(2):
        [table] = runner.score([group()])
        assert table.values[:, 0].tolist() == [1.25] * 4 and table.parts[3] == {"mine/right": 1.0, "mine/short": 0.25}


def of_source(source: str, id: int) -> Group:
    return Group(id, Prompt(f"{source}/{id}", "?", source=source), (Sample(text="0"), Sample(text="1")))


@dataclass
class Together:
    """Scores a whole step at once."""

    seen: list[str] = field(default_factory=list)

    def score_all(self, groups: list[Group]) -> list[list[float]]:
        self.seen += [one.prompt.source for one in groups]
        return [[float(one.id)] * len(one.samples) for one in groups]

    def __call__(self, one: Group) -> list[float]:
        raise AssertionError("asked one by one")


def test_a_reward_of_some_sources_is_asked_for_those_alone():
    seen: list[str] = []

    def single(one: Group) -> list[float]:
        seen.append(one.prompt.source)
        return [2.0] * len(one.samples)

    together = Together()
    runner = RewardRunner(
        [
            NamedReward("single", single, sources=("a",)),
            NamedReward("together", together, sources=("a", "b")),
            NamedReward("together_a", together, sources=("a",)),
            NamedReward("all", ones),
        ]
    )
    tables = runner.score([of_source(source, i) for i, source in enumerate("abca")])
    assert seen == ["a", "a"] and together.seen == ["a", "b", "a"]
    statuses = [table.status[0].tolist() for table in tables]
    ok, na = int(Status.OK), int(Status.NA)
    assert statuses == [[ok, ok, ok, ok], [na, ok, na, ok], [na, na, na, ok], [ok, ok, ok, ok]]
    assert [table.values[1, 1].item() for table in (tables[0], tables[1], tables[3])] == [0.0, 1.0, 3.0]
    [table] = runner.score([of_source("c", 0)])
    assert together.seen == ["a", "b", "a"] and table.status[0].tolist() == [na, na, na, ok], "nobody has a sample to score"


def test_exception_fails_its_group_only_within_the_budget_and_beyond_it_the_first_error_is_raised():
    def fussy(g: Group) -> list[float]:
        if g.id == 1:
            raise RuntimeError("no such file: scores.bin")
        return [1.0] * 4

    tables = run(fussy, [group(4, i) for i in range(3)])
    assert [int(t.status[0, 0]) for t in tables] == [Status.OK, Status.FAILED, Status.OK]
    refused(r"'mine' failed on 4 of 4 .*no such file: scores.bin.*'p1'", run, fussy, [group(4, 1)], error=RewardError)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([1.0, 2.0], r"answered 2 values for the 4 samples of prompt 'p0'"),
        (1.0, r"answered float for prompt 'p0': return a list"),
        ([1.0, "yes", 1.0, 1.0], r"answered 'yes' for a sample of prompt 'p0'"),
        ([1.0, math.inf, 1.0, 1.0], r"answered inf .* must be finite"),
        ([1.0, 1e39, 1.0, 1.0], r"answered 1e\+39 .* must be finite"),
        (torch.ones(4, 2), r"answered tensor.* for a sample of prompt 'p0'"),
    ],
    ids=["count", "no list", "not a number", "infinite", "infinite in float32", "a table"],
)
def test_broken_contract_is_refused(answer, message):
    refused(message, run, lambda g: answer, error=RewardError)


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ([], "no reward is configured"),
        ([NamedReward("a", ones), NamedReward("a", ones)], r"\['a'\] are used twice"),
        ([NamedReward("a", ones, weight=0.0)], "weight 0"),
    ],
    ids=["none", "twice", "all weight 0"],
)
def test_refused_at_build(rewards, message):
    refused(message, RewardRunner, rewards)


def test_a_generator_may_answer_and_may_raise():
    def counting(g: Group):
        yield from map(float, range(len(g.samples)))

    def breaking(g: Group):
        yield 1.0
        raise RuntimeError("halfway")

    assert run(counting)[0].values[:, 0].tolist() == [0, 1, 2, 3]
    refused(r"failed on 4 of 4 .*RuntimeError: halfway", run, breaking, error=RewardError)


def test_a_sample_whose_world_broke_has_no_score():
    said = Turn("look", (0, 1), Observation("OSError: the simulator is gone"))
    broken = Sample(text="9", turns=(said,), ended="error")
    mixed = Group(0, Prompt("p", "?"), (Sample(text="1"), broken, Sample(text="2")))
    [table] = run(lambda g: [float(s.text) for s in g.samples], [mixed])
    assert table.status[:, 0].tolist() == [Status.OK, Status.FAILED, Status.OK]
    assert table.values[0, 0] == 1.0 and math.isnan(table.values[1, 0])
    with pytest.raises(RewardError, match="the world of a sample of prompt 'p' broke: OSError: the simulator is gone"):
        run(lambda g: [1.0 for _ in g.samples], [mixed], max_failed=0.1)


STEPS = 4
PLAN = Full(STEPS, previews=True).at(0)


def rollouts() -> Rollouts:
    return FakeFlowPolicy().rollout([Request(prompt, 3, i, seed=i) for i, prompt in enumerate(prompts())], PLAN)


def scored(drawn: Rollouts, *rewards: Any) -> Rollouts:
    runner = RewardRunner([NamedReward(f"r{i}", one, max_failed=1.0) for i, one in enumerate(rewards)])
    tables = dict(zip([group.id for group in drawn.groups], runner.score(drawn.groups), strict=True))
    return score_previews(runner, drawn, runner.scores(drawn, tables))


def of_one(group: Group, shown: Any) -> float:
    sample = replace(group.samples[0], image=shown, previews=())
    return nearness(replace(group, samples=(sample,)))[0]


def test_they_are_scored_in_place_and_then_gone():
    drawn = rollouts()
    for (group, before), (_, after) in zip(drawn.samples(), scored(drawn, nearness, nearness).samples(), strict=True):
        wanted = [2 * of_one(group, shown) for shown in (*before.previews, before.image)]
        assert [step for step, _ in after.values] == list(range(STEPS)) and after.previews == ()
        assert [value for _, value in after.values] == pytest.approx(wanted, abs=1e-5)


def test_a_step_without_a_reward_is_no_number():
    drawn = rollouts()
    least = min(value for _, sample in scored(drawn, nearness).samples() for _, value in sample.values) + 1e-3

    def applies_near(group: Group) -> list[float | None]:
        return [value if value > least else None for value in nearness(group)]

    values = [value for _, sample in scored(drawn, applies_near).samples() for _, value in sample.values]
    assert 0 < sum(value != value for value in values) < len(values) / 2


def test_a_run_asks_each_reward_once_per_step_of_a_sample():
    asked: list[int] = []

    def counted(group: Group) -> list[float]:
        asked.append(len(group.samples))
        return [1 / (1 - value) for value in nearness(group)]

    preset = PRESETS["vgpo"]
    algorithm = replace(preset, schedule=Full(STEPS, previews=True), group_size=4)
    assert make_trainer(algorithm, counted).step()["policy/grad_norm"] > 0
    assert set(asked) == {4} and len(asked) % STEPS == 0 and len(asked) >= 2 * STEPS


VALUES = [0.78, 0.80, 0.81, 0.85, 0.79, 0.82, 0.84]


def judged(values: list[float | None]) -> tuple[RewardRunner, Rollouts, Group]:
    """A group of eight, scored by `values`; NaN stands for a judge that could not be reached."""
    group = Group(0, Prompt("p"), tuple(Sample(str(i)) for i in range(len(values))))
    n = len(values)
    rows = Rollouts((group,), torch.zeros(n, dtype=torch.long), torch.arange(n), torch.ones(n, 1, dtype=torch.bool), Nothing())
    return RewardRunner([NamedReward("judge", lambda g: values)]), rows, group


def test_a_failed_judgement_is_not_a_zero():
    """flow_grpo and Flow-Factory write 0: all others then get nearly the same advantage and the failure -2.5."""
    runner, rows, group = judged([*VALUES, math.nan])
    found = runner.scores(rows, {0: runner.score([group])[0]})
    credit = GroupNorm()(found, rows)
    assert not credit.keep[7] and credit.values[7] == 0
    alone = GroupNorm()(made.scores(torch.tensor(VALUES)[:, None]), made.rollouts(torch.ones(7, 1)))
    torch.testing.assert_close(credit.values[:7], alone.values)
    assert credit.values[:7].min() < -1 and credit.values.max() > 1
    as_zero = GroupNorm()(made.scores(torch.tensor([*VALUES, 0.0])[:, None]), made.rollouts(torch.ones(8, 1)))
    assert as_zero.values[:7].min() > 0.2, "what the zero would have done"


def test_a_stuck_reward_does_not_keep_the_run_nor_its_end():
    """Elsewhere it ends in a collective's timeout; threads left behind are daemons, so the program can end."""
    never, before = threading.Event(), set(threading.enumerate())

    def stuck(g: Group) -> list[float]:
        never.wait()
        return [1.0]

    with pytest.raises(RewardError, match=r"no answer within 0\.05 s"):
        RewardRunner([NamedReward("stuck", stuck, timeout_s=0.05)]).score([judged([1.0])[2]])
    left = set(threading.enumerate()) - before
    assert left and all(thread.daemon for thread in left)
    never.set()


def test_a_box_without_label_does_not_break_the_matching():
    """VLM-R1's greedy matching uses a label that may never have been set."""
    asked = Group(0, Prompt("p", answer=(Box(0, 0, 10, 10, label="cat"),)), (Sample("[0, 0, 10, 10]"),))
    values = [load("multi_box", "rewards")(space="pixel", labels=labels)(asked)[0].value for labels in (True, False)]
    assert values == [0, 1]


@pytest.mark.parametrize("size", [1.0, 1e25, 1e30, 1e38])
def test_a_spread_beyond_float32_gives_the_advantages_of_a_small_one(size: float):
    rows, scores = made.rollouts(torch.ones(4, 1)), made.scores(torch.tensor([[0.0], [0.0], [0.0], [size]]))
    credit = GroupNorm(ddof=0, eps=0.0)(scores, rows)
    # mean 1/4, deviation sqrt(3)/4, in units of size
    expected = torch.tensor([-1.0, -1.0, -1.0, 3.0]) / math.sqrt(3)
    torch.testing.assert_close(credit.values[:, 0], expected)
    assert credit.values.dtype == torch.float32
    assert float(LeaveOneOut()(scores, rows).values[3, 0]) == pytest.approx(size)


def test_a_total_beyond_float32_is_refused_with_the_name_of_its_reward_and_so_is_what_a_transform_makes_infinite():
    values = torch.tensor([[1.0, 1e30]])
    refuse_overflow(made.scores(values, [1.0, 1e3]))
    with pytest.raises(RewardError, match=r"reward 'reward_1': 1e\+30 times its weight 1e\+10; lower the weight"):
        refuse_overflow(made.scores(values, [1.0, 1e10]))
    runner = RewardRunner([NamedReward("steep", lambda group: [1e30], transform=Transform(scale=1e-30))])
    with pytest.raises(RewardError, match=r"reward 'steep' is 1e\+60 after its transform of 1e\+30: widen transform\.scale"):
        runner.score([Group(0, Prompt("p", "?"), (Sample(text="x"),))])
