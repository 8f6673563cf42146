"""Pictures of prompts, as policies read them."""

import hashlib
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path

from PIL import Image

from mmrl.policies.shared.workers.crew import Crew, Early, Restarts
from mmrl.runtime.pictures import open_upright

THREADS = 2
"""Threads that open pictures: decoding leaves the interpreter to others."""


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


@dataclass(eq=False)
class PictureInput:
    """Picture -> as everybody is shown it, opened by threads where it was announced, or now."""

    most_mib: int
    """MiB of opened pictures that may wait to be taken; 0 = all are opened when they are taken."""
    early: Early = field(init=False)
    used: bool = field(default=False, init=False)
    """True once a picture's file was asked for."""

    def __post_init__(self) -> None:
        openers = partial(Crew, [Opener() for _ in range(THREADS)], Restarts(0), "picture")
        self.early = Early(openers, float(self.most_mib << 20))

    def ask(self, sources: Iterable[object]) -> None:
        """Let threads begin with these pictures' files; what is wrong with one is found when it is taken."""
        files = {key: source for source in sources if self.most_mib and (key := stamp(source)) is not None}
        if files:
            self.early.ask({key: ((file,), size) for key, file in files.items() if (size := bytes_of(file))})

    def __call__(self, source: object, prompt_id: str) -> Image.Image:
        """Raises what `open_picture` raises."""
        key = stamp(source)
        self.used |= key is not None
        board = None if key is None else self.early.take(key)
        if board is not None:
            try:
                return board.wait()[0]
            except Exception as error:
                # what went wrong early is tried again, and said as it is then
                if error is not board.error:
                    raise
        return open_picture(source, prompt_id)


class Opener:
    """Opens pictures in a thread of the run's own process."""

    def __call__(self, source: object, **options: object) -> Image.Image:
        return open_upright(source)

    def give_up(self) -> None:
        """A picture under way is soon opened."""

    close = give_up


def stamp(source: object) -> Hashable:
    """Changes when a picture's file is written again; None for what is no file."""
    try:
        status = Path(source).stat() if isinstance(source, str | Path) else None
    except (OSError, ValueError):
        return None
    return None if status is None else (str(source), status.st_ino, status.st_mtime_ns, status.st_size)


def bytes_of(file: object) -> int:
    """The bytes of a picture once it is opened, by the head of its file; 0 where that tells nothing."""
    try:
        with Image.open(str(file)) as picture:
            return 4 * picture.width * picture.height
    except Exception:  # noqa: BLE001 - who opens it says what is wrong
        return 0
