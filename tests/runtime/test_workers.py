"""A function in a process of its own: kept from call to call, started anew after a kill."""

import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from mmrl.runtime import workers
from mmrl.runtime.net.clocks import away
from mmrl.runtime.workers import GUARD, SilentError, WorkerError, WorkerProcess


def test_a_process_serves_call_after_call_and_a_killed_one_is_replaced():
    process = WorkerProcess(os.getpid)
    try:
        first = process()
        assert first != os.getpid() and process() == first
        process.close()
        assert process() != first
    finally:
        process.close()


def die_amid_the_answer() -> None:
    """Send the beginning of a message of 1,000 bytes, and be killed."""
    connection = sys._getframe(1).f_locals["connection"]
    os.write(connection.fileno(), struct.pack("!i", 1000) + b"half")
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_that_is_killed_amid_its_answer_has_died():
    """As one for whose memory the machine has no room."""
    with pytest.raises(WorkerError, match="its process died with exit code -9"):
        WorkerProcess(die_amid_the_answer)()


def test_what_takes_too_long_is_killed():
    process = WorkerProcess(time.sleep)
    with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
        process(60, timeout_s=0.01)


def stop_amid_the_answer() -> None:
    connection = sys._getframe(1).f_locals["connection"]
    os.write(connection.fileno(), struct.pack("!i", 1000) + b"half")
    os.kill(os.getpid(), signal.SIGSTOP)


def test_one_that_is_stopped_amid_its_answer_is_killed_too():
    with pytest.raises(SilentError) as caught:
        WorkerProcess(stop_amid_the_answer)(timeout_s=3.0)
    assert caught.value.stopped_by == signal.SIGSTOP


def stop_while_a_server_is_away() -> None:
    with away():
        os.kill(os.getpid(), signal.SIGSTOP)


def test_one_that_is_stopped_while_it_waits_for_a_server_is_killed_too():
    with pytest.raises(SilentError) as caught:
        WorkerProcess(stop_while_a_server_is_away)(timeout_s=1.0)
    assert caught.value.stopped_by == signal.SIGSTOP


def test_giving_up_ends_the_process_and_does_nothing_without_one():
    process = WorkerProcess(os.getpid)
    process.give_up()
    first = process()
    process.give_up()
    assert not Path(f"/proc/{first}").exists() and process() != first
    process.close()


def test_arrays_arrive_as_they_are_and_can_be_written_to():
    process = WorkerProcess(np.asarray)
    try:
        array = process(np.arange(6).reshape(2, 3))
        array += 1
        assert array.tolist() == [[1, 2, 3], [4, 5, 6]]
    finally:
        process.close()


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
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, str(tmp_path / "program.py")]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env, cwd=tmp_path)


def test_a_main_file_is_read_again_where_it_is_wanted(tmp_path: Path):
    assert run(tmp_path, PROGRAM).stdout.split() == ["read", "read", "5", "2"]


def test_a_program_that_would_start_processes_without_end_is_refused(tmp_path: Path):
    assert f"its process cannot load it: {GUARD}" in run(tmp_path, UNGUARDED).stderr


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


@pytest.mark.parametrize("program", [SWALLOWING, REWARDING, WORLDS], ids=["swallowing", "a reward", "a world"])
def test_a_program_without_the_guard_is_told_of_it(program: str, tmp_path: Path):
    """Also where the second reading itself takes the refusal for something else."""
    done = run(tmp_path, program)
    assert "put what it does under `if __name__ ==" in done.stdout + done.stderr
    assert "mine" in done.stderr or program != REWARDING, "by name, and no sample that merely failed"


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
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    parent = subprocess.Popen([sys.executable, str(tmp_path / "program.py")], stdout=subprocess.PIPE, text=True, env=env)
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
        killed = process.pid
        assert killed is not None
        os.waitid(os.P_PID, killed, os.WEXITED | os.WNOWAIT)
        return answer

    with monkeypatch.context() as patched:
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
