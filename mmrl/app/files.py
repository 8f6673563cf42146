"""Files that are whole or not there."""

import os
from pathlib import Path

from mmrl.runtime.disk import room_for
from mmrl.runtime.net.secrets import hide


def replace_text(file: Path, text: str) -> None:
    """Write a file whole or not at all, without keys."""
    replace_bytes(file, hide(text).encode())


def replace_bytes(file: Path, data: bytes) -> None:
    """Write a file whole or not at all."""
    fresh = file.with_name(file.name + ".new")
    try:
        with room_for(file), fresh.open("wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(fresh, file)
    finally:
        fresh.unlink(missing_ok=True)
