"""Files of pictures made byte by byte, for what no library writes."""

import struct
import zlib


def png_of(size: tuple[int, int], depth: int, colours: int, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG that says it has this size, bits per channel and kind of colours, and these chunks inside."""
    head = (b"IHDR", struct.pack(">IIBBBBB", *size, depth, colours, 0, 0, 0))
    parts = (head, *chunks, (b"IEND", b""))
    made = (struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


def tiff_of(bits: int, black: int = 1, row: bytes = bytes(4)) -> bytes:
    """A TIFF of two grey pixels that says how many bits each has; `black` 1: 0 is black, 0: 0 is white."""
    tags = [(256, 2), (257, 1), (258, bits), (259, 1), (262, black), (273, 8), (277, 1), (278, 1), (279, len(row))]
    entries = b"".join(struct.pack("<HHII", tag, 4 if tag != 258 else 3, 1, value) for tag, value in tags)
    place = 8 + len(row) + len(row) % 2
    return b"II*\0" + struct.pack("<I", place) + row.ljust(place - 8, b"\0") + struct.pack("<H", len(tags)) + entries + bytes(4)
