"""Calls in a process of their own or with a time limit, the one event loop, and the settings of the process."""

import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from contextvars import copy_context
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmrl.core.samples import Scored
from mmrl.core.types import Group
from mmrl.runtime import workers
from mmrl.runtime.blame import RewardUnavailableError
from mmrl.runtime.calls import within
from mmrl.runtime.net import fetch
from mmrl.runtime.net.clocks import CallClock, away, timed
from mmrl.runtime.net.loops import loop, wait_for
from mmrl.runtime.process_state import process_state
from mmrl.runtime.workers import GUARD, SilentError, WorkerError, WorkerProcess
from mmrl.serving.judges.judge import MOST_WAIT_S, Endpoint, Question, ask_for_scores
from mmrl.serving.reward_client import RemoteReward
from mmrl.training.rewards.calls import Calling
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from tests.serving.test_reward_server import group_of
from tests.support.ports import free_ports
from tests.support.refused import refused
from tests.support.rude_servers import answers, rude, without_pauses

ENV = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}


def test_a_process_serves_call_after_call_and_a_killed_one_is_replaced():
    with closing(WorkerProcess(os.getpid)) as process:
        first = process()
        assert first != os.getpid() and process() == first
        process.close()
        assert process() != first


def break_off_the_answer(number: int) -> None:
    """Send the beginning of a message of 1,000 bytes, and get a signal."""
    connection = sys._getframe(1).f_locals["connection"]
    os.write(connection.fileno(), struct.pack("!i", 1000) + b"half")
    os.kill(os.getpid(), number)


def test_a_process_that_is_killed_amid_its_answer_has_died():
    """As one for whose memory the machine has no room."""
    refused("its process died with exit code -9", WorkerProcess(break_off_the_answer), signal.SIGKILL, error=WorkerError)


def test_what_takes_too_long_is_killed_and_what_does_so_by_itself_is_ended():
    process = WorkerProcess(time.sleep)
    refused(r"no answer within 0\.01 s", process, 60, error=TimeoutError, timeout_s=0.01)
    never = threading.Event()
    refused(r"no answer within 0\.01 s", within, 0.01, never.wait, error=TimeoutError)
    never.set()


def wait_for_a_server(number: int) -> None:
    with away():
        os.kill(os.getpid(), number)


@pytest.mark.parametrize("work", [break_off_the_answer, wait_for_a_server])
def test_one_that_is_stopped_amid_its_answer_or_while_it_waits_for_a_server_is_killed_too(work: Any, monkeypatch):
    monkeypatch.setattr(CallClock, "seconds", lambda clock: 0.0)  # its time is not over before it has stopped itself
    with pytest.raises(SilentError) as caught:
        WorkerProcess(work)(signal.SIGSTOP, timeout_s=0.1)
    assert caught.value.stopped_by == signal.SIGSTOP


def test_giving_up_ends_the_process_and_does_nothing_without_one():
    with closing(WorkerProcess(os.getpid)) as process:
        process.give_up()
        first = process()
        process.give_up()
        assert not Path(f"/proc/{first}").exists() and process() != first


def test_arrays_arrive_as_they_are_and_can_be_written_to():
    with closing(WorkerProcess(np.asarray)) as process:
        array = process(np.arange(6).reshape(2, 3))
        array += 1
        assert array.tolist() == [[1, 2, 3], [4, 5, 6]]


PROGRAM = """
from mmrl.runtime.workers import WorkerProcess
print("read", flush=True)
class Number:
    def __init__(self, value): self.value = value
def next_one(number): return Number(number.value + 1)
if __name__ == "__main__":
    print(WorkerProcess(next_one)(Number(4)).value, WorkerProcess(abs, reads_main=False)(-2))
"""
UNGUARDED = """
from mmrl.runtime.workers import WorkerProcess
WorkerProcess(abs)(-2)
"""


def run(tmp_path: Path, program: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, str(tmp_path / "program.py")]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=ENV, cwd=tmp_path)


def test_a_main_file_is_read_again_where_it_is_wanted(tmp_path: Path):
    assert run(tmp_path, PROGRAM).stdout.split() == ["read", "read", "5", "2"]


