"""Writing JSONL so that a reader never meets half a file."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def write_jsonl(files: Mapping[Path, Iterable[Mapping[str, Any]]]) -> None:
    """Write every file under a temporary name, then rename all: on failure the old files stand untouched."""
    written: dict[Path, Path] = {}
    try:
        for path, rows in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            written[path] = path.with_name(f".{path.name}.{os.getpid()}.tmp")
            with written[path].open("w", encoding="utf-8") as file:
                file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
                file.flush()
                os.fsync(file.fileno())
        for path, temporary in written.items():
            os.replace(temporary, path)
    finally:
        for temporary in written.values():
            temporary.unlink(missing_ok=True)


def relative_to(picture: str, root: Path, folder: Path) -> str:
    """The path of a picture, which starts at `root`, as seen from `folder`; an absolute one stays."""
    return picture if os.path.isabs(picture) else Path(os.path.relpath(root / picture, folder)).as_posix()
