"""The switch that forbids downloads, that of the Hugging Face libraries; and a question whether their hub answers at all."""

import os
import re
from pathlib import Path

from mmrl.runtime.near import near
from mmrl.runtime.net.fetch import AnswerError, DeadlineError, HttpRequest, UnreachableError, fetch

SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
ANSWER_S = 8.0
"""Seconds that the hub has for each of its first two answers."""
_TROUBLES: dict[str, str] = {}
"""Address of a hub -> why it cannot be asked; empty where it can."""


def is_offline() -> bool:
    """True if the environment says that nothing may be downloaded."""
    return any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in SWITCHES)


def offline_note() -> str:
    """The end of an error about something that is not on this machine; empty where downloads are allowed."""
    if not is_offline():
        return ""
    return "; HF_HUB_OFFLINE is set, so nothing is downloaded: unset it, or fetch it beforehand with `hf download`"


def check_hub(source: str) -> None:
    """Raise FileNotFoundError if the hub does not answer within ANSWER_S, before a library tries it for many minutes.

    Asked once per process, and not for a `source` that is a folder or file here, or where downloads are forbidden.
    """
    if is_offline() or Path(source).expanduser().exists() or source.startswith((".", "/", "~")):
        return
    if trouble := hub_trouble():
        raise FileNotFoundError(
            f"{source!r} is no folder here{near(source)}, and {trouble}: check name and network, "
            "or set HF_HUB_OFFLINE=1 to use what was downloaded before"
        )


def hub_trouble() -> str:
    """The reason why the hub cannot be asked, found out once per process; empty where it can."""
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    if endpoint not in _TROUBLES:
        _TROUBLES[endpoint] = _trouble(endpoint)
    # no message shows the password of an address
    return re.sub("//[^ ]*@", "//", f"the Hugging Face hub ({endpoint}) {_TROUBLES[endpoint]}") if _TROUBLES[endpoint] else ""


def _trouble(endpoint: str) -> str:
    """The reason why a hub cannot be asked; empty once it answered, whatever it says."""
    try:
        for method, address in (("HEAD", endpoint), ("GET", f"{endpoint.rstrip('/')}/api/models?limit=1")):
            fetch(HttpRequest(method, address), ANSWER_S)
    except DeadlineError:
        return f"did not answer within {ANSWER_S:g} s"
    except (UnreachableError, ValueError) as error:
        # something is there, and the libraries may ask it in another way, and trust other authorities
        return "" if re.match(r"RemoteProtocolError|.*\[SSL", str(error)) else f"cannot be reached ({error})"
    except AnswerError:
        pass
    return ""
