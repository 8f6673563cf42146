"""Bytes in the pipes between a sandbox and who started it: lengths first, and nothing that a decoder would read."""

import os
import select
import struct
import time
from math import inf

LENGTH = struct.Struct("<I")
"""In front of what goes in."""
REPLY = struct.Struct("<III")
"""What comes out: bytes of the printed text and of the error, and the number of pictures; then their sizes, texts, pixels."""
SIZE = struct.Struct("<II")
LONGEST_ERROR = 500
CUT = " ... (the rest is cut)"
"""Behind printed text that was too long."""


def write(pipe: int, data: bytes, end: float = inf) -> None:
    """Raises TimeoutError at `end`, by the monotonic clock; BrokenPipeError."""
    view = memoryview(data)
    while view:
        wait(pipe, select.POLLOUT, end)
        view = view[os.write(pipe, view[: 1 << 16]) :]


def read(pipe: int, size: int, end: float = inf) -> bytes:
    """Raises TimeoutError at `end`, by the monotonic clock; EOFError."""
    data = bytearray()
    while len(data) < size:
        wait(pipe, select.POLLIN, end)
        got = os.read(pipe, min(size - len(data), 1 << 20))
        if not got:
            raise EOFError
        data += got
    return bytes(data)


def wait(pipe: int, what: int, end: float) -> None:
    """Until a pipe can be read or written."""
    poll = select.poll()
    poll.register(pipe, what)
    if not poll.poll(None if end == inf else max(0.0, end - time.monotonic()) * 1000):
        raise TimeoutError
