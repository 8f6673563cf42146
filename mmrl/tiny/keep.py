"""Models that are taught once and kept: a folder appears whole or not at all, whoever makes it first."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from mmrl.core.cache import cache_folder, note_new, note_use


def keep(folder: Path | None, name: str, index_file: str, make: Callable[[Path], object]) -> Path:
    """The folder; if it holds its index file already, nothing is made.

    Args:
        folder: where to keep it; None: `name` below MMRL_CACHE (or ~/.cache/mmrl).
        index_file: the file that every whole folder holds.
        make: fills an empty folder.
    """
    folder = cache_folder() / name if folder is None else folder
    if (folder / index_file).exists():
        return note_use(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    try:
        make(unfinished)
        unfinished.chmod(0o755)
        unfinished.rename(folder)
    except OSError:
        # another process finished the same folder first
        if not (folder / index_file).exists():
            raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return note_new(folder)