SWALLOWING = """
from mmrl.runtime.workers import WorkerProcess
try:
    print(WorkerProcess(abs)(-2))
except Exception as error:
    print(error)
"""
REWARDING = """
from mmrl.core.types import Group, Prompt, Sample
from mmrl.training.rewards.calls import Calling
from mmrl.training.rewards.runner import NamedReward, RewardRunner
def length(group): return [float(len(sample.text)) for sample in group.samples]
reward = NamedReward("mine", length, max_failed=1.0, call=Calling("process"))
RewardRunner([reward]).score([Group(0, Prompt("p"), (Sample(text="a"),))])
"""
WORLDS = """
from mmrl.core.episodes import Limits
from mmrl.core.types import Observation, Prompt, Turn
from mmrl.training.worlds.runner import environment_of
from mmrl.training.worlds.runner import WorldCalling, WorldRunner
def world(prompt, turns, seed): return Observation("hm")
runner = WorldRunner(environment_of(world), Limits(), WorldCalling("process", 1))
runner.step(runner.open(Prompt("p"), 1), Turn("a", (0, 1))).result()
"""


@pytest.mark.parametrize(
    ("program", "named"),
    [(UNGUARDED, "its process cannot load it: "), (SWALLOWING, ""), (REWARDING, "mine"), (WORLDS, "")],
    ids=["unguarded", "swallowing", "a reward", "a world"],
)
def test_a_program_without_the_guard_is_told_of_it(program: str, named: str, tmp_path: Path):
    """Also where the second reading itself takes the refusal for something else; a reward is named, and did not merely fail."""
    done = run(tmp_path, program)
    assert GUARD in done.stdout + done.stderr and named in done.stderr


GRADING = """
from mmrl.serving.judges.math_grader import grade_math
print(grade_math("1/2", "0.5", "p", limit_s=60.0).equal)
"""


def test_answers_are_graded_in_a_program_without_the_guard(tmp_path: Path):
    """The grader needs nothing of the main file."""
    pytest.importorskip("math_verify")
    assert run(tmp_path, GRADING).stdout.split() == ["True"]


PARENT = """
import time, threading
from mmrl.runtime.workers import WorkerProcess
if __name__ == "__main__":
    process = WorkerProcess(time.sleep, reads_main=False)
    started = threading.Thread(target=process, args=(0,))
    started.start()
    started.join()
    process(0)
    print(process.pid, flush=True)
    process(600)
"""


def test_a_process_that_hangs_ends_with_the_one_it_works_for_and_not_with_a_thread_of_it(tmp_path: Path):
    (tmp_path / "program.py").write_text(PARENT)
    parent = subprocess.Popen([sys.executable, str(tmp_path / "program.py")], stdout=subprocess.PIPE, text=True, env=ENV)
    assert parent.stdout is not None
    handle = os.pidfd_open(int(parent.stdout.readline()))
    parent.kill()
    parent.communicate()
    assert select.select([handle], [], [], 60)[0], "it lives on"
    os.close(handle)


def test_an_answer_that_comes_as_the_time_is_over_counts_and_the_next_call_is_answered(monkeypatch: pytest.MonkeyPatch):
    process, received = WorkerProcess(abs), workers.receive

    def late(connection: Connection) -> list[bytes]:
        answer = received(connection)
        patched.setattr(CallClock, "seconds", lambda clock: 1.0)
        os.waitid(os.P_PID, process.pid or 0, os.WEXITED | os.WNOWAIT)
        return answer

    with monkeypatch.context() as patched:
        patched.setattr(CallClock, "seconds", lambda clock: 0.0)
        patched.setattr(workers, "receive", late)
        assert process(-2, timeout_s=0.5) == 2
    assert [process(-n) for n in (3, 4)] == [3, 4]
    process.close()


def test_the_answer_to_a_call_that_was_interrupted_is_not_that_to_the_next(monkeypatch: pytest.MonkeyPatch):
    process = WorkerProcess(abs)

    def interrupt(connection: Connection) -> list[bytes]:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(workers, "receive", interrupt)
        process(-2)
    assert process(-3) == 3
    process.close()


def test_a_call_without_a_limit_starts_no_thread_of_its_own(monkeypatch: pytest.MonkeyPatch):
    process = WorkerProcess(abs)
    assert process(-1) == 1
    monkeypatch.setattr(threading.Thread, "start", lambda thread: pytest.fail(f"{thread} was started"))
    assert process(-2) == 2
    process.close()


LIMIT_S, PAUSE_S, DEADLINE_S = 4.0, 4.5, 6.0


def pause(seconds: float) -> None:
    """In place of `time.sleep`: a client's first pause is longer than the time limit of the reward, and later ones are none."""
    time.sleep(PAUSE_S if seconds < 2.0 else 0.0)


