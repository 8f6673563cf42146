"""Frames of a clip at the times that are asked for."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mmrl.answers.calls import CallError
from mmrl.core.samples import Video
from mmrl.data.tools.pictures import frames
from tests.support.videos import HEIGHT, WIDTH, even, numbered, read_number, uneven, write_video


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Frame n shows n; 50 of them, 25 a second."""
    return write_video(tmp_path_factory.mktemp("clips") / "even.mp4", even(50))


def shown(video: Video, *times: float) -> list[int]:
    return [read_number(np.asarray(picture)) for _, picture in frames(video, times)]


def test_the_frame_at_a_time_is_the_one_on_the_screen(clip: str):
    assert shown(Video(clip), 0.0, 0.039, 0.04, 1.0, 2.0) == [0, 0, 1, 25, 49]


def test_frames_come_as_they_were_asked_for_in_the_size_of_the_file(clip: str):
    assert shown(Video(clip), 1.0, 0.4, 1.0) == [25, 10, 25]
    [(moment, picture)] = frames(Video(clip), [1.019])
    assert moment == pytest.approx(1.0) and picture.size == (WIDTH, HEIGHT) and picture.mode == "RGB"


def test_times_count_from_the_part_that_is_shown(clip: str):
    part = Video(clip, start=1.0, end=1.6)
    assert shown(part, 0.0, 0.2, 0.6) == [25, 30, 39]
    with pytest.raises(CallError, match=r"the clip lasts from 0 to 0\.60 s, and a time outside of it"):
        frames(part, [0.7])


def test_uneven_clips_have_their_own_times(tmp_path: Path):
    times = uneven(30, 1)
    path = write_video(tmp_path / "uneven.mkv", times)
    assert shown(Video(path), times[7] + 0.002, times[20] + 0.002) == [7, 20]


def test_pictures_in_a_row_are_a_clip(tmp_path: Path):
    for i in range(6):
        Image.fromarray(numbered(i)).save(tmp_path / f"{i}.png")
    row = Video(tuple(str(tmp_path / f"{i}.png") for i in range(6)), fps=2.0)
    assert shown(row, 0.0, 1.4, 3.0) == [0, 2, 5]


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([], "0 times are asked for: ask for 1 to 8"),
        ([0.0] * 9, "9 times are asked for: ask for 1 to 8"),
        ([-0.1], "a time outside of it is asked for"),
        ([2.1], "a time outside of it is asked for"),
        ([float("nan")], "a time outside of it is asked for"),
    ],
)
def test_times_that_cannot_be_shown_are_refused_in_a_sentence(clip: str, times: list[float], message: str):
    with pytest.raises(CallError, match=message):
        frames(Video(clip), times)


def test_a_file_that_is_no_clip_is_no_mistake_of_the_models(tmp_path: Path):
    (tmp_path / "a.mp4").write_bytes(b"no clip")
    with pytest.raises(ValueError, match="cannot be opened") as caught:
        frames(Video(str(tmp_path / "a.mp4")), [0.0])
    assert not isinstance(caught.value, CallError)
