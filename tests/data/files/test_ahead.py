"""Rows whose files threads look at: the same answers in the same order, and every file once."""

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from mmrl.core.types import Prompt, Video
from mmrl.data.files import pictures, videos
from mmrl.data.files.ahead import DEPTH, FileMemory, ahead
from mmrl.data.files.pictures import picture_size
from mmrl.data.grounding import GroundingLayout
from mmrl.data.validate import Report, check, check_new_id
from tests.support.grounding import check_file, read_grounding
from tests.support.videos import even, write_video

OLD = (1_000_000_000, 1_000_000_000)
"""A time long ago, so that a file counts as one that stays as it is."""


def save(path: Path, size: tuple[int, int] = (32, 24)) -> Path:
    Image.effect_noise(size, 60).convert("RGB").save(path)
    os.utime(path, OLD)
    return path


def test_answers_come_in_order_and_errors_in_their_turn():
    def halve(x: int) -> int:
        if x % 7 == 0:
            raise ValueError(f"{x} is bad")
        return x // 2

    def numbers() -> Iterator[int]:
        yield from range(1, 600)
        raise RuntimeError("the source broke")

    seen: list[object] = []
    with pytest.raises(RuntimeError, match="the source broke"):
        for x, answer in ahead(numbers(), halve):
            try:
                seen.append(answer())
            except ValueError as error:
                seen.append(str(error))
            assert len(seen) == x
    assert seen == [f"{x} is bad" if x % 7 == 0 else x // 2 for x in range(1, 600)]


def test_no_more_is_taken_from_a_stream_than_is_looked_ahead():
    taken: list[int] = []

    def endless() -> Iterator[int]:
        while True:
            taken.append(len(taken))
            yield taken[-1]

    for x, answer in ahead(endless(), lambda x: x + 1):
        assert answer() == x + 1
        if x == 9:
            break
    assert len(taken) == DEPTH + 10


def test_what_is_known_of_a_file_is_forgotten_when_it_changes(tmp_path: Path):
    path, memory, calls = save(tmp_path / "a.png"), FileMemory[int](), list[int]()

    def find_out() -> int:
        calls.append(1)
        return len(calls)

    assert memory(path, find_out) == memory(str(path), find_out) == 1
    os.utime(path, (OLD[0], OLD[1] + 1))
    assert memory(path, find_out) == 2
    os.utime(path)
    assert memory(path, find_out) == 3 and memory(path, find_out) == 4, "written just now: it may change within one tick"


def test_errors_are_not_remembered(tmp_path: Path):
    path, memory = save(tmp_path / "a.png"), FileMemory[int]()

    def fail() -> int:
        raise ValueError("broken")

    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            memory(path, fail)
    assert memory(path, lambda: 5) == 5


def test_threads_that_ask_together_find_out_once(tmp_path: Path):
    path, memory, calls = save(tmp_path / "a.png"), FileMemory[int](), list[int]()
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> int:
        calls.append(1)
        begun.set()
        assert go_on.wait(60)
        return 7

    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(memory(path, slow))) for _ in range(4)]
    threads[0].start()
    assert begun.wait(60)
    for thread in threads[1:]:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join()
    assert found == [7] * 4 and len(calls) == 1


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pictures that PIL opened."""
    names: list[str] = []
    known = pictures._open  # type: ignore[attr-defined]

    def watched(file: Path, name: str) -> Image.Image:
        names.append(Path(name).name)
        return known(file, name)

    monkeypatch.setattr(pictures, "_open", watched)
    monkeypatch.setattr(pictures, "_SIZES", FileMemory[tuple[int, int]]())
    monkeypatch.setattr(pictures, "_DECODED", FileMemory[tuple[int, int]]())
    return names


def rows_of(folder: Path, count: int, per_picture: int) -> Path:
    lines = [{"image": f"{i // per_picture}.png", "question": f"number {i}?", "box": [1, 2, 20, 18]} for i in range(count)]
    (folder / "boxes.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    return folder / "boxes.jsonl"


def test_a_picture_of_many_rows_is_opened_once_when_read_and_looked_at(tmp_path: Path, opened: list[str]):
    for i in range(5):
        save(tmp_path / f"{i}.png")
    file = rows_of(tmp_path, 20, 4)
    prompts, report = read_grounding(file, GroundingLayout(tmp_path))
    assert report.ok and [prompt.text for prompt in prompts] == [f"number {i}?" for i in range(20)]
    assert check(prompts, decode=False).ok
    assert sorted(opened) == [f"{i}.png" for i in range(5)]
    assert check_file(file).num_rows == 20
    assert sorted(opened[5:]) == [f"{i}.png" for i in range(5)], "to its end, once"


def test_problems_of_lines_and_of_pictures_are_listed_row_by_row(tmp_path: Path):
    save(tmp_path / "0.png")
    good = {"image": "0.png", "question": "q", "box": [1, 2, 20, 18]}
    lines = [json.dumps(good | {"id": i}) for i in range(600)]
    for place in (2, 300, 597):
        lines[place] = json.dumps(good | {"image": f"none-{place}.png"})
    for place in (1, 3, 298, 302, 599):
        lines[place] = "{no json"
    (tmp_path / "boxes.jsonl").write_text("\n".join(lines) + "\n")
    report = check_file(tmp_path / "boxes.jsonl", limit=6)
    assert report.num_rows == 600 and report.num_problems >= 8
    assert [problem.place for problem in report.problems] == [f"boxes.jsonl:{n}" for n in (2, 3, 4, 299, 301, 303)]


def test_rows_of_other_splits_are_not_opened(tmp_path: Path, opened: list[str]):
    save(tmp_path / "a.png")
    rows = [{"image": f"{name}.png", "question": "q", "box": [1, 2, 9, 9], "split": name} for name in ("a", "b")]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    prompts, report = read_grounding(tmp_path / "rows.jsonl", GroundingLayout(tmp_path), split="a")
    assert report.ok and len(prompts) == 1 and opened == ["a.png"]


def test_prompts_that_cannot_be_built_are_named_in_their_turn(tmp_path: Path):
    # many, for the check of types in tests looks at one of them
    class Rows(list[Prompt]):
        def __getitem__(self, index: int) -> Prompt:  # type: ignore[override]
            if index in (1, 400):
                raise ValueError(f"row {index} cannot be built")
            return super().__getitem__(index)

    report = check(Rows(Prompt(f"p{i}", "" if i in (0, 250) else "hi") for i in range(50_000)), limit=99)
    assert [problem.place for problem in report.problems] == ["row 1", "row 2", "row 251", "row 401"]


def test_a_clip_of_many_questions_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, calls, known = write_video(tmp_path / "a.mp4", even(4)), list[str](), videos.decode_ends
    os.utime(path, OLD)
    monkeypatch.setattr(videos, "decode_ends", lambda path: (calls.append(path), known(path))[1])
    prompts = [Prompt(f"p{i}", f"what {i}?", (Video(str(path)),)) for i in range(6)]
    assert check(prompts).ok and len(calls) == 1


def test_a_picture_that_is_decoded_when_checked_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, calls = tmp_path / "a.webp", list[str]()
    Image.new("RGBA", (8, 8)).save(path)
    os.utime(path, OLD)
    monkeypatch.setattr(pictures, "_decode", lambda picture, name: calls.append(name))
    report = check([Prompt("p", "q", (str(path),))])
    assert calls == [str(path)] and report.noted == ["1 pictures with transparency, which is laid on white"]


def test_a_callers_picture_is_decoded_by_one_thread_at_a_time(tmp_path: Path):
    """PIL opens a file lazily, and two threads that decode one image break it."""
    save(tmp_path / "big.png", (400, 300))
    for _ in range(5):
        shared = Image.open(tmp_path / "big.png")
        assert check([Prompt(f"p{i}", f"what {i}?", (shared,)) for i in range(40)]).ok


def test_a_photograph_read_in_an_eighth_of_its_pixels_has_its_own_size(tmp_path: Path):
    path, exif = tmp_path / "a.jpg", Image.Exif()
    exif[0x0112] = 6
    Image.effect_noise((164, 48), 60).convert("RGB").save(path, exif=exif)
    assert picture_size(path, decode=True) == picture_size(path) == (48, 164)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(ValueError, match="is broken or cut short"):
        picture_size(path, decode=True)


def test_a_report_takes_problems_over_once_and_counts_those_without_a_text():
    other, report = Report("a", limit=2), Report("b", limit=5)
    for i in range(4):
        other.add(f"a:{i}", "bad")
    report.take_over(other, 1)
    report.take_over(other, 3)
    report.take_over(other, 3)
    assert report.num_problems == 3 and [str(problem) for problem in report.problems[:2]] == ["a:0: bad", "a:1: bad"]
    check_new_id(Prompt("p", "hi"), set())
