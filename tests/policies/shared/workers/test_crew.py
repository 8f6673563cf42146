"""Chunks are answered once each, in their order, whoever is late or dies."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mmrl.policies.shared.workers import crew as crews
from mmrl.policies.shared.workers.crew import Crew, Restarts
from mmrl.runtime.blame import UnavailableError
from mmrl.runtime.workers import SilentError, WorkerError, WorkerProcess

JOBS = [(i,) for i in range(6)]
DONE = [10 * i for i in range(6)]


class Fake:
    """Ten times the job's number; `before` may wait or raise."""

    def __init__(self, before: Callable[[int], object] = lambda number: None) -> None:
        self.before, self.given_up = before, threading.Event()

    def __call__(self, *job: object) -> object:
        (number,) = job
        assert isinstance(number, int)
        self.before(number)
        return 10 * number

    def give_up(self) -> None:
        self.given_up.set()

    def close(self) -> None:
        self.given_up.set()


@pytest.fixture
def crew() -> Iterator[Callable[..., Crew]]:
    made: list[Crew] = []

    def make(*workers: Fake, restarts: int = 0) -> Crew:
        made.append(Crew(workers, Restarts(restarts)))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize("count", [1, 3])
def test_answers_come_in_the_order_of_the_chunks(crew: Callable[..., Crew], count: int):
    own = crew(*(Fake() for _ in range(count)))
    assert own.ask(JOBS) == DONE and own.ask(JOBS[:2]) == DONE[:2] and own.ask([]) == []


def test_a_late_chunk_is_drawn_by_another_too_and_nobody_waits_for_the_first(crew: Callable[..., Crew]):
    released = threading.Event()
    own = crew(Fake(lambda number: released.wait()), Fake())
    assert own.ask(JOBS) == DONE, "while the first still holds its chunk"
    assert own.ask(JOBS[:3]) == DONE[:3]
    released.set()
    assert own.ask(JOBS) == DONE


def test_the_chunk_of_a_worker_that_dies_goes_to_others(crew: Callable[..., Crew]):
    deaths = list[int]()

    def die_once(number: int) -> None:
        if number == 2 and not deaths:
            deaths.append(number)
            raise WorkerError("its process died with exit code -9")

    assert crew(Fake(die_once), Fake(die_once), restarts=1).ask(JOBS) == DONE
    assert deaths == [2]


def test_one_that_dies_too_often_stops_the_run_by_name(crew: Callable[..., Crew]):
    def die(number: int) -> None:
        raise WorkerError("its process died with exit code -9")

    with pytest.raises(UnavailableError, match=r"sampler 0: its process died .* and cluster.restarts allows no further start"):
        crew(Fake(die), restarts=2).ask(JOBS)


def test_an_error_of_the_chunk_itself_is_raised(crew: Callable[..., Crew]):
    def refuse(number: int) -> None:
        if number == 4:
            raise ValueError("no such size")

    own = crew(Fake(refuse), Fake(refuse), restarts=9)
    with pytest.raises(ValueError, match="no such size"):
        own.ask(JOBS)
    assert own.ask(JOBS[:3]) == DONE[:3]


def test_left_work_ends_and_begins_only_when_it_is_said(crew: Callable[..., Crew]):
    begun, worker = threading.Event(), Fake()
    worker.before = lambda number: begun.set() or worker.given_up.wait()
    own = crew(worker)
    leaving = threading.Thread(target=lambda: begun.wait() and own.leave())
    leaving.start()
    with pytest.raises(UnavailableError, match="nothing waits for its samples any more"):
        own.ask(JOBS)
    leaving.join()
    with pytest.raises(UnavailableError, match="nothing waits"):
        own.ask(JOBS)
    own.begin()
    assert own.ask(JOBS) == DONE


def stopped(number: int) -> int:
    """A process that answers, and stands still at its first 3."""
    if number == 3 and not Path(os.environ["STOPPED_ONCE"]).exists():
        Path(os.environ["STOPPED_ONCE"]).touch()
        os.kill(os.getpid(), signal.SIGSTOP)
    return 10 * number


@pytest.mark.parametrize("jobs", [[(3,)], [(3,), (4,)]], ids=["the one chunk of a step", "one of two"])
def test_one_that_stands_still_is_started_again_after_a_time_that_earlier_rollouts_say(
    jobs: list[tuple[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setenv("STOPPED_ONCE", str(tmp_path / "once"))
    monkeypatch.setattr(crews, "LEAST_S", 0.2)
    monkeypatch.setattr(crews, "STILL", 1.0)
    own = Crew([WorkerProcess(stopped)], Restarts(1), is_timed=True)
    assert own.ask([(1,)]) == [10] and own.ask(jobs) == [10 * number for (number,) in jobs]
    assert "its process, which SIGSTOP had stopped, was killed; it is started again, 0 more time(s)" in caplog.text
    own.close()


def test_before_the_first_answer_nothing_says_how_long_one_takes(crew: Callable[..., Crew]):
    limits = list[object]()

    class Timed(Fake):
        def __call__(self, *job: object, timeout_s: float | None = None) -> object:
            limits.append(timeout_s)
            return super().__call__(*job)

    own = Crew([Timed()], Restarts(0), is_timed=True)
    own.ask(JOBS)
    own.close()
    assert limits == [None, *[crews.LEAST_S] * (len(JOBS) - 1)], "and then at least that"


def test_a_job_that_is_longer_than_all_before_is_given_more_time(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(crews, "LEAST_S", 0.2)
    asked = list[float | None]()

    class Slow(Fake):
        def __call__(self, *job: object, timeout_s: float | None = None) -> object:
            asked.append(timeout_s)
            if len(asked) == 2:
                assert timeout_s is not None
                time.sleep(timeout_s)
                raise SilentError(f"no answer within {timeout_s:g} s", None)
            return super().__call__(*job)

    own = Crew([Slow()], Restarts(1), is_timed=True)
    own.ask(JOBS[:1])
    own.ask(JOBS[:1])
    own.close()
    first, second = asked[1], asked[2]
    assert first is not None and second is not None and second >= crews.STILL * first
