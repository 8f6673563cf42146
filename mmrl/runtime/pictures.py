"""A picture as everybody is shown it, whatever its file: upright, in RGB of 8 bits, on white where it is transparent."""

from contextlib import nullcontext
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

GREY_16 = ("I;16", "I;16L", "I;16B", "I;16N")
ONLY_16 = ("PNG", "PPM")
"""Formats whose integers of 32 bits, as PIL holds them, were 16 bits in the file."""
BITS, INVERTED = 258, 262
"""TIFF's tags for the bits of a pixel, and for 0 as white or black."""
FEW_BITS = {"L;2": 85, "L;4": 17}
"""Greys of few bits as PIL names them -> what it multiplies pixels by, though not the grey that stands for transparent."""
Fit = Literal["resize", "crop", "pad"]
"""resize: stretched; crop: what lies in the middle; pad: all of it, with white at two sides."""


def upright_rgb(picture: Image.Image, lent: bool = False) -> Image.Image:
    """A copy of the picture; ValueError, as the end of a sentence about it, where nothing says which of its numbers is white.

    Where nothing is to change, a `lent` picture's copy has its pixels until one draws on the copy: for pictures that nobody
    draws on while the copy is used.
    """
    white, flat = white_of(picture), transparent_grey(picture)
    picture.load()
    is_upright = picture.getexif().get(ExifTags.Base.Orientation, 1) == 1
    turned = picture if is_upright else ImageOps.exif_transpose(picture)
    if white is not None:
        return Image.fromarray(_in_8_bits(np.asarray(turned), white, flat)).convert("RGB")
    if not turned.has_transparency_data:
        if turned.mode != "RGB" or (turned is picture and not lent):
            return turned.convert("RGB")
        copy = turned._new(turned.im)
        copy.readonly = 1
        return copy
    if flat is not None:
        turned = turned.copy()
        turned.info["transparency"] = flat
    layer = (turned.convert("LA") if turned.mode == "La" else turned).convert("RGBA")
    shown = Image.new("RGB", layer.size, "white")
    shown.paste(layer, mask=layer.getchannel("A"))
    return shown


def picture_at(picture: Image.Image, size: tuple[int, int], fit: Fit = "resize") -> Image.Image:
    """The picture at `size` = (width, height) in pixels: as a model sees the start of an edit, and rewards compare with it."""
    upright = upright_rgb(picture, lent=True)
    if upright.size == size:
        return upright.copy()
    if fit == "crop":
        return ImageOps.fit(upright, size, Image.Resampling.LANCZOS)
    if fit == "pad":
        return ImageOps.pad(upright, size, Image.Resampling.LANCZOS, color="white")
    return upright.resize(size, Image.Resampling.LANCZOS)


def notes_on(picture: Image.Image) -> tuple[str, ...]:
    """Notes on what of the picture is not shown as it is stored; ValueError as `upright_rgb`."""
    notes = {
        "pictures of several frames, of which the first is shown": has_frames(picture),
        "pictures of 16 bits, shown in 8": white_of(picture) is not None,
        "pictures with transparency, which is laid on white": picture.has_transparency_data,
    }
    return tuple(note for note, is_so in notes.items() if is_so)


def has_frames(picture: Image.Image) -> bool:
    """Does it move, or have pages? Not what phones store beside a photograph."""
    try:
        return picture.format != "MPO" and bool(getattr(picture, "is_animated", False))
    except Exception:  # noqa: BLE001 - decoders raise whatever a broken second frame provokes
        return True


def white_of(picture: Image.Image) -> int | None:
    """The white of greys of more than 8 bits (negative: 0 is white, and this is black), None for other pictures."""
    if picture.mode in GREY_16 or (picture.mode == "I" and picture.format in ONLY_16):
        tags: dict[int, tuple[int, ...]] = getattr(picture, "tag_v2", {})
        most = 2 ** tags.get(BITS, (16,))[0] - 1
        return -most if tags.get(INVERTED) in (0, (0,)) else most
    if picture.mode in ("I", "F"):
        kind = "floats" if picture.mode == "F" else "integers"
        raise ValueError(f"holds {kind} of 32 bits, of which nothing says what is white: save it in 8 or 16 bits")
    return None


def transparent_grey(picture: Image.Image) -> int | None:
    """The grey that stands for transparent, in the numbers of the pixels."""
    grey = picture.info.get("transparency")
    if picture.mode not in ("L", *GREY_16) or not isinstance(grey, int):
        return None
    tiles = getattr(picture, "tile", None) or ((None,),)
    return grey * FEW_BITS.get(str(tiles[0][-1]), 1)


def open_upright(source: object, name: str = "") -> Image.Image:
    """A picture, by path or of PIL, as everybody is shown it.

    Raises FileNotFoundError, or ValueError for what is no picture, a truncated one, one whose white is unknown, and other things;
    `name` is said first, as in "prompt '7': ".
    """
    if not isinstance(source, str | Path | Image.Image):
        raise ValueError(f"{name}a picture is a path or a PIL image, not {type(source).__name__}")
    what = "a picture" if isinstance(source, Image.Image) else f"the picture {str(source)!r}"
    try:
        with nullcontext(source) if isinstance(source, Image.Image) else Image.open(source) as picture:
            return upright_rgb(picture, lent=picture is not source)
    except FileNotFoundError:
        raise FileNotFoundError(f"{name}there is no picture {str(source)!r}") from None
    except UnidentifiedImageError:
        raise ValueError(f"{name}{str(source)!r} is not a picture that PIL can read") from None
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"{name}{what} is damaged ({error})") from None
    except ValueError as error:
        raise ValueError(f"{name}{what} {error}") from None


def _in_8_bits(values: np.ndarray, white: int, transparent: int | None) -> np.ndarray:
    most = abs(white)
    greys = (np.minimum(np.arange(2**16), most) * 255 + most // 2) // most
    table = (greys if white > 0 else 255 - greys).astype(np.uint8)
    if transparent is not None:
        table[transparent] = 255
    return table[np.clip(values, 0, 2**16 - 1)]
