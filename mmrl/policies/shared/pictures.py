"""Pictures of prompts, as policies read them."""

import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from PIL import Image, UnidentifiedImageError

from mmrl.runtime.pictures import upright_rgb


def open_picture(source: object, prompt_id: str) -> Image.Image:
    """A picture as everybody is shown it, see `upright_rgb`.

    Raises FileNotFoundError, or ValueError for what is no picture, a truncated one, one without a known white, and other things.
    """
    if isinstance(source, Image.Image):
        with _naming(f"prompt {prompt_id!r}: a picture"):
            return upright_rgb(source)
    if not isinstance(source, str | Path):
        raise ValueError(f"prompt {prompt_id!r}: a picture is a path or a PIL image, not {type(source).__name__}")
    try:
        with Image.open(source) as picture, _naming(f"prompt {prompt_id!r}: the picture {str(source)!r}"):
            return upright_rgb(picture)
    except FileNotFoundError:
        raise FileNotFoundError(f"prompt {prompt_id!r}: there is no picture {str(source)!r}") from None
    except UnidentifiedImageError:
        raise ValueError(f"prompt {prompt_id!r}: {str(source)!r} is not a picture that PIL can read") from None
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"prompt {prompt_id!r}: the picture {str(source)!r} is damaged ({error})") from None


@contextmanager
def _naming(picture: str) -> Generator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{picture} {error}") from None


def digest_of_picture(source: object) -> str:
    """A name of a picture's content: of its file's bytes, which are read again once the file changes, or of its pixels."""
    if isinstance(source, Image.Image):
        shown = upright_rgb(source)
        made = hashlib.blake2b(repr(shown.size).encode(), digest_size=16)
        made.update(shown.tobytes())
        return made.hexdigest()
    if isinstance(source, str | Path) and Path(source).is_file():
        status = Path(source).stat()
        return _digest_of_file(str(source), status.st_mtime_ns, status.st_size)
    return hashlib.blake2b(repr(source).encode(), digest_size=16).hexdigest()


@lru_cache(maxsize=65536)
def _digest_of_file(path: str, changed_ns: int, size: int) -> str:
    return hashlib.blake2b(Path(path).read_bytes(), digest_size=16).hexdigest()
