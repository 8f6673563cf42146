"""Keys and tokens: read from the environment, checked before anything is sent, and kept out of every message."""

import os
from typing import Any

Json = Any
"""A JSON value that a server sent."""
HIDDEN = "[the key]"


def read_secret(variable: str) -> str | None:
    """The key in an environment variable, without blanks and line ends around it; None if the variable is not set or empty.

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
    return key or None


def hide(text: str, secret: str | None) -> str:
    """A text without the secret."""
    return text.replace(secret, HIDDEN) if secret else text


def hide_in_json(value: Json, secret: str | None) -> Json:
    """A JSON value none of whose texts holds the secret, escaped letters or not."""
    if not secret:
        return value
    if isinstance(value, str):
        return hide(value, secret)
    if isinstance(value, list):
        return [hide_in_json(item, secret) for item in value]
    if isinstance(value, dict):
        return {hide(key, secret): hide_in_json(item, secret) for key, item in value.items()}
    return value
