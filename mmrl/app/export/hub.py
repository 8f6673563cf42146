"""An exported folder in a repository of the Hugging Face hub."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.filesize import decimal

from mmrl.runtime.net.offline import SWITCHES, hub_trouble, is_offline
from mmrl.serving.files import first_line

TOKEN = "run `hf auth login` with a token that may write, or set HF_TOKEN"
REFUSALS = {
    400: "check the name",
    401: f"it does not know the token: {TOKEN}",
    403: f"the token may not write there: {TOKEN}",
    404: f"there is no such repository for this token: {TOKEN}",
    409: "somebody else wrote there at the same time: try again",
}
"""Status of an answer -> what to do about it."""


def check_push(name: str) -> None:
    """Look whether a folder could be pushed to the repository `name` (OWNER/NAME), before anything is loaded.

    Raises FileNotFoundError without a connection, and ValueError for a name that no repository can have, HF_HUB_OFFLINE, no
    token, or one that the hub does not know.
    """
    from huggingface_hub import HfApi, get_token
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(name)
        is_right = name.count("/") == 1
    except HFValidationError:
        is_right = False
    if not is_right:
        raise ValueError(f"--push {name}: write OWNER/NAME, of letters, digits, '-', '_' and '.', as in me/my-model")
    if is_offline():
        raise ValueError(f"--push {name}: nothing goes to the hub while {' or '.join(SWITCHES)} is set: unset it, or push later")
    if get_token() is None:
        raise ValueError(f"--push {name}: there is no token for the Hugging Face hub: {TOKEN}")
    if trouble := hub_trouble():
        raise FileNotFoundError(f"--push {name}: {trouble}: check the network, or export without --push")
    with refusals(name):
        HfApi().whoami()


def push_folder(folder: Path, name: str, private: bool, console: Console) -> str:
    """Say what is pushed, then make the repository unless it is there, and add the folder's files as a commit; its address.

    Raises ValueError where the hub refuses it, or the repository is there and public though it was to be private.
    """
    from huggingface_hub import HfApi

    api: Any = HfApi()
    console.print("\n".join(announcement(folder, name, private)), highlight=False, markup=False)
    with refusals(name):
        made = api.create_repo(name, private=private, exist_ok=True)
        if private and not api.repo_info(made.repo_id).private:
            raise ValueError(
                f"--push {name}: it is there already, and public: make it private in its settings, or choose a new name"
            )
        api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message="Export of a run of mmrl")
    return str(made)


def announcement(folder: Path, name: str, private: bool) -> Iterator[str]:
    """The files that are about to be pushed, with their sizes."""
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    total = sum(file.stat().st_size for file in files)
    yield f"pushing {len(files)} files, {decimal(total)}, to {name} ({'private' if private else 'public'}):"
    yield from (f"  {file.relative_to(folder).as_posix()}  {decimal(file.stat().st_size)}" for file in files)


@contextmanager
def refusals(name: str) -> Iterator[None]:
    """A block in which what the hub refuses becomes one sentence; ValueError for an answer, FileNotFoundError for none."""
    from huggingface_hub import errors

    # The class of broken connections belongs to another package in every version of huggingface_hub.
    broken: Any = getattr(errors, "HTTPError")  # noqa: B009 - as an attribute no checker knows it in all of them
    try:
        yield
    except errors.LocalTokenNotFoundError:
        raise ValueError(f"--push {name}: there is no token for the Hugging Face hub: {TOKEN}") from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        remedy = REFUSALS.get(status, "try again later")
        raise ValueError(f"--push {name}: the hub answered {status} ({first_line(error)}): {remedy}") from None
    except (broken, ConnectionError, RuntimeError) as error:
        cause = error.__cause__ or error
        raise FileNotFoundError(
            f"--push {name}: the upload broke off ({first_line(cause)}): check the network and push again; the exported folder "
            "is whole"
        ) from None
