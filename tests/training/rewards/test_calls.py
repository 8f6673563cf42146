"""Where and how often rewards are called: threads, processes, loops, further attempts, devices, one call for several entries."""

import asyncio
import os
import random
import signal
import threading
import time
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from mmrl.app.plugins.resolve import load
from mmrl.core.types import Group, Prompt, Scored, Status
from mmrl.runtime import workers
from mmrl.runtime.blame import RewardUnavailableError
from mmrl.runtime.calls import Threads, settle
from mmrl.runtime.net.clocks import CallClock
from mmrl.runtime.workers import WorkerError, WorkerProcess, living
from mmrl.training.rewards.calls import Calling
from mmrl.training.rewards.runner import NamedReward, RewardError, RewardRunner, Transform
from tests.policies.video.test_workers import WhenStopped
from tests.support.refused import refused
from tests.training.rewards.test_rewards import group

NOW = {"pause_s": 0.0}


def groups(count: int) -> list[Group]:
    return [group(2, i) for i in range(count)]


def runner(function: Any, **call: Any) -> RewardRunner:
    own = {key: call.pop(key) for key in ("weight", "timeout_s", "max_failed", "transform") if key in call}
    return RewardRunner([NamedReward("mine", function, call=Calling(**call), **own)])


def status(tables) -> list[int]:
    return [int(table.status[0, 0]) for table in tables]


def answered(tables) -> list[list[float]]:
    return [table.values[:, 0].tolist() for table in tables]


def numbers(g: Group) -> list[float]:
    return [float(s.text or "nan") for s in g.samples]


def test_a_job_in_a_thread_answers_or_fails_but_never_stays_open():
    answered, failed = Future[Any](), Future[Any]()
    settle(answered, lambda: [1.0])
    settle(failed, lambda: [1 / 0])
    assert answered.result(0) == [1.0]
    assert isinstance(failed.exception(0), ZeroDivisionError)


@pytest.mark.parametrize(("call", "main"), [({}, 1), ({"where": "thread"}, 0), ({"workers": 2}, 0), ({"timeout_s": 9.0}, 0)])
def test_plain_functions_run_without_gradient_in_the_main_thread_unless_a_thread_helps(call, main):
    def here(g: Group) -> list[Scored]:
        is_main = threading.current_thread() is threading.main_thread()
        return [Scored(1.0, {"main": float(is_main), "grad": float(torch.is_grad_enabled())}) for _ in g.samples]

    [table] = runner(here, **call).score([group()])
    assert (table.parts[0]["mine/main"], table.parts[0]["mine/grad"]) == (main, 0)


def test_groups_are_scored_while_others_are_sampled():
    """What is slow starts in a thread when its group arrives, not when the tables are asked for."""
    started = threading.Event()

    def slow(g: Group) -> list[float]:
        assert threading.current_thread() is not threading.main_thread()
        started.set()
        return numbers(g)

    with runner(slow).scoring(beside=True) as scoring:
        scoring.add(groups(1))
        assert started.wait(60)
        scoring.add([group(2, 7)])
        assert answered(scoring.tables()) == [[0, 1], [0, 1]]


def test_threads_score_several_groups_at_once_and_keep_order():
    both = threading.Barrier(2, timeout=60)

    def meet(g: Group) -> list[float]:
        both.wait()
        return [float(g.id)] * 2

    tables = runner(meet, workers=2).score(groups(4))
    assert [float(table.values[0, 0]) for table in tables] == [0, 1, 2, 3]


def test_threads_begin_as_jobs_come_and_all_of_them_where_jobs_wait_for_each_other():
    threads, everyone = Threads(8, "late"), threading.Barrier(8, timeout=30)
    assert [threads.submit(partial(abs, i)).result() for i in range(3)] == [0, 1, 2]
    assert sum(thread.name.startswith("late-") for thread in threading.enumerate()) <= 3
    assert sorted(one.result() for one in [threads.submit(everyone.wait) for _ in range(8)]) == [*range(8)]


