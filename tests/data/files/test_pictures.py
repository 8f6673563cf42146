"""Pictures and videos looked at before training, by threads ahead of those who ask: the same answers, and every file once."""

import io
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
from mmrl.data.files.pictures import content_hash, open_picture, picture_size
from mmrl.data.files.videos import check_video, probe_video
from mmrl.data.grounding import GroundingLayout
from mmrl.data.validate import Report, check, check_new_id
from tests.support.grounding import check_file, read_grounding
from tests.support.refused import refused
from tests.support.videos import even, numbered, uneven, write_video


def noise(suffix, size=(80, 60)):
    buffer = io.BytesIO()
    Image.effect_noise(size, 80).convert("RGB").save(buffer, suffix)
    return buffer.getvalue()


@pytest.mark.parametrize("suffix", ["jpeg", "png", "webp", "bmp", "gif"])
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.98])
def test_files_cut_short_are_found(suffix, share, tmp_path):
    whole = noise(suffix)
    path = tmp_path / f"cat.{suffix}"
    path.write_bytes(whole)
    assert picture_size(path) == picture_size(str(path), decode=True) == picture_size(whole) == (80, 60)
    path.write_bytes(whole[: int(share * len(whole))])
    refused(r"cat\.\w+ (cannot be read|is broken)", picture_size, path)


def test_bytes_behind_a_file_are_fine_and_damage_in_the_middle_needs_decoding(tmp_path):
    whole = bytearray(noise("png"))
    whole[len(whole) // 2] ^= 0xFF
    path = tmp_path / "cat.png"
    path.write_bytes(whole)
    assert picture_size(path) == (80, 60)
    refused("is broken", picture_size, path, decode=True)
    path = tmp_path / "cat.jpeg"
    path.write_bytes(noise("jpeg") + b"\0" * 20)
    assert picture_size(path) == (80, 60)


def test_every_kind_of_source_opens_and_a_callers_picture_stays_open(tmp_path):
    path, whole = tmp_path / "cat.png", noise("png")
    path.write_bytes(whole)
    sources = [path, str(path), whole, {"bytes": whole, "path": None}, {"bytes": None, "path": str(path)}, Image.open(path)]
    assert {open_picture(source).size for source in sources} == {(80, 60)}
    assert len({content_hash(source) for source in sources}) == 1
    picture = Image.new("RGB", (4, 4))
    assert picture_size(picture, decode=True) == (4, 4)
    assert picture.getpixel((0, 0)) == (0, 0, 0)
    refused(r"nowhere\.png does not exist", picture_size, tmp_path / "nowhere.png", error=FileNotFoundError)
    refused("not int", open_picture, 3)


def test_content_hash_ignores_name_and_format_and_sees_a_pixel(picture, tmp_path):
    one, two, three = (tmp_path / picture(name) for name in ("a.png", "b.bmp", "c.png"))
    assert content_hash(one) == content_hash(two) == content_hash(three)
    changed = Image.open(three)
    changed.putpixel((3, 3), (0, 0, 0))
    assert content_hash(one) != content_hash(changed)
    assert content_hash(Image.new("RGB", (2, 6))) != content_hash(Image.new("RGB", (3, 4)))


@pytest.mark.parametrize("suffix", ["jpeg", "png", "webp"])
def test_pictures_taken_sideways_count_upright(suffix, tmp_path):
    """Boxes and policies speak of the picture as people see it."""
    sideways, upright = tmp_path / f"sideways.{suffix}", tmp_path / f"upright.{suffix}"
    picture, exif = Image.effect_noise((80, 60), 50), Image.Exif()
    exif[0x0112] = 6
    picture.save(sideways, exif=exif)
    picture.save(upright)
    assert picture_size(sideways) == picture_size(sideways, decode=True) == (60, 80)
    assert picture_size(upright) == (80, 60)
    assert content_hash(sideways) == content_hash(Image.open(upright).transpose(Image.Transpose.ROTATE_270))


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    return write_video(tmp_path_factory.mktemp("clips") / "even.mp4", even(50), size=(128, 64))


def test_what_a_file_holds(clip, tmp_path):
    assert probe_video(clip) == (2.0, 25.0, 50, False)
    assert probe_video(Video(clip, start=0.5, end=1.5)) == (1.0, 25.0, 25, False)
    facts = probe_video(write_video(tmp_path / "uneven.mkv", uneven(20), size=(128, 64)))
    assert facts.frames == 20 and facts.varies
    assert not probe_video(write_video(tmp_path / "even.webm", even(30, 30.0), codec="libvpx-vp9")).varies


def test_pictures_in_a_row(tmp_path):
    from PIL import Image

    paths = [str(tmp_path / f"{i}.png") for i in range(4)]
    for i, path in enumerate(paths):
        Image.fromarray(numbered(i)).save(path)
    assert probe_video(Video(tuple(paths), fps=2.0)) == (2.0, 2.0, 4, False)
    Image.fromarray(numbered(0, 64, 48)).save(paths[2])
    refused(r"2\.png is 64 x 48, the first of its sequence 256 x 96", check_video, Video(tuple(paths)))
    refused("holds none", check_video, Video(()))


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"start": 3.0}, "asks for 3 s to 2 s, and the file lasts from 0 to 2.00 s"),
        ({"end": 2.5}, "asks for 0 s to 2.5 s"),
        ({"start": 1.0, "end": 1.04}, r"holds 1 frames in the part that is shown, fewer than 4"),
        ({"frames": 51}, "holds 50 frames in the part that is shown, fewer than 51"),
        ({"frames": 4, "fps": 2.0}, "names both fps and frames"),
        ({"fps": -1.0}, "asks for -1.0 frames"),
        ({"frames": 0}, "asks for 0 frames"),
    ],
)
def test_clips_that_cannot_be_shown(clip, wish, message):
    check_video(clip, min_frames=4)
    refused(message, check_video, Video(clip, **wish), min_frames=4)


