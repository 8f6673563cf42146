"""Attacks by pictures and clips: heads that lie, numbers without a white, transparency, turns and pixels that nothing has."""

import io
import struct
import zlib
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image

from tests.attacks.attack import Attack
from tests.attacks.data import Make, check, fine, rows, with_file
from tests.support.videos import even, turn, write_transparent, write_video

ASKED = {"question": "what happens?", "answer": "it falls"}


def stored(picture: Image.Image, kind: str, **how: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **how)
    return file.getvalue()


def png(size: int, depth: int, colours: int) -> bytes:
    """A PNG that says it is a square of this size, with a few bytes of pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", size, size, depth, colours, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(bytes(1_000_000))), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)


def tiff(bits: int) -> bytes:
    """A TIFF of two grey pixels that says how many bits each has."""
    tags = [(256, 2), (257, 1), (258, bits), (259, 1), (262, 1), (273, 8), (277, 1), (278, 1), (279, 4)]
    entries = b"".join(struct.pack("<HHII", tag, 3 if tag == 258 else 4, 1, value) for tag, value in tags)
    return b"II*\0" + struct.pack("<I", 12) + bytes(4) + struct.pack("<H", len(tags)) + entries + bytes(4)


def clip(write: Callable[[Path], object]) -> Make:
    """A row about a clip that is written."""

    def make(folder: Path) -> str:
        write(folder / "a.mp4")
        return rows({"video": "a.mp4", **ASKED}, good=0)(folder)

    return make


def part(**wishes: object) -> Make:
    """A row that asks for a part of a clip."""

    def make(folder: Path) -> str:
        write_video(folder / "a.mp4", even(10))
        return rows({"video": {"video": "a.mp4", **wishes}, **ASKED}, good=0)(folder)

    return make


def turned(*matrix: float) -> Make:
    def write(path: Path) -> None:
        plain = write_video(path.with_name("plain.mp4"), even(10))
        turn(plain, path, (matrix[0], matrix[1], matrix[2], matrix[3]))

    return clip(write)


FLOATS = Image.fromarray(np.full((48, 64), 1e30, np.float32))
CLEAR = Image.new("RGBA", (64, 48), (0, 0, 0, 0))
REFUSED: dict[str, tuple[tuple[str, ...], Make]] = {
    "a picture of floats": (("rows.jsonl:2", "a.tif", "holds floats of 32 bits"), with_file("a.tif", stored(FLOATS, "TIFF"))),
    "a picture of 16 bits that unpacks to 7 GB": (("rows.jsonl:2", "picture"), with_file("a.png", png(60_000, 16, 0))),
    "a transparent picture that unpacks to 14 GB": (("rows.jsonl:2", "picture"), with_file("a.png", png(60_000, 8, 6))),
    "a picture of 65,535 bits a pixel": (("rows.jsonl:2", "cannot be read"), with_file("a.tif", tiff(65_535))),
    "a picture of no bits": (("rows.jsonl:2", "cannot be read"), with_file("a.tif", tiff(0))),
    "a clip that is turned by 33 degrees": (("rows.jsonl:1", "no quarter"), turned(0.839, 0.545, -0.545, 0.839)),
    "a clip that is shown nowhere": (("rows.jsonl:1", "no quarter"), turned(0, 0, 0, 0)),
    "a clip whose pixels are 60 times as high as wide": (
        ("rows.jsonl:1", "as wide as high"),
        clip(lambda path: write_video(path, even(10), aspect=Fraction(1, 60))),
    ),
    "a part of a clip from NaN on": (("rows.jsonl:1", "video_start", "number"), part(video_start=float("nan"))),
    "a part of a clip that is a list": (("rows.jsonl:1", "video_end", "number"), part(video_end=[1])),
    "1e300 frames a second": (("rows.jsonl:1", "fps", "number"), part(fps=1e300)),
    "a word that clips do not know": (("rows.jsonl:1", "__class__"), part(__class__="os")),
}
PASSING: dict[str, Make] = {
    "a picture that is transparent all over": with_file("a.png", stored(CLEAR, "PNG")),
    "a transparent picture of 81 million pixels": with_file("a.png", stored(Image.new("LA", (9_000, 9_000)), "PNG")),
    "a colour for transparency that no pixel has": with_file(
        "a.png", stored(Image.new("RGB", (64, 48)), "PNG", transparency=(9, 9, 9))
    ),
    "transparent frames": clip(lambda path: Path(write_transparent(path.with_suffix(".mov"), "png", "rgba")).rename(path)),
    "a mirrored clip": turned(-1, 0, 0, 1),
}
ATTACKS = [
    *(Attack("data", f"data check: {name}", partial(check, *case)) for name, case in REFUSED.items()),
    *(Attack("data", f"data check: {name} passes", partial(fine, make)) for name, make in PASSING.items()),
]
