"""Worlds are called in threads, processes or the event loop, within a time limit; a broken one is opened again with its turns."""

import asyncio
import gc
import logging
import os
import random
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from mmrl.core.episodes import Environment, Limits
from mmrl.core.types import Observation, Prompt, Turn
from mmrl.runtime.process_state import put_aside, random_state, take_back
from mmrl.runtime.workers import WorkerError
from mmrl.training.worlds import runner as worlds
from mmrl.training.worlds.runner import LONGEST_TEXT, WorldCalling, WorldRunner, environment_of
from tests.support.refused import refused

LIMITS = Limits(timeout_s=60.0)
PROMPT = Prompt("p")


def turn(text: str) -> Turn:
    return Turn(text, (0, 1))


@dataclass
class Counting:
    """Counts its turns, and notes when it is closed."""

    environment: "Counters"
    seed: int
    said: list[str] = field(default_factory=list[str])

    def step(self, turn: Turn, /) -> Observation | None:
        self.said.append(turn.text)
        if turn.text in self.environment.faults:
            self.environment.faults[turn.text]()
        return None if turn.text == "nothing" else Observation(f"{self.seed}: {', '.join(self.said)}")

    def close(self) -> None:
        self.environment.closed.append(self.seed)


@dataclass
class Counters:
    faults: dict[str, Callable[[], object]] = field(default_factory=dict[str, Callable[[], object]])
    closed: list[int] = field(default_factory=list[int])
    repeats: bool = True

    def open(self, prompt: Prompt, seed: int, /) -> Counting:
        return Counting(self, seed)

    def check_prompts(self, prompts: Any) -> None:
        """Any will do."""


def text_of(runner: WorldRunner, number: int, said: str) -> str:
    answer = runner.step(number, turn(said)).result(timeout=120)
    assert answer is not None
    return answer.text


@pytest.mark.parametrize("where", ["thread", "inline"])
def test_each_world_has_its_own_turns(where: Any):
    environment = Counters()
    runner = WorldRunner(environment, LIMITS, WorldCalling(where=where))
    first, second = runner.open(PROMPT, 5), runner.open(PROMPT, 6)
    said = [text_of(runner, one, said) for said in ("a", "b") for one in (first, second)]
    assert said == ["5: a", "6: a", "5: a, b", "6: a, b"]
    assert runner.step(first, turn("nothing")).result(timeout=60) is None
    runner.close(first)
    runner.close(second)
    metrics = runner.drain_metrics()
    assert metrics.keys() == {"time/environment/p50_s", "time/environment/p95_s"} and not runner.drain_metrics()
    if where == "inline":
        assert environment.closed == [5, 6]


def test_a_world_that_hangs_or_raises_is_an_error():
    gate = threading.Event()

    def leave() -> None:
        raise OSError("gone")

    one, two = (WorldRunner(Counters({"hang": gate.wait, "raise": leave}), x) for x in (Limits(timeout_s=0.2), LIMITS))
    refused("no answer within", one.step(one.open(PROMPT, 1), turn("hang")).result, error=TimeoutError, timeout=60)
    refused("gone", two.step(two.open(PROMPT, 2), turn("raise")).result, error=OSError, timeout=60)
    gate.set()


def test_a_text_too_long_to_be_shown_is_cut():
    def speak(prompt: Prompt, turns: tuple[Turn, ...], seed: int) -> Observation:
        return Observation("x" * 100_000)

    for limits, length in ((LIMITS, LONGEST_TEXT), (Limits(text=90_000), 90_000), (Limits(text=100_000), 100_000)):
        runner = WorldRunner(environment_of(speak), limits, WorldCalling(where="inline"))
        text = text_of(runner, runner.open(PROMPT, 1), "a")
        assert text == "x" * length + ("" if length == 100_000 else "... (100,000 characters)")


def test_a_broken_world_is_opened_again_and_asked_the_same_turns():
    failures = iter([True, False])

    def fail_once() -> None:
        if next(failures):
            raise OSError("once")

    environment = Counters({"b": fail_once})
    runner = WorldRunner(environment, LIMITS, WorldCalling(where="inline", retries=1))
    number = runner.open(PROMPT, 3)
    assert [text_of(runner, number, said) for said in ("a", "b")] == ["3: a", "3: a, b"]
    assert runner.drain_metrics()["environment/retried"] == 1 and environment.closed == [3]
    with pytest.raises(ValueError, match=r"this environment says that it does not repeat: set retries = 0"):
        WorldRunner(Counters(repeats=False), LIMITS, WorldCalling(retries=1))


@pytest.mark.parametrize("where", ["inline", "thread"])
@pytest.mark.parametrize("fails", [False, True])
def test_worlds_do_not_move_the_random_numbers_of_a_run(where: Any, fails: bool, caplog: pytest.LogCaptureFixture):
    """Settings are put back with the answer, for the next turn is written before the world is closed."""

    def disturb() -> None:
        random.seed(0)
        torch.manual_seed(0)
        torch.set_default_dtype(torch.float64)
        if fails:
            raise OSError("broken")

    runner = WorldRunner(Counters({"x": disturb}), LIMITS, WorldCalling(where=where))
    before = torch.get_rng_state(), random.getstate()
    number = runner.open(PROMPT, 1)
    with caplog.at_level(logging.WARNING):
        with pytest.raises(OSError, match="broken") if fails else nullcontext():
            text_of(runner, number, "x")
        assert torch.get_default_dtype() == torch.float32
        runner.close(number)
    assert torch.equal(before[0], torch.get_rng_state()) and before[1] == random.getstate()
    assert torch.get_default_dtype() == torch.float32 and "changed settings of the whole process" in caplog.text


