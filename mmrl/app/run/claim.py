"""A run's folder, claimed and locked before its model is loaded, and removed again if nothing came of the run."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from mmrl.app.run.folder import RunDir
from mmrl.app.run.launch import lock_folder
from mmrl.core.ranks import Ranks

OF_A_START = frozenset({".lock", "samples", "tensorboard", "trackio", "versions.json", "wandb"})
"""What a start writes before there is anything to keep."""


@contextmanager
def claimed_folder(wanted: Path, ranks: Ranks, may_be_another: bool = False) -> Iterator[Path]:
    """Hold a folder, the same on all ranks and absolute; one that was made for this and holds no run at the end is removed.

    With `may_be_another`, take `wanted-2`, `wanted-3`, ... where `wanted` exists. Raises ValueError if another process holds it.
    """
    path, made = wanted.absolute(), list[Path]()
    problem = None
    if ranks.is_main:
        try:
            path, made = take_next_free(path) if may_be_another else (path, missing_folders(path))
        except OSError as error:
            problem = f"the folder {path} cannot be made: {error.strerror}"
        if not may_be_another and os.path.lexists(path) and not path.is_dir():
            problem = f"{path} is no folder, and a run needs one: choose another output, or remove it"
    ranks.agree(problem)
    path = ranks.gather(path)[0]
    with lock_folder(path, ranks):
        try:
            yield path
        except BaseException:
            remove_start(path, made)
            raise


def take_next_free(path: Path) -> tuple[Path, list[Path]]:
    """Make `runs/image`, or `runs/image-2` where that exists, ...; and say which folders were made.

    Two programs that ask at the same time get different ones.
    """
    number, candidate = 1, path
    while True:
        missing = missing_folders(candidate)
        try:
            candidate.mkdir(parents=True)
            return candidate, missing
        except FileExistsError:
            if not candidate.is_dir() and not candidate.parent.is_dir():
                raise
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")


def missing_folders(path: Path) -> list[Path]:
    """The folder and those above it that do not exist, lowest first."""
    missing: list[Path] = []
    while not os.path.lexists(path):
        missing.append(path)
        path = path.parent
    return missing


def remove_start(path: Path, made: list[Path]) -> None:
    """Remove a folder that was made for a run that never began, and the folders that were made for it; others stay."""
    if not path.is_dir() or RunDir(path).exists() or {file.name for file in path.iterdir()} - OF_A_START:
        return
    with suppress(OSError):
        if path in made:
            shutil.rmtree(path)
        else:
            (path / ".lock").unlink(missing_ok=True)
        for folder in made[1:]:
            folder.rmdir()
