"""The switch that forbids downloads: that of the Hugging Face libraries, which all of mmrl's downloads go through."""

import os

SWITCHES = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")


def is_offline() -> bool:
    """True if the environment says that nothing may be downloaded."""
    return any(os.environ.get(name, "").upper() in ("1", "ON", "YES", "TRUE") for name in SWITCHES)


def offline_note() -> str:
    """The end of an error about something that is not on this machine; empty where downloads are allowed."""
    if not is_offline():
        return ""
    return "; HF_HUB_OFFLINE is set, so nothing is downloaded: unset it, or fetch it beforehand with `hf download`"
