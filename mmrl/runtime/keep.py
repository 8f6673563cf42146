"""Models that are taught once and kept: a folder appears whole or not at all, whoever makes it first."""

import hashlib
import inspect
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from mmrl.runtime.cache import cache_folder, note_new, note_use
from mmrl.runtime.disk import room_for

Progress = Callable[[int, int, float], None]
"""Called with the step (from 1), the number of steps, and the loss."""


def keep(folder: Path | None, name: str, index_file: str, make: Callable[[Path], object]) -> Path:
    """The folder; if it holds its index file already, nothing is made. None: `name` below MMRL_CACHE (or ~/.cache/mmrl).

    What `make` fills an empty folder with depends on settings alone, bit for bit on one machine; rounding may differ between
    machines.
    """
    folder = cache_folder() / name if folder is None else folder
    if (folder / index_file).exists():
        return note_use(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    try:
        with room_for(folder):
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


def hash_of(settings: Any, code: Sequence[ModuleType | Callable[..., object]], packages: Sequence[str]) -> str:
    """12 characters that tell apart settings (a dataclass or a table), the files of `code`, and packages' versions."""
    table: object = settings if isinstance(settings, Mapping) else asdict(settings)
    digest = hashlib.sha256(json.dumps(table, sort_keys=True).encode())
    for part in code:
        digest.update(part.__name__.encode() + Path(inspect.getfile(part)).read_bytes())
    digest.update(" ".join(map(version, packages)).encode())
    return digest.hexdigest()[:12]
