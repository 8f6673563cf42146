"""Chunks are answered once each, in their order, whoever is late or dies: of samples, weights, and pictures opened ahead."""

import os
import pickle
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import disk_usage
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from PIL import Image

from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Prompt, Request
from mmrl.policies.shared.pictures import PictureInput, open_picture, stamp
from mmrl.policies.shared.workers import crew as crews
from mmrl.policies.shared.workers import remote
from mmrl.policies.shared.workers.crew import Crew, Early, Restarts
from mmrl.policies.shared.workers.remote import HEAD, SHARED, Slots, TornWeightsError, buffer_of
from mmrl.runtime import workers
from mmrl.runtime.blame import UnavailableError
from mmrl.runtime.workers import SilentError, WorkerError, WorkerProcess
from tests.policies.video.test_workers import WhenStopped
from tests.support.refused import refused
from tests.support.text_policies import make, picture, text_trace

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
    deaths = iter([WorkerError("its process died with exit code -9")])

    def die_once(number: int) -> None:
        if number == 2 and (error := next(deaths, None)):
            raise error

    assert crew(Fake(die_once), Fake(die_once), restarts=1).ask(JOBS) == DONE
    assert next(deaths, None) is None


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
    refused("no such size", own.ask, JOBS)
    assert own.ask(JOBS[:3]) == DONE[:3]


def test_left_work_ends_and_begins_only_when_it_is_said(crew: Callable[..., Crew]):
    begun, worker = threading.Event(), Fake()
    worker.before = lambda number: begun.set() or worker.given_up.wait()
    own = crew(worker)
    leaving = threading.Thread(target=lambda: begun.wait() and own.leave())
    leaving.start()
    refused("nothing waits for its samples any more", own.ask, JOBS, error=UnavailableError)
    leaving.join()
    refused("nothing waits", own.ask, JOBS, error=UnavailableError)
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
    monkeypatch.setattr(workers, "SilenceTimer", WhenStopped)
    own = Crew([WorkerProcess(stopped)], Restarts(1), is_timed=True)
    assert own.ask([(1,)]) == [10] and own.ask(jobs) == [10 * number for (number,) in jobs]
    assert "its process, which SIGSTOP had stopped, was killed; it is started again, 0 more time(s)" in caplog.text
    own.close()


def test_the_first_answer_has_no_limit_and_one_that_takes_longer_than_all_before_a_later_one(monkeypatch: pytest.MonkeyPatch):
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
    first, second, third = asked
    assert first is None and 0.2 <= (second or 0.0) <= (third or 0.0) / crews.STILL


WEIGHTS = [torch.arange(6.0).reshape(2, 3), torch.ones(3, dtype=torch.bfloat16), torch.zeros(0, 4)]


@pytest.fixture
def slots() -> Iterator[Slots]:
    made = Slots.for_weights(WEIGHTS)
    yield made
    made.free()


def test_each_slot_gives_back_what_was_written(slots: Slots):
    other: Slots = pickle.loads(pickle.dumps(slots))  # noqa: S301 - our own bytes
    slots.write(0, 3, WEIGHTS)
    slots.write(1, 4, [-weight for weight in WEIGHTS])
    for place, version, sign in ((0, 3, 1), (1, 4, -1)):
        into = [torch.full_like(weight, 7) for weight in WEIGHTS]
        other.read(place, version, into)
        assert all(torch.equal(found, sign * weight) for found, weight in zip(into, WEIGHTS, strict=True))