def test_files_that_cannot_be_read(clip, tmp_path):
    with open(clip, "rb") as file:
        whole = bytearray(file.read())
    start = whole.index(b"mdat") + 4
    damaged = whole.copy()
    damaged[start:-2000] = bytes(len(whole) - 2000 - start)
    cases = {
        "empty": (b"", "is an empty file"),
        "text": (b"no video" * 99, "cannot be opened"),
        "cut": (whole[: len(whole) // 2], "cannot be opened"),
        "codec": (whole.replace(b"avc1", b"zzz9"), "a codec that this FFmpeg does not know"),
        "damaged": (damaged, "cannot be decoded"),
    }
    for name, (content, message) in cases.items():
        path = tmp_path / f"{name}.mp4"
        path.write_bytes(content)
        refused(rf"{name}\.mp4' .*{message}", check_video, path)
    refused(r"there is no video 'gone\.mp4'", check_video, "gone.mp4", error=FileNotFoundError)
    refused(r"holds no pictures, only audio", check_video, write_video(tmp_path / "sound.mp4", [], sound=True))


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


def test_what_is_known_of_a_file_is_forgotten_when_it_changes_and_errors_at_once(tmp_path: Path):
    path, memory, calls = save(tmp_path / "a.png"), FileMemory[int](), list[int]()

    def find_out() -> int:
        calls.append(1)
        return len(calls)

    assert memory(path, find_out) == memory(str(path), find_out) == 1
    os.utime(path, (OLD[0], OLD[1] + 1))
    assert memory(path, find_out) == 2
    os.utime(path, (3 * OLD[0], 3 * OLD[0]))
    assert memory(path, find_out) == 3 and memory(path, find_out) == 4, "written just now: it may change within one tick"
    path, memory = save(tmp_path / "a.png"), FileMemory[int]()

    def fail() -> int:
        raise ValueError("broken")

    for _ in range(2):
        refused("broken", memory, path, fail)
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
    refused("is broken or cut short", picture_size, path, decode=True)


def test_a_report_takes_problems_over_once_and_counts_those_without_a_text():
    other, report = Report("a", limit=2), Report("b", limit=5)
    for i in range(4):
        other.add(f"a:{i}", "bad")
    report.take_over(other, 1)
    report.take_over(other, 3)
    report.take_over(other, 3)
    assert report.num_problems == 3 and [str(problem) for problem in report.problems[:2]] == ["a:0: bad", "a:1: bad"]
    check_new_id(Prompt("p", "hi"), set())
