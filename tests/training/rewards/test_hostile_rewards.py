"""Rewards that raise what nobody expects, never end, answer what is no list of numbers, or change the process they run in."""

import asyncio
import os
import re
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from itertools import repeat
from math import inf
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.app.plugins.resolve import load
from mmrl.core.types import Group, Prompt, Sample, Scored
from mmrl.runtime.blame import describe, place_of, shown
from mmrl.runtime.net.loops import loop
from mmrl.runtime.process_state import process_state
from mmrl.runtime.workers import WorkerError, WorkerProcess
from mmrl.training.rewards.calls import Calling
from mmrl.training.rewards.runner import NamedReward, RewardError, RewardRunner

WAYS: dict[str, dict[str, Any]] = {"inline": {}, "thread": {"where": "thread"}, "timeout": {"timeout_s": 20.0}}


def group() -> Group:
    return Group(0, Prompt("p0", "?"), (Sample("a"), Sample("b")))


def run(function: Any, timeout_s: float | None = None, weight: float = 1.0, **call: Any) -> list[float]:
    mine = NamedReward("mine", function, weight, timeout_s, call=Calling(**call))
    [table] = RewardRunner([NamedReward("one", lambda g: [1.0] * len(g.samples)), mine]).score([group()])
    return table.values[:, 1].tolist()


class FalseError(Exception):
    """An exception that is false: `error or answer` would look for the answer."""

    def __bool__(self) -> bool:
        return False


class MuteError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


ENDS = (asyncio.CancelledError, CancelledError, BaseException, SystemExit)
"""Of what a loop or a program ends by."""
ODD = (GeneratorExit, StopIteration, FalseError, MuteError, RecursionError, MemoryError)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [*ENDS, *ODD])
def test_whatever_a_reward_raises_it_has_failed(kind: type[BaseException], way: str):
    error = kind("x")

    def reward(g: Group) -> list[float]:
        raise error

    with pytest.raises(RewardError, match=f"'mine' failed on 2 of 2 .*{kind.__name__}") as refused:
        run(reward, **WAYS[way])
    assert refused.value.__cause__ is error


@pytest.mark.parametrize("timeout_s", [None, 20.0])
@pytest.mark.parametrize("kind", ENDS)
def test_whatever_a_coroutine_raises_it_has_failed_and_the_loop_lives(kind: type[BaseException], timeout_s: float | None):
    async def reward(g: Group) -> list[float]:
        raise kind("x")

    with pytest.raises(RewardError, match=rf"'mine' failed on 2 of 2 .*{kind.__name__}"):
        run(reward, timeout_s)
    assert loop().is_running()


def test_an_interrupt_of_a_rewards_own_has_failed_and_one_of_the_terminal_leaves():
    def reward(g: Group) -> list[float]:
        raise KeyboardInterrupt

    before = signal.getsignal(signal.SIGINT)
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        with pytest.raises(KeyboardInterrupt):
            run(reward)
        signal.signal(signal.SIGINT, lambda number, frame: None)
        with pytest.raises(RewardError, match="KeyboardInterrupt"):
            run(reward)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_coroutine_that_cannot_be_cancelled_is_left_behind():
    over = False

    async def stubborn(g: Group) -> list[float]:
        while not over:
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue
        return [0.0, 0.0]

    try:
        with pytest.raises(RewardError, match="TimeoutError"):
            run(stubborn, 0.05)
    finally:
        over = True


class NoNumber:
    def __float__(self) -> float:
        raise SystemExit(0)

    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ([1.0, 10**400], r"answered 1000.*\(401 characters\)"),
        ([1.0, 10**5000], r"whose repr raises ValueError"),
        ([1.0, NoNumber()], "answered <NoNumber, whose repr raises RuntimeError>"),
        (repeat(1.0), "more than 2 values for the 2 samples"),
        ("12", "answered str"),
        (b"12", "answered bytes"),
        ({1.0: "a", 2.0: "b"}, "answered dict"),
        ({1.0, 2.0}, "answered set"),
        (["x" * 10_000, 1.0], r"\(10,002 characters\)"),
        ([{"a": inf, "b": -inf}, 1.0], "answered {'a': inf"),
        ([{"a": 1e308, "b": 1e308}, 1.0], "answered {'a': 1e"),
    ],
    ids=["large", "larger", "no number", "endless", "text", "bytes", "table", "set", "long", "no sum", "too large a sum"],
)
def test_what_is_no_list_of_numbers_is_refused_in_few_words(answer: Any, message: str):
    with pytest.raises(RewardError, match=f"reward 'mine' .*{message}") as refused:
        run(lambda g: answer)
    assert len(str(refused.value)) < 1000


@pytest.mark.parametrize(("parts", "said"), [({"much": 10**400}, "{'much'"), (5, "5 for"), ({"why": "because"}, "because")])
def test_parts_that_are_no_numbers_are_refused(parts: Any, said: str):
    scored = Scored(1.0)
    object.__setattr__(scored, "parts", parts)
    with pytest.raises(RewardError, match=rf"answered the parts .*{said}.* of prompt 'p0'.*by name"):
        run(lambda g: [scored] * 2)