@dataclass
class Later:
    async def open(self, prompt: Prompt, seed: int, /) -> "LaterWorld":
        await asyncio.sleep(0)
        return LaterWorld()


@dataclass
class LaterWorld:
    async def step(self, turn: Turn, /) -> Observation:
        await asyncio.sleep(0)
        return Observation(f"later: {turn.text}")

    async def close(self) -> None:
        raise OSError("cannot")


def test_async_worlds_are_awaited_and_one_that_cannot_be_closed_is_only_logged(caplog: pytest.LogCaptureFixture):
    runner = WorldRunner(cast(Environment, Later()), LIMITS, WorldCalling(where="inline"))
    number = runner.open(PROMPT, 1)
    assert runner.workers == 64 and text_of(runner, number, "hm") == "later: hm"
    with caplog.at_level(logging.WARNING):
        runner.close(number)
    assert "its world could not be closed: OSError: cannot" in caplog.text


def answer(prompt: Prompt, turns: tuple[Turn, ...], seed: int) -> Observation | None:
    if turns[-1].text == "die":
        os._exit(3)
    return Observation(f"{prompt.id} {len(turns)} {seed}", facts={"folder": float(len(Path.cwd().parts))})


def test_a_process_that_dies_takes_no_other_world_along():
    runner = WorldRunner(environment_of(answer), LIMITS, WorldCalling(where="process", workers=1))
    first, second = runner.open(PROMPT, 5), runner.open(PROMPT, 6)
    assert [text_of(runner, one, "a") for one in (first, second)] == ["p 1 5", "p 1 6"]
    refused("its process died with exit code 3", runner.step(first, turn("die")).result, error=RuntimeError, timeout=120)
    assert text_of(runner, second, "b") == "p 2 6", "it was opened again, and asked its first turn"
    runner.close(first)
    runner.close(second)
    runner.end()


def test_a_world_without_its_calls_is_refused():
    class Odd:
        def open(self, prompt: Prompt, seed: int, /) -> Any:
            return 5

    runner = WorldRunner(Odd(), LIMITS, WorldCalling(where="inline"))
    with pytest.raises(TypeError, match="the environment opened int, which has no"):
        runner.step(runner.open(PROMPT, 1), turn("a")).result(timeout=60)


@pytest.mark.parametrize("first", ["sampler", "trainer"])
def test_two_threads_that_have_worlds_open_each_find_their_own_state_again(first: str):
    """One samples ahead without gradients, and the other opens worlds again to compare them while it trains."""

    def disturb() -> None:
        random.random()
        torch.rand(3)
        torch.set_default_dtype(torch.float64)

    runner = WorldRunner(Counters({"x": disturb}), LIMITS, WorldCalling(where="inline"))
    trainer, found, own = threading.current_thread(), list[object](), random_state()
    own["torch"] = torch.Generator().manual_seed(5).get_state()
    opened, both, closed = threading.Event(), threading.Event(), threading.Event()

    @torch.no_grad()
    def sample() -> None:
        put_aside(trainer, own)
        number = runner.open(PROMPT, 1)
        text_of(runner, number, "x")
        opened.set()
        assert (both if first == "sampler" else closed).wait(60)
        runner.close(number)
        after = take_back(trainer)
        found.extend((torch.is_grad_enabled(), torch.equal(after["torch"], own["torch"]), after["python"] == own["python"]))
        closed.set()

    before, other = random_state(), threading.Thread(target=sample)
    other.start()
    assert opened.wait(60)
    number = runner.open(PROMPT, 1)
    text_of(runner, number, "x")
    both.set()
    assert first == "trainer" or closed.wait(60)
    runner.close(number)
    closed.set()
    other.join()
    dtype, _ = torch.get_default_dtype(), torch.set_default_dtype(torch.float32)
    assert torch.is_grad_enabled() and found == [False, True, True], "its own gradient mode and random numbers"
    assert dtype == torch.float32, "what the first one found, for all threads share it"
    assert torch.equal(torch.get_rng_state(), before["torch"]) and random_state()["python"] == before["python"]


def test_a_thread_that_closes_the_worlds_of_another_keeps_its_own_random_numbers():
    runner, numbers = WorldRunner(Counters({}), LIMITS), list[int]()
    other = threading.Thread(target=lambda: numbers.append(runner.open(PROMPT, 1)))
    other.start()
    other.join()
    torch.manual_seed(7)
    before = torch.get_rng_state()
    runner.close(numbers[0])
    gc.collect()
    assert torch.equal(torch.get_rng_state(), before)


def hang(prompt: Prompt, turns: tuple[Turn, ...], seed: int) -> Observation | None:
    Path(turns[-1].text).touch()
    time.sleep(3600)
    return None


@pytest.mark.parametrize("where", ["thread", "process"])
def test_a_run_does_not_end_later_for_a_world_that_hangs(where: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(worlds, "CLOSE_S", 0.1)
    runner = WorldRunner(environment_of(hang), Limits(timeout_s=3600.0), WorldCalling(where=where, workers=1))
    number = runner.open(PROMPT, 1)
    answer = runner.step(number, turn(str(tmp_path / "hangs")))
    while not (tmp_path / "hangs").exists():
        time.sleep(0.01)
    runner.end()
    assert where == "thread" or isinstance(answer.exception(60), WorkerError), "its process is killed amid the call"
