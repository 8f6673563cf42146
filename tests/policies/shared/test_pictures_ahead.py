"""Pictures that are opened before they are needed: the same ones, in bounded memory, with the errors of their own time."""

import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from mmrl.core.readings import ROLLOUT_LOGPROBS
from mmrl.core.types import Prompt, Request
from mmrl.policies.shared.pictures import PictureInput, open_picture, stamp
from mmrl.policies.shared.workers.crew import Crew, Early
from tests.support.text_policies import make, picture, text_trace


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