@pytest.mark.parametrize("way", WAYS)
def test_a_generator_without_end_is_refused(way: str):
    with pytest.raises(RewardError, match="more than 2 values for the 2 samples"):
        run(lambda g: repeat(1.0), **WAYS[way])


def test_an_answer_for_a_whole_step_may_be_anything_too():
    class Whole:
        answer: Any = None

        def __call__(self, group: Group) -> list[float]: ...

        def score_all(self, groups: Any) -> Any:
            return self.answer

    whole = Whole()
    for answer, message in ((None, "NoListError"), (repeat(1.0), "more than 1 of 1 groups"), (3.0, "NoListError")):
        whole.answer = answer
        with pytest.raises(RewardError, match=message):
            RewardRunner([NamedReward("mine", whole)]).score([group()])


@pytest.fixture
def unchanged(tmp_path: Path) -> Iterator[Path]:
    before = process_state()
    yield tmp_path
    assert process_state() == before
    before.restore()


def changes(what: str, folder: Path) -> Any:
    change: dict[str, Callable[[], object]] = {
        "folder": lambda: os.chdir(folder),
        "dtype": lambda: torch.set_default_dtype(torch.float64),
        "device": lambda: torch.set_default_device("meta"),
        "deterministic": lambda: torch.use_deterministic_algorithms(not torch.are_deterministic_algorithms_enabled()),
        "gradients": lambda: torch.set_grad_enabled(False),
    }
    return lambda g: (change[what](), [1.0] * len(g.samples))[1]


WHAT = {"folder": "working directory", "dtype": "default dtype from float32 to float64", "deterministic": "deterministic"}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("what", WHAT)
def test_a_reward_that_changes_the_process_has_failed_and_it_is_put_back(what: str, way: str, unchanged: Path):
    who = "it" if way == "inline" else "one of the rewards 'one', 'mine'"
    with pytest.raises(RewardError, match=f"failed on 2 of 2 .*{who} changed .*{WHAT[what]}.*put back"):
        run(changes(what, unchanged), **WAYS[way])


def test_a_reward_that_runs_alone_in_a_thread_is_named(unchanged: Path):
    rewards = RewardRunner([NamedReward("mine", changes("folder", unchanged), call=Calling("thread"))])
    with pytest.raises(RewardError, match=r"'mine' failed on 2 of 2 .*it changed the working directory"):
        rewards.score([group()])


def test_a_default_device_is_put_back_and_one_that_is_only_logged_fails_alone(unchanged: Path):
    with pytest.raises(RewardError, match="it changed torch's default device from cpu to meta"):
        run(changes("device", unchanged))
    assert torch.zeros(1).device.type == "cpu"
    values = run(changes("folder", unchanged), weight=0.0)
    assert all(value != value for value in values)


def test_what_a_reward_changes_before_it_raises_is_put_back(unchanged: Path):
    def reward(g: Group) -> list[float]:
        os.chdir(unchanged)
        torch.set_default_dtype(torch.float64)
        raise ValueError("too bad")

    with pytest.raises(RewardError, match="ValueError: too bad"):
        run(reward)


def test_gradients_are_on_after_a_reward_that_turned_them_off(unchanged: Path):
    assert run(changes("gradients", unchanged)) == [1.0, 1.0] and torch.is_grad_enabled()


MINE = """
import asyncio

def helper(group):
    return [].pop()

def mine(group):
    if group.id == 1:
        raise SystemExit(0)
    if group.id == 2:
        raise asyncio.CancelledError
    return [helper(group) for sample in group.samples]
"""


def first_error(function: Any, index: int, **call: Any) -> str:
    rewards = RewardRunner([NamedReward("mine", function, call=Calling(**call))])
    with pytest.raises(RewardError) as refused:
        rewards.score([Group(index, Prompt("p"), (Sample("a"),))])
    rewards.close()
    return str(refused.value)


@pytest.mark.parametrize("call", [{}, {"where": "thread"}], ids=["inline", "thread"])
def test_the_users_own_file_and_line_stand_in_the_message(call: dict[str, Any], tmp_path: Path):
    (tmp_path / "mine.py").write_text(MINE)
    said = first_error(load(f"{tmp_path}/mine.py:mine", "rewards"), 0, **call)
    assert f"IndexError: pop from empty list ({tmp_path}/mine.py, line 5) (prompt 'p')" in said


def test_a_process_says_what_was_raised_where_and_does_not_leave(tmp_path: Path):
    (tmp_path / "mine.py").write_text(MINE)
    worker = WorkerProcess(load(f"{tmp_path}/mine.py:mine", "rewards"))
    for index, words in enumerate(("IndexError: pop .* line 5", "SystemExit: 0 .* line 9", "CancelledError: .* line 11")):
        with pytest.raises((IndexError, WorkerError)) as raised:
            worker(Group(index, Prompt("p"), (Sample("a"),)))
        assert re.search(words, describe(raised.value))
    worker.close()


def test_words_about_an_exception():
    assert describe(KeyError("a")) == "KeyError: 'a'" and place_of(KeyError("a")) == ""
    assert describe(MuteError()) == "MuteError: (its text raises RuntimeError)"
    assert shown("x" * 1000).endswith("... (1,002 characters)")