def test_a_clock_stands_still_while_anything_in_its_call_waits():
    with timed() as outer, timed() as inner:
        with away(), away():
            begun = outer.seconds(), inner.seconds()
            time.sleep(0.01)
            assert (outer.seconds(), inner.seconds()) == begun
        with away():
            assert inner.seconds() >= begun[1]
        left = inner.seconds()
        time.sleep(0.01)
        assert inner.seconds() > left and outer.seconds() >= inner.seconds()
    with timed() as other, ThreadPoolExecutor(1) as pool:
        entered, leave = threading.Event(), threading.Event()

        def wait() -> None:
            with away():
                entered.set()
                leave.wait(60)

        done = pool.submit(copy_context().run, wait)
        assert entered.wait(60)
        begun = other.seconds()
        assert other.seconds() == begun, "another thread waits"
        leave.set()
        done.result(60)


def test_who_counts_the_time_elsewhere_is_told_once_and_never_afterwards():
    told = list[bool]()
    with timed(told.append) as clock, away(), away():
        assert told == [True] and clock.seconds() >= 0.0
    assert told == [True, False]
    with timed(told.append):
        left = copy_context()
    left.run(away().__enter__)
    assert told == [True, False]


@dataclass(frozen=True)
class JudgeElsewhere:
    """Asks a judge from a process of its own, with pauses as here."""

    endpoint: Endpoint

    def prepare(self) -> None:
        with suppress(fetch.UnreachableError):
            # what loads with the first request takes its time
            fetch.fetch(fetch.HttpRequest("GET", self.endpoint.url), 60.0)
        fetch.__dict__["time"] = without_pauses(pause)

    def __call__(self, group: Group) -> list[Scored]:
        return ask_for_scores(self.endpoint, [Question("?") for _ in group.samples], lambda reply: Scored(float(reply.text)))


def test_a_reward_in_a_process_waits_for_its_server_as_any_other():
    """For one that is gone until its deadline, and for one that comes back after more than the reward's time limit."""
    first = free_ports(2)
    addresses = [f"http://127.0.0.1:{first + i}/v1" for i in range(2)]

    def score(address: str, deadline_s: float) -> Any:
        reward = JudgeElsewhere(Endpoint(address, "m", deadline_s=deadline_s, retries=9))
        runner = RewardRunner([NamedReward("mine", reward, timeout_s=LIMIT_S, call=Calling("process"))])
        try:
            return runner.score([group_of("a", "b")])
        finally:
            runner.close()

    with ThreadPoolExecutor(2) as pool:
        gone, late = pool.submit(score, addresses[0], MOST_WAIT_S), pool.submit(score, addresses[1], 120.0)
        time.sleep(LIMIT_S)
        said = b'{"choices": [{"message": {"content": "7"}, "finish_reason": "stop"}]}'
        with rude(answers(200, said), first + 1):
            assert late.result(120)[0].values.flatten().tolist() == [7.0, 7.0]
        assert isinstance(error := gone.exception(120), RewardUnavailableError) and "cannot be reached" in str(error), error


def test_a_server_that_is_gone_is_waited_for_and_then_stops_the_run(monkeypatch: pytest.MonkeyPatch):
    """The second try follows the first after more than the time limit of the reward."""
    monkeypatch.setattr(fetch, "time", without_pauses(pause))
    address = f"http://127.0.0.1:{free_ports(1)}"
    with pytest.raises(fetch.NoConnectionError):
        # what loads with the first request takes its time
        fetch.fetch(fetch.HttpRequest("GET", address), 60.0)
    judge = JudgeElsewhere(Endpoint(f"{address}/v1", "m", deadline_s=MOST_WAIT_S, retries=9)).__call__

    def refuse(reward: Any) -> None:
        with pytest.raises(RewardUnavailableError, match=r"does not answer|takes no connections|cannot be reached"):
            RewardRunner([NamedReward("mine", reward, timeout_s=LIMIT_S)]).score([group_of("abc")])

    with ThreadPoolExecutor(2) as pool:
        asked = {"a reward server": RemoteReward(f"{address}/mine", deadline_s=DEADLINE_S), "a judge": judge}
        jobs = {name: pool.submit(refuse, reward) for name, reward in asked.items()}
        assert {name: error for name, job in jobs.items() if (error := job.exception(60))} == {}


def test_there_is_one_loop_whose_answers_are_waited_for_and_whose_thread_keeps_no_program_alive():
    async def answer() -> int:
        return 3

    assert wait_for(answer()) == 3
    with ThreadPoolExecutor(4) as pool:
        assert len({id(found) for found in pool.map(lambda _: loop(), range(8))}) == 1
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "reward-loop"]
    assert thread.daemon


def test_a_default_device_that_was_taken_back_is_the_cpu(monkeypatch: pytest.MonkeyPatch):
    def fails_as_older_ones_do() -> torch.device:
        raise AttributeError("'NoneType' object has no attribute 'device'")

    monkeypatch.setattr(torch, "get_default_device", fails_as_older_ones_do)
    assert process_state().device == "cpu"
