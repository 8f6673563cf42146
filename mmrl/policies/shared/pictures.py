"""Pictures of prompts, as policies read them."""

import hashlib
from functools import lru_cache
from pathlib import Path

from PIL import Image

from mmrl.runtime.pictures import open_upright


def open_picture(source: object, prompt_id: str) -> Image.Image:
    """A picture as everybody is shown it; errors are those of `open_upright`."""
    return open_upright(source, f"prompt {prompt_id!r}: ")


def digest_of_picture(source: object) -> str:
    """A name of a picture's content: of its file's bytes, which are read again once the file changes, or of its pixels."""
    if isinstance(source, Image.Image):
        # not as it is shown: a picture may be too large to be converted
        palette = source.getpalette(None) if source.mode in ("P", "PA") else None
        how = (source.mode, source.size, source.info.get("transparency"), palette, dict(source.getexif()))
        made = hashlib.blake2b(repr(how).encode(), digest_size=16)
        made.update(source.tobytes())
        return made.hexdigest()
    if isinstance(source, str | Path) and Path(source).is_file():
        status = Path(source).stat()
        return _digest_of_file(str(source), status.st_mtime_ns, status.st_size)
    return hashlib.blake2b(repr(source).encode(), digest_size=16).hexdigest()


@lru_cache(maxsize=65536)
def _digest_of_file(path: str, changed_ns: int, size: int) -> str:
    return hashlib.blake2b(Path(path).read_bytes(), digest_size=16).hexdigest()
