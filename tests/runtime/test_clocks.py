"""A time limit of a call leaves out what a client within it waits for a server that is away; and the one event loop."""

import contextlib
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from mmrl.core.samples import Scored
from mmrl.core.types import Group
from mmrl.runtime.blame import RewardUnavailableError
from mmrl.runtime.calls import within
from mmrl.runtime.net import fetch
from mmrl.runtime.net.clocks import away, timed
from mmrl.runtime.net.loops import loop, wait_for
from mmrl.serving.judges.judge import Endpoint, Question, ask_for_scores
from mmrl.serving.reward_client import RemoteReward
from mmrl.training.rewards.calls import Calling
from mmrl.training.rewards.runner import NamedReward, RewardRunner
from tests.serving.test_reward_server import group_of
from tests.support.ports import free_ports
from tests.support.rude_servers import answers, rude

LIMIT_S, PAUSE_S, DEADLINE_S = 4.0, 4.5, 6.0


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


def test_what_takes_long_by_itself_is_still_ended():
    never = threading.Event()
    with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s"):
        within(0.01, never.wait)
    never.set()


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
    """Asks a judge from a process of its own, with pauses that are longer than the time limit of the reward."""

    endpoint: Endpoint

    def prepare(self) -> None:
        with contextlib.suppress(fetch.UnreachableError):
            # what loads with the first request takes its time
            fetch.fetch(fetch.HttpRequest("GET", self.endpoint.url), 60.0)
        fetch.__dict__["time"] = SimpleNamespace(monotonic=time.monotonic, sleep=lambda s: time.sleep(PAUSE_S))

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
        gone, late = pool.submit(score, addresses[0], DEADLINE_S), pool.submit(score, addresses[1], 120.0)
        time.sleep(LIMIT_S)
        said = b'{"choices": [{"message": {"content": "7"}, "finish_reason": "stop"}]}'
        with rude(answers(200, said), first + 1):
            assert late.result(120)[0].values.flatten().tolist() == [7.0, 7.0]
        assert isinstance(error := gone.exception(120), RewardUnavailableError) and "cannot be reached" in str(error), error


def test_a_server_that_is_gone_is_waited_for_and_then_stops_the_run(monkeypatch: pytest.MonkeyPatch):
    """Each try follows the one before after more than the time limit of the reward."""
    monkeypatch.setattr(fetch, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda s: time.sleep(PAUSE_S)))
    address = f"http://127.0.0.1:{free_ports(1)}"
    with pytest.raises(fetch.NoConnectionError):
        # what loads with the first request takes its time
        fetch.fetch(fetch.HttpRequest("GET", address), 60.0)
    endpoint = Endpoint(f"{address}/v1", "m", deadline_s=DEADLINE_S, retries=9)

    def judge(group: Group) -> list[Scored]:
        return ask_for_scores(endpoint, [Question("?") for _ in group.samples], lambda reply: Scored(float(reply.text)))

    def refuse(reward: Any) -> None:
        with pytest.raises(RewardUnavailableError, match=r"does not answer|takes no connections|cannot be reached"):
            RewardRunner([NamedReward("mine", reward, timeout_s=LIMIT_S)]).score([group_of("abc")])

    with ThreadPoolExecutor(2) as pool:
        asked = {"a reward server": RemoteReward(f"{address}/mine", deadline_s=DEADLINE_S), "a judge": judge}
        jobs = {name: pool.submit(refuse, reward) for name, reward in asked.items()}
        assert {name: error for name, job in jobs.items() if (error := job.exception(60))} == {}


def test_there_is_one_loop_whose_thread_keeps_no_program_alive():
    with ThreadPoolExecutor(4) as pool:
        assert len({id(found) for found in pool.map(lambda _: loop(), range(8))}) == 1
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "reward-loop"]
    assert thread.daemon


def test_an_answer_is_waited_for():
    async def answer() -> int:
        return 3

    assert wait_for(answer()) == 3
