"""Pictures and videos looked at before training."""

import io

import pytest
from PIL import Image

from mmrl.core.samples import Video
from mmrl.data.files.pictures import content_hash, open_picture, picture_size
from mmrl.data.files.videos import check_video, probe_video
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
    with pytest.raises(ValueError, match=r"cat\.\w+ (cannot be read|is broken)"):
        picture_size(path)


def test_a_whole_file_with_bytes_behind_it_is_fine(tmp_path):
    path = tmp_path / "cat.jpeg"
    path.write_bytes(noise("jpeg") + b"\0" * 20)
    assert picture_size(path) == (80, 60)


def test_damage_in_the_middle_needs_decoding(tmp_path):
    whole = bytearray(noise("png"))
    whole[len(whole) // 2] ^= 0xFF
    path = tmp_path / "cat.png"
    path.write_bytes(whole)
    assert picture_size(path) == (80, 60)
    with pytest.raises(ValueError, match="is broken"):
        picture_size(path, decode=True)


def test_every_kind_of_source_opens(tmp_path):
    path, whole = tmp_path / "cat.png", noise("png")
    path.write_bytes(whole)
    sources = [path, str(path), whole, {"bytes": whole, "path": None}, {"bytes": None, "path": str(path)}, Image.open(path)]
    assert {open_picture(source).size for source in sources} == {(80, 60)}
    assert len({content_hash(source) for source in sources}) == 1


def test_a_callers_picture_stays_open():
    picture = Image.new("RGB", (4, 4))
    assert picture_size(picture, decode=True) == (4, 4)
    assert picture.getpixel((0, 0)) == (0, 0, 0)


def test_mistakes_are_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.png does not exist"):
        picture_size(tmp_path / "nowhere.png")
    with pytest.raises(ValueError, match="not int"):
        open_picture(3)


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
