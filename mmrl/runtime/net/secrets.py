"""Keys and tokens: read from the environment, checked before anything is sent, and kept out of every message and file."""

import logging
import os
from collections.abc import Mapping
from typing import Any

Json = Any
"""A JSON value that a server sent."""
HIDDEN = "[the key]"
SHORTEST = 6
"""Letters of a key that is hidden: shorter ones, such as EMPTY, are words, and hiding them would change texts that hold these."""
FOREIGN = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "WANDB_API_KEY")
"""Variables whose keys other packages send."""
_read: set[str] = set()
"""Every key that was read since this process began."""


def read_secret(variable: str) -> str | None:
    """The key in an environment variable, without blanks and line ends around it; None where it is empty, not set or not named.

    Raises ValueError if it is blank or holds what no HTTP header can carry; the message never shows it.
    """
    value = os.environ.get(variable, "")
    key = value.strip()
    if value and not key:
        raise ValueError(f"environment variable {variable} holds blanks alone: put the key there, or unset it")
    odd = next((i for i, letter in enumerate(key) if not "!" <= letter <= "~"), None)
    if odd is not None:
        raise ValueError(
            f"environment variable {variable} holds no key: character {odd + 1} of {len(key)} is a blank, a control character or "
            "no ASCII, which no HTTP header can carry; put the key there alone"
        )
    _read.add(key)
    return key or None


def hide(text: str) -> str:
    """A text without any of the keys; the longest goes first, as it may hold another one."""
    found = _read | {os.environ.get(variable, "").strip() for variable in FOREIGN}
    for key in sorted((key for key in found if len(key) >= SHORTEST), key=len, reverse=True):
        text = text.replace(key, HIDDEN)
    return text


def hide_in_record(record: logging.LogRecord) -> bool:
    """Hide the keys in what is logged; a filter of a logger, which lets all records pass."""
    record.msg, record.args = hide(record.getMessage()), None
    return True


def hide_in_json(value: Json) -> Json:
    """A JSON value none of whose texts holds a key, escaped letters or not."""
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, list | tuple):
        return [hide_in_json(item) for item in value]
    if isinstance(value, Mapping):
        return {hide(name) if isinstance(name, str) else name: hide_in_json(item) for name, item in value.items()}
    return value
