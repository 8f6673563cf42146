"""Writes JSONL files whole or not at all, and keeps the paths of rows inside their folder."""

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import cast

from mmrl.runtime.disk import whole_file

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|data:\w+/")
FOLLOW_LINKS = "MMRL_FOLLOW_LINKS"
"""Environment variable: 1 lets links in a folder of pictures or videos lead out of it."""


def write_jsonl(files: Mapping[Path, Iterable[Mapping[str, object]]]) -> None:
    """Write every file under a temporary name, then rename all: on failure the old files are untouched."""
    with ExitStack() as all_written:
        for path, rows in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with all_written.enter_context(whole_file(path)).open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
                file.flush()
                os.fsync(file.fileno())


def relative_to(picture: str, root: Path, folder: Path) -> str:
    """The path of a picture, which starts at `root` unless it is absolute, as seen from `folder`; absolute outside of it."""
    seen = Path(os.path.relpath(root / picture, folder))
    return os.path.abspath(root / picture) if seen.parts[0] == os.pardir else seen.as_posix()


def refuse_url(name: str) -> None:
    """Raise ValueError for a link in place of a file."""
    if _URL.match(name):
        raise ValueError(f"{name[:200]!r} is a URL, and URLs are not fetched: download it first, and write the file's path")


def path_below(root: Path, name: str, setting: str, anywhere: bool = False) -> str:
    """The path of a file that a row names; it starts at `root` and, unless `anywhere` and absolute, stays below it.

    Raises ValueError, naming the root by its `setting`, for a URL or a path that leaves it, by itself or through a link.
    """
    refuse_url(name)
    path = os.path.join(root, name)
    if anywhere and os.path.isabs(name):
        return path
    if not _is_below(os.path.normpath(path), os.path.normpath(root)):
        remedy = f"write its absolute path, or set {setting} to a folder above it" if anywhere else f"set {setting} above it"
        raise ValueError(f"the path {name!r} leads out of the folder {root}: {remedy}")
    # absolute, for the working directory may change; not abspath, which would drop a link before "..": photos/link/../secret
    real = os.path.join(_real(os.path.join(os.getcwd(), os.path.dirname(path))), os.path.basename(path))
    real = os.path.realpath(real) if os.path.islink(real) else real
    if not _is_below(real, _bounds(os.path.join(os.getcwd(), root))) and os.environ.get(FOLLOW_LINKS) != "1":
        raise ValueError(
            f"the path {name!r} leads through a link to {real}, out of the folder {root}: set {setting} to the folder that "
            f"really holds it, or the environment variable {FOLLOW_LINKS}=1 if the link is yours"
        )
    return path


def cell_below(root: Path, cell: object, anywhere: bool) -> object:
    """A path, or a Hugging Face cell that holds nothing but one, as a path below the root; any other picture as it is."""
    if isinstance(cell, str):
        return str(Path(path_below(root, cell, "image_root", anywhere)))
    if isinstance(cell, dict):
        held = cast(dict[str, object], cell)
        if not held.get("bytes") and isinstance(held.get("path"), str):
            return held | {"path": cell_below(root, held["path"], anywhere)}
    return cell


def _is_below(path: str, folder: str) -> bool:
    if folder == os.curdir:
        return not os.path.isabs(path) and path.split(os.sep, 1)[0] != os.pardir
    return path == folder or path.startswith(folder.rstrip(os.sep) + os.sep)


_real = lru_cache(maxsize=4096)(os.path.realpath)


@lru_cache(maxsize=256)
def _bounds(root: str) -> str:
    """The folder that links may not leave: the root, or in the hub's cache the repository, whose snapshots link to its blobs."""
    real = Path(os.path.realpath(root))
    caches = (folder.parent for folder in (real, *real.parents) if folder.name == "snapshots")
    return str(next((cache for cache in caches if (cache / "blobs").is_dir()), real))
