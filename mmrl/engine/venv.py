"""vLLM's virtual environment, which its servers run in: is it there, is it whole, which version. Standard library only."""

import json
import os
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from mmrl.runtime.cache import cache_folder
from mmrl.runtime.disk import room_for

VERSION = "0.32.0"
"""The version of vLLM that `mmrl engine install` makes an environment of, and that mmrl was tried with."""
TRIED = re.compile(r"0\.32(\.\d+)?(\+\w+)?")
"""Versions whose answers mmrl knows: others may name, or leave out, what it checks."""
Accelerator = Literal["cpu", "cuda"]
MARKER = "mmrl-engine.json"
"""A marker file in an environment that mmrl makes, written before any other; at the end it says that the environment is whole."""
WORKER = Path(__file__).parent / "worker"
"""The folder that a server needs on its PYTHONPATH, for its worker extension."""


@dataclass(frozen=True)
class Venv:
    """A whole environment: `Venv(Path("~/.cache/mmrl/engines/vllm-0.32.0"), "0.32.0+cpu", "cpu", "3.11")`."""

    folder: Path
    version: str
    """vLLM's."""
    accelerator: Accelerator | None = None
    """None: not made by mmrl."""
    python: str = ""
    recipe: str = ""
    """A hash of what it was made of."""

    @property
    def program(self) -> Path:
        """The command `vllm`."""
        return self.folder / "bin" / "vllm"


def engine_folder() -> Path:
    """The folder of vLLM's own environment: `engines/vllm-0.32.0` in the cache, which is never cleared to make room."""
    return cache_folder() / "engines" / f"vllm-{VERSION}"


def find_venv(folder: Path | None = None) -> Venv:
    """The environment in a folder (default: where `mmrl engine install` makes it), mmrl's or one that its user made.

    Raises:
        ValueError: there is none, it is half made, or its vLLM is none of the versions that were tried.
    """
    folder = folder or engine_folder()
    found = read_venv(folder)
    if found is None and (folder / MARKER).exists():
        raise ValueError(f"the environment {folder} is half made: run `mmrl engine install`, which makes it anew")
    if found is None:
        raise ValueError(f"there is no environment of vLLM in {folder}: run `mmrl engine install`, or name another folder")
    if not TRIED.fullmatch(found.version):
        raise ValueError(
            f"{folder} holds vLLM {found.version}, and mmrl was tried with {VERSION} alone: "
            f"run `mmrl engine install`, or install {VERSION} there"
        )
    return found


def read_venv(folder: Path) -> Venv | None:
    """The environment in a folder; None where there is none, or half of one."""
    if not (folder / "bin" / "vllm").is_file():
        return None
    try:
        noted = json.loads((folder / MARKER).read_text())
    except FileNotFoundError:
        version = installed_version(folder)
        return Venv(folder, version) if version else None
    except ValueError:
        return None
    if not noted.pop("whole", False):
        return None
    return Venv(folder, **noted)


def installed_version(folder: Path) -> str:
    """vLLM's version by the metadata of its package; empty: not installed."""
    found = sorted(folder.glob("lib/python3*/site-packages/vllm-*.dist-info"))
    return found[0].name.removeprefix("vllm-").removesuffix(".dist-info") if found else ""


def note_begun(folder: Path) -> None:
    """Mark a folder as half made."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).write_text('{"whole": false}\n')


def note_whole(venv: Venv) -> None:
    """Mark an environment as whole, at once or not at all."""
    noted = {name: value for name, value in asdict(venv).items() if name != "folder"} | {"whole": True}
    marker = venv.folder / MARKER
    written = marker.with_suffix(".new")
    try:
        with room_for(marker):
            written.write_text(json.dumps(noted) + "\n")
        written.replace(marker)
    finally:
        written.unlink(missing_ok=True)


def remove_venv(folder: Path) -> int:
    """Remove an environment that mmrl made, whole or not; the bytes that it had.

    Raises:
        ValueError: there is none, or mmrl did not make it.
    """
    if not (folder / MARKER).exists():
        reason = "was not made by `mmrl engine install`" if folder.exists() else "does not exist"
        raise ValueError(f"{folder} {reason}: nothing was removed")
    freed = num_bytes(folder)
    gone = folder.with_name(f".{folder.name}.{os.getpid()}.gone")
    folder.rename(gone)
    shutil.rmtree(gone)
    return freed


def num_bytes(folder: Path) -> int:
    """Bytes on the disk, links not followed."""
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file() and not file.is_symlink())


def venvs() -> list[tuple[str, int]]:
    """Name and bytes of each environment in mmrl's cache, half made ones too."""
    place = engine_folder().parent
    found = sorted(place.iterdir()) if place.is_dir() else []
    return [(f"{place.name}/{folder.name}", num_bytes(folder)) for folder in found if (folder / MARKER).exists()]
