"""Videos looked at before training."""

import pytest

from mmrl.core.samples import Video
from mmrl.data.files.videos import check_video, probe_video
from tests.support.videos import even, numbered, uneven, write_video


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
    with pytest.raises(ValueError, match=r"2\.png is 64 x 48, the first of its sequence 256 x 96"):
        check_video(Video(tuple(paths)))
    with pytest.raises(ValueError, match="holds none"):
        check_video(Video(()))


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        ({"start": 3.0}, "asks for 3 s to 2 s, and the file lasts from 0 to 2.00 s"),
        ({"end": 2.5}, "asks for 0 s to 2.5 s"),
        ({"start": 1.0, "end": 1.04}, r"holds 1 frames in the part that is shown, fewer than 4"),
        ({"frames": 51}, "holds 50 frames in the part that is shown, fewer than 51"),
        ({"frames": 4, "fps": 2.0}, "names both fps and frames"),
        ({"fps": -1.0}, "asks for -1.0 frames"),
    ],
)
def test_clips_that_cannot_be_shown(clip, wish, message):
    check_video(clip, min_frames=4)
    with pytest.raises(ValueError, match=message):
        check_video(Video(clip, **wish), min_frames=4)


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
        with pytest.raises(ValueError, match=rf"{name}\.mp4' .*{message}"):
            check_video(path)
    with pytest.raises(FileNotFoundError, match=r"there is no video 'gone\.mp4'"):
        check_video("gone.mp4")
    with pytest.raises(ValueError, match=r"holds no pictures, only audio"):
        check_video(write_video(tmp_path / "sound.mp4", [], sound=True))