def test_too_little_shared_memory_is_refused_before_a_write_beyond_it_kills_the_process(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(remote, "disk_usage", lambda folder: SimpleNamespace(free=500))
    with pytest.raises(ValueError, match=r"through 0 MiB of shared memory, and /dev/shm has 0 MiB: .*docker run --shm-size"):
        Slots.for_weights([torch.zeros(1000)])


def test_shared_memory_that_another_program_fills_meanwhile_is_refused_too(monkeypatch: pytest.MonkeyPatch):
    """It seems to be there, and its pages are not; nothing of it is left."""
    before = set(SHARED.iterdir())
    monkeypatch.setattr(remote, "disk_usage", lambda folder: SimpleNamespace(free=2**60))
    with pytest.raises(ValueError, match=r"MiB of shared memory, and /dev/shm has .*docker run --shm-size"):
        Slots.for_weights([torch.empty(disk_usage(SHARED).total // 4, device="meta")])
    assert set(SHARED.iterdir()) <= before


def test_shared_memory_has_its_pages_before_anything_is_written(slots: Slots):
    assert (SHARED / slots.name).stat().st_blocks * 512 >= 2 * slots.size


def test_a_lost_a_torn_and_a_replaced_publication_are_refused(slots: Slots):
    into = [torch.empty_like(weight) for weight in WEIGHTS]
    refused("version 3, and the memory it shares with the trainer holds -1 to -1", slots.read, 0, 3, into, error=TornWeightsError)
    slots.write(0, 3, WEIGHTS)
    HEAD.pack_into(buffer_of(slots.name), 0, 4, 3)
    for version in (3, 4):
        with pytest.raises(TornWeightsError, match="holds 4 to 3: a publication was lost, written in part or replaced too early"):
            slots.read(0, version, into)


class Gate:
    """Answers a job once it is open."""

    def __init__(self) -> None:
        self.opened, self.done = threading.Event(), list[object]()

    def __call__(self, *job: object, **options: object) -> object:
        self.opened.wait(20)
        self.done.append(job[0])
        return job[0]

    def give_up(self) -> None: ...

    close = give_up


def no_death(worker: int, error: Exception, deaths: int) -> None:
    raise error


def early_of(gate: Gate, most: float) -> Early:
    return Early(lambda: Crew([gate], no_death, "test"), most)


def jobs(names: str, size: int = 10) -> Any:
    return {name: ((name,), size) for name in names}


def test_as_many_begin_as_there_is_room_for_and_the_next_when_one_is_taken():
    gate = Gate()
    early = early_of(gate, 20)
    early.ask(jobs("abcd") | jobs("x", 21))
    assert list(early.begun) == ["a", "b"]
    gate.opened.set()
    for name, begun in (("a", "bc"), ("d", "bc"), ("b", "c"), ("c", "")):
        board = early.take(name)
        assert (None if board is None else board.wait()) == (None if name == "d" else [name])
        assert list(early.begun) == list(begun), name
    assert early.take("x") is None and gate.done == ["a", "b", "c"]


def test_what_is_not_asked_for_again_makes_room_only_where_it_is_short():
    early = early_of(gate := Gate(), 40)
    early.ask(jobs("ab"))
    early.ask(jobs("cd"))
    assert list(early.begun) == list("abcd")
    early.ask(jobs("bef"))
    assert list(early.begun) == list("bdef"), "those that wait longest leave first"
    gate.opened.set()
    boards = [early.take(name) for name in "bef"]
    assert [board and board.wait() for board in boards] == [["b"], ["e"], ["f"]]
    assert "c" not in gate.done, "nobody waits for it any more"


@pytest.fixture
def photo(tmp_path: Path) -> Callable[..., str]:
    def write(name: str, seed: int = 0, size: tuple[int, int] = (64, 48)) -> str:
        picture(seed, *size).save(tmp_path / name)
        return str(tmp_path / name)

    return write


def test_what_was_announced_is_the_same_picture_or_error_as_what_was_not(photo: Callable[..., str], tmp_path: Path):
    cut, text = tmp_path / "cut.png", tmp_path / "text.png"
    cut.write_bytes(Path(photo("whole.png", 1)).read_bytes()[:200])
    text.write_text("no picture")
    own, gone = picture(3), str(tmp_path / "gone.png")
    sources = [photo("a.png"), Path(photo("b.jpg", 2)), own, gone, str(cut), str(text), 7, "\0"]
    held = PictureInput(64)
    held.ask(sources)
    for board, _ in held.early.begun.values():
        with board.changed:
            board.changed.wait_for(lambda board=board: board.is_over)
    assert len(held.early.begun) == 3, "the heads of three can be read"
    for source in sources:
        found, expected = (said_or_shown(lambda read=read, one=source: read(one, "p")) for read in (held, open_picture))
        assert found == expected and not held.early.begun.keys() & {stamp(source)}, source
    assert held.used and said_or_shown(lambda: held(sources[0], "p")) == said_or_shown(lambda: open_picture(sources[0], "p"))


def said_or_shown(look: Callable[[], Image.Image]) -> object:
    try:
        return look().tobytes()
    except (ValueError, OSError) as error:
        return type(error), str(error)


def test_a_file_that_is_written_again_is_opened_again(photo: Callable[..., str]):
    held = PictureInput(64)
    held.ask([name := photo("a.png")])
    for board, _ in held.early.begun.values():
        board.wait()
    photo("a.png", 5, (30, 20))
    assert held(name, "p").tobytes() == picture(5, 30, 20).tobytes()


def test_a_picture_that_was_taken_is_held_by_nobody_else(photo: Callable[..., str]):
    held = PictureInput(64)
    held.ask([name := photo("a.png")])
    known, until = weakref.ref(held(name, "p")), time.monotonic() + 20
    while known() is not None and time.monotonic() < until:
        time.sleep(0.01)
    assert known() is None


def test_a_policy_samples_the_same_to_the_bit_with_and_without_pictures_ahead(tiny, photo: Callable[..., str]):
    shapes = [(64, 48), (160, 40), (30, 30), (90, 90)]
    asked = [Request(Prompt(f"p{i}", "?", (photo(f"{i}.png", i, shapes[i]),)), 2, i) for i in range(4)]
    found = {}
    for most in (0, 64):
        policy = make(tiny("qwen3_vl"), pictures_ahead_mib=most, rollout_rows=2)
        assert not policy.prefetches
        policy.rollout(asked)
        assert policy.prefetches, "from now on the next prompts are announced"
        policy.prefetch([request.prompt for request in asked])
        assert len(policy.encode.pictures.early.begun) == (4 if most else 0)
        rollouts = policy.rollout(asked)
        assert not policy.encode.pictures.early.begun
        assert not policy.unreadable([request.prompt for request in asked])
        policy.rollout(asked)
        assert not policy.encode.pictures.early.begun, "what is encoded already is not opened again"
        found[most] = rollouts, [one.media["pixel_values"] for one in text_trace(rollouts.trace).prompts]
    (plain, seen), (ahead, same) = found.values()
    assert torch.equal(plain.recorded[ROLLOUT_LOGPROBS], ahead.recorded[ROLLOUT_LOGPROBS])
    assert all(map(torch.equal, seen, same)) and plain.groups == ahead.groups
