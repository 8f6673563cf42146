import io

import pytest
from PIL import Image

from mmrl.data.files.pictures import content_hash, open_picture, picture_size


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
