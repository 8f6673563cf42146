"""Opening, measuring and hashing pictures; broken files are found without decoding all of them."""

import hashlib
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Lock
from typing import TypeVar

from PIL import ExifTags, Image

from mmrl.core.types import MediaSize, Prompt
from mmrl.data.files.ahead import FileMemory
from mmrl.runtime.near import link
from mmrl.runtime.pictures import notes_on, upright_rgb

PICTURE_SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff"})
_LAST_BYTES = {"PNG": b"IEND\xaeB`\x82", "JPEG": b"\xff\xd9"}
"""How a complete file of this format ends."""
TURNED = range(5, 9)
"""EXIF orientations that swap width and height."""
Look = tuple[int, int, tuple[str, ...]]
"""Width, height, and what of it is not shown as it is stored."""
_SIZES: FileMemory[Look] = FileMemory()
_DECODED: FileMemory[Look] = FileMemory()
T = TypeVar("T")
_HELD = Lock()
"""Around a caller's own image, which several prompts may hold: PIL cannot decode one image in two threads."""


def open_picture(source: object) -> Image.Image:
    """A PIL image from a path, bytes, a Hugging Face image cell ({"bytes": .., "path": ..}) or a PIL image; not yet decoded.

    Raises FileNotFoundError for a missing file, ValueError for anything that is not a picture.
    """
    if isinstance(source, Image.Image):
        return source
    if isinstance(source, dict):
        source = _inside_cell(source)
    if isinstance(source, str | Path):
        if not Path(source).is_file():
            raise FileNotFoundError(f"picture {source} does not exist{link(source)}")
        return _open(Path(source), str(source))
    if isinstance(source, bytes):
        return _open(io.BytesIO(source), f"({len(source)} bytes)")
    raise ValueError(f"a picture must be a path, bytes or a PIL image, not {type(source).__name__}")


def picture_size(source: object, decode: bool = False) -> tuple[int, int]:
    """Width and height of the picture held upright, as EXIF demands and as models see it.

    A file that does not end as its format demands is decoded to see whether it is broken.
    Raises FileNotFoundError or ValueError. `decode` decodes every file: slower, and finds damage in the middle too. A file is
    looked at again only if it changes. Several threads may ask at the same time.
    """
    return _look(source, decode)[:2]


def size_of(prompt: Prompt) -> MediaSize | None:
    """The size of the prompt's first picture, seen as it is."""
    known = prompt.columns.get("size")
    if known is None and prompt.media and isinstance(prompt.media[0], str | Path):
        known = picture_size(str(prompt.media[0]))
    elif known is None and prompt.media and hasattr(prompt.media[0], "size"):
        known = prompt.media[0].size
    return None if known is None else MediaSize(*known, *known)


def picture_notes(source: object, decode: bool = False) -> tuple[str, ...]:
    """Notes on what is not shown as it is stored, such as transparency; arguments and errors are those of `picture_size`."""
    return _look(source, decode)[2]


def upright(source: object) -> Image.Image:
    """A copy as everybody is shown it, in its file's own size. Raises FileNotFoundError, ValueError for what is no picture."""
    with _picture(source) as picture:
        _decode(picture, _name(source))
        return _named(upright_rgb, picture, source, lent=picture is not source)


def _look(source: object, decode: bool) -> Look:
    if isinstance(source, str | Path):
        return (_DECODED if decode else _SIZES)(source, lambda: _measure(source, decode))
    with _HELD if isinstance(source, Image.Image) else nullcontext():
        return _measure(source, decode)


def _named(of: Callable[..., T], picture: Image.Image, source: object, **how: bool) -> T:
    try:
        return of(picture, **how)
    except ValueError as error:
        raise ValueError(f"picture {_name(source)} {error}") from None


def _measure(source: object, decode: bool) -> Look:
    with _picture(source) as picture:
        width, height = picture.size
        notes = _named(notes_on, picture, source)
        turned = _orientation(picture, _name(source)) in TURNED
        if decode or not (isinstance(source, Image.Image) or _ends_well(source, picture.format)):
            if picture is not source:
                # JPEG: every bit is read, and an eighth of the pixels made; other formats know no shorter way
                picture.draft("L", (max(1, width // 8), max(1, height // 8)))
            _decode(picture, _name(source))
        return (height, width, notes) if turned else (width, height, notes)


def orientation_of(source: object) -> int:
    """The EXIF orientation of a picture, by which it is turned upright; 1 where it is stored as it is seen."""
    with _picture(source) as picture:
        return _orientation(picture, _name(source)) or 1


def content_hash(source: object) -> str:
    """A hash of the pixels as they are shown: equal for equal pictures, whatever their files' names and formats."""
    rgb = upright(source)
    made = hashlib.sha256(f"{rgb.size}".encode())
    made.update(rgb.tobytes())
    return made.hexdigest()


@contextmanager
def _picture(source: object) -> Iterator[Image.Image]:
    """Open a picture for a block; its file is closed again, a caller's own image stays as it is."""
    picture = open_picture(source)
    try:
        yield picture
    finally:
        if picture is not source:
            picture.close()


def _open(file: Path | io.BytesIO, name: str) -> Image.Image:
    try:
        return Image.open(file)
    except Exception as error:  # noqa: BLE001 - decoders raise whatever a broken file provokes
        raise ValueError(f"picture {name} cannot be read: {error}") from None


def _decode(picture: Image.Image, name: str) -> None:
    try:
        picture.load()
    except Exception as error:  # noqa: BLE001 - decoders raise whatever a broken file provokes
        raise ValueError(f"picture {name} is broken or cut short: {error}") from None


def _orientation(picture: Image.Image, name: str) -> int | None:
    # reading the orientation of a PNG that notes none would decode it
    if picture.format == "PNG" and "exif" not in picture.info:
        return None
    try:
        return picture.getexif().get(ExifTags.Base.Orientation)
    except Exception as error:  # noqa: BLE001 - decoders raise whatever a broken file provokes
        raise ValueError(f"picture {name} has unreadable notes on its orientation: {error}") from None


def _ends_well(source: object, picture_format: str | None) -> bool:
    last = _LAST_BYTES.get(picture_format or "")
    if last is None:
        return False
    if isinstance(source, dict):
        source = _inside_cell(source)
    if isinstance(source, bytes):
        return source.endswith(last)
    with Path(str(source)).open("rb") as file:
        file.seek(-len(last), io.SEEK_END)
        return file.read() == last


def _inside_cell(cell: Mapping[object, object]) -> object:
    """The bytes of a Hugging Face image cell, else its path."""
    return cell.get("bytes") or cell.get("path")


def _name(source: object) -> str:
    return str(source) if isinstance(source, str | Path) else "(not a file)"