def test_rewards_run_beside_each_other():
    both = threading.Barrier(2, timeout=60)

    def meet(g: Group) -> list[float]:
        both.wait()
        return numbers(g)

    rewards = [NamedReward("a", meet, call=Calling("thread")), NamedReward("b", lambda g: meet(g))]
    [table] = RewardRunner(rewards).score([group()])
    assert (table.status == Status.OK).all()


def with_alarm(g: Group) -> list[float]:
    """Signals work in a main thread only."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    return numbers(g)


def stops_at_group_1(g: Group) -> list[float]:
    if g.id == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return numbers(g)


def not_picklable_error(g: Group) -> list[float]:
    raise type("OddError", (Exception,), {})("strange")


def test_a_process_has_a_main_thread_of_its_own():
    assert status(runner(with_alarm, where="thread", max_failed=1.0).score([group()])) == [Status.FAILED]
    with closing(runner(with_alarm, where="process")) as rewards:
        assert answered(rewards.score([group()])) == [[0, 1, 2, 3]]


def test_closing_ends_the_processes():
    before = set(living)
    rewards = runner(numbers, where="process", workers=2)
    rewards.score(groups(4))
    started = set(living) - before
    assert 1 <= len(started) <= 2 and all(process.poll() is None for process in started)
    rewards.close()
    assert all(process.poll() is not None for process in started)


def test_a_process_that_hangs_is_killed_and_the_next_group_is_scored(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(workers, "SilenceTimer", WhenStopped)
    with closing(runner(stops_at_group_1, where="process", timeout_s=60.0)) as rewards:
        assert status(rewards.score(groups(3))) == [Status.OK, Status.FAILED, Status.OK]


def test_an_exception_that_cannot_travel_is_told():
    with closing(WorkerProcess(not_picklable_error)) as worker, pytest.raises(WorkerError, match="OddError: strange"):
        worker(group())


def test_what_cannot_go_to_a_process_is_refused_at_build():
    refused(r"cannot be sent to another process.*top of a file", runner, lambda g: [1.0], where="process")


def test_a_plug_in_file_works_in_a_process(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import dataclass\n@dataclass(frozen=True)\nclass Mine:\n    k: float = 2.0\n"
        "    def __call__(self, group):\n        return [self.k * len(s.text) for s in group.samples]\n"
    )
    with closing(runner(load(str(file), "rewards")(k=3.0), where="process")) as rewards:
        assert answered(rewards.score([group(2)])) == [[3, 3]]


class Flaky:
    """Raises at its first calls."""

    def __init__(self, times: int, error: Exception = OSError("busy")) -> None:
        self.times, self.error, self.calls = times, error, 0

    def __call__(self, g: Group) -> list[float]:
        self.calls += 1
        if self.calls <= self.times:
            raise self.error
        return numbers(g)


def later(reward: Flaky) -> Any:
    async def call(g: Group) -> list[float]:
        return reward(g)

    return call


@pytest.mark.parametrize("kind", [lambda reward: reward, later], ids=["def", "async def"])
def test_attempts_go_on_and_end(kind: Any):
    rewards = runner(kind(mended := Flaky(2)), retries=2, **NOW)
    assert status(rewards.score([group()])) == [Status.OK]
    assert mended.calls == 3 and rewards.drain_metrics()["reward/mine/retried"] == 2
    broken = Flaky(9)
    refused("busy", runner(kind(broken), retries=2, **NOW).score, [group()], error=RewardError)
    assert broken.calls == 3


def test_a_missing_package_stops_the_run_at_once():
    reward = Flaky(9, ModuleNotFoundError("No module named 'cv3'; pip install 'mmrl[rewards]'", name="cv3"))
    with pytest.raises(RewardError, match=r"'mine' lacks a package.*mmrl\[rewards\]"):
        runner(reward, retries=5, max_failed=1.0, **NOW).score([group()])
    assert reward.calls == 1


def test_a_reward_that_is_gone_stops_the_run_unless_it_is_only_logged():
    def gone(g: Group) -> list[float]:
        raise RewardUnavailableError("server is gone")

    refused("server is gone", runner(gone, max_failed=1.0, retries=3, **NOW).score, [group()], error=RewardUnavailableError)
    rewards = [NamedReward("one", numbers), NamedReward("two", gone, weight=0.0)]
    [table] = RewardRunner(rewards).score([group()])
    assert (table.status[:, 1] == Status.FAILED).all() and (table.status[:, 0] == Status.OK).all()


@pytest.mark.parametrize("answer", [[1.0], [1.0, 2.0, 3.0, float("inf")], "abcd", 3.0, [object()] * 4, (1 / 0 for _ in "raises")])
def test_a_logged_reward_may_break_its_contract(answer):
    rewards = [NamedReward("one", numbers), NamedReward("two", lambda g: answer, weight=0.0)]
    [table] = RewardRunner(rewards).score([group()])
    assert (table.status[:, 1] == Status.FAILED).all()
    assert table.values[:, 0].tolist() == [0, 1, 2, 3]


def test_async_rewards_keep_one_loop_from_step_to_step():
    """A semaphore made in one step and waited for in the next: with a loop per step this dies."""
    made: dict[str, Any] = {}

    async def judge(g: Group) -> list[float]:
        limit = made.setdefault("limit", asyncio.Semaphore(1))
        made.setdefault("loops", set()).add(id(asyncio.get_running_loop()))
        async with limit:
            await asyncio.sleep(0.001)
        return numbers(g)

    rewards = runner(judge)
    for _ in range(3):
        assert status(rewards.score(groups(4))) == [Status.OK] * 4
    assert len(made["loops"]) == 1


def test_async_rewards_are_limited():
    running, most, both = 0, 0, asyncio.Barrier(2)

    async def slow(g: Group) -> list[float]:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.wait_for(both.wait(), 60)
        await asyncio.sleep(0.005)
        running -= 1
        return numbers(g)

    runner(slow, workers=2).score(groups(6))
    assert most == 2


def sleepy(g: Group) -> list[float]:
    time.sleep(60 if g.id == 0 else 0)
    return numbers(g)


async def sleepy_async(g: Group) -> list[float]:
    await asyncio.sleep(60 if g.id == 0 else 0)
    return numbers(g)


@pytest.mark.parametrize("function", [sleepy, sleepy_async])
def test_a_timeout_is_failed_and_others_answer(function: Any, monkeypatch: pytest.MonkeyPatch):
    looks = iter([0.0, 9.0])
    monkeypatch.setattr(CallClock, "seconds", lambda clock: next(looks, 0.0))
    assert status(runner(function, timeout_s=0.1, workers=1).score(groups(2))) == [Status.FAILED, Status.OK]


def test_a_function_that_returns_an_awaitable_is_awaited():
    async def later(k: float, g: Group) -> list[float]:
        return [k] * len(g.samples)

    assert runner(partial(later, 2.0)).score([group()])[0].values[0, 0] == 2
    assert runner(lambda g: later(3.0, g)).score([group()])[0].values[0, 0] == 3


@dataclass(frozen=True)
class Counting:
    threshold: float = 0.5
    calls: list[int] = field(default_factory=list, compare=False)

    def __call__(self, g: Group) -> list[float]:
        self.calls.append(g.id)
        return numbers(g)


def test_equal_rewards_are_asked_once():
    first, equal, other = Counting(), Counting(), Counting(0.9)
    rewards = [NamedReward("a", first), NamedReward("b", equal, weight=0.0), NamedReward("c", other)]
    [table] = RewardRunner(rewards).score([group()])
    assert (len(first.calls), len(equal.calls), len(other.calls)) == (1, 0, 1)
    assert (table.values[:, 0] == table.values[:, 1]).all()


class WholeStep:
    def __init__(self, short: bool = False) -> None:
        self.calls, self.short = list[int](), short

    def __call__(self, g: Group) -> list[float]:
        raise AssertionError("score_all is asked instead")

    def score_all(self, all_groups: list[Group]) -> list[list[float]]:
        self.calls.append(len(all_groups))
        return [numbers(g) for g in all_groups][: len(all_groups) - self.short]


def test_a_whole_step_in_one_call():
    reward = WholeStep()
    with runner(reward).scoring(beside=True) as scoring:
        scoring.add(groups(2))
        scoring.add([group(3, 5)])
        assert answered(scoring.tables()) == [[0, 1], [0, 1], [0, 1, 2]]
    assert reward.calls == [3]
    refused("answered for 1 of 2 groups", runner(WholeStep(short=True)).score, groups(2), error=RewardError)


class Movable:
    def __init__(self) -> None:
        self.moves: list[str] = []

    def to(self, device: str) -> None:
        self.moves.append(device)

    def __call__(self, g: Group) -> list[float]:
        assert self.moves[-1] == "cuda:9"
        return numbers(g)


def test_a_model_is_moved_once_per_step():
    for settings, moves in (({"rest_on": "cpu"}, ["cuda:9", "cpu"] * 2), ({}, ["cuda:9"])):
        reward = Movable()
        rewards = runner(reward, run_on="cuda:9", **settings)
        assert reward.moves == []
        for _ in range(2):
            rewards.score(groups(3))
        assert reward.moves == moves


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"where": "inline", "timeout_s": 1.0}, "inline, where nothing can stop it"),
        ({"run_on": "cuda"}, r"no method to\(device\)"),
        ({"rest_on": "cpu"}, "rest_on is 'cpu'"),
        ({"retries": -1}, "it must be 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    refused(message, runner, numbers, **settings)


def test_rewards_in_threads_cannot_change_sampling():
    def greedy_for_randomness(g: Group) -> list[float]:
        _ = torch.rand(3), random.random(), np.random.rand()
        return numbers(g)

    def draw() -> tuple[float, ...]:
        # not random.random(): the type checks of these tests draw from it themselves
        return float(torch.rand(())), float(np.random.rand())

    for call in ({}, {"where": "thread"}):
        _ = torch.manual_seed(7), np.random.seed(7)
        expected = draw()
        _ = torch.manual_seed(7), np.random.seed(7)
        runner(greedy_for_randomness, **call).score(groups(2))
        assert draw() == expected


def test_transform_counts_and_raw_is_logged():
    [table] = runner(numbers, transform=Transform(scale=2.0, shift=-1.0, high=1.5)).score([group()])
    assert table.values[:, 0].tolist() == [0.5, 1.0, 1.5, 1.5]
    assert [parts["mine/raw"] for parts in table.parts] == [0, 1, 2, 3]
    refused("transform.scale is 0", Transform, scale=0.0)


def test_measures_tell_seconds_and_start_again():
    rewards = runner(numbers)
    rewards.score(groups(3))
    found = rewards.drain_metrics()
    assert 0 <= found["time/reward/mine/p50_s"] <= found["time/reward/mine/p95_s"] < 5
    assert rewards.drain_metrics() == {}


def test_a_group_without_samples_is_an_error():
    refused("'p3' has no samples", runner(numbers).score, [Group(3, Prompt("p3"), ())], error=RewardError)


def test_pauses_between_tries_double_up_to_a_minute(monkeypatch: pytest.MonkeyPatch):
    pauses: list[float] = []
    monkeypatch.setattr("mmrl.training.rewards.calls.time.sleep", pauses.append)

    def broken(g: Group) -> list[float]:
        raise RuntimeError("not today")

    runner(broken, pause_s=2.0, retries=7, max_failed=1.0).score([group()])
    # 2, 4, 8, .. seconds and at most 60, each a quarter shorter or longer by chance
    expected = [2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    assert len(pauses) == 7 and all(0.75 * e <= pause <= 1.25 * e for pause, e in zip(pauses, expected, strict=True))
